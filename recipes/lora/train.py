"""Train an adapter (LoRA) with peft: numbers in words become digits.

    pip install peft
    python recipes/lora/train.py MODEL OUT [--steps 120] [--threads 2]

MODEL is a directory in Hugging Face layout, such as SmolLM2-135M. OUT is an adapter in PEFT's layout. The loss is that
of the answer alone.
"""

import argparse
import random
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from task import example
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    base = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    wish = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, wish)
    model.print_trainable_parameters()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.rate)
    rng = random.Random(0)
    for step in range(1, args.steps + 1):
        rows = []
        for _ in range(args.batch):
            question, answer = example(rng)
            head, tail = tokenizer.encode(question), tokenizer.encode(answer + "\n")
            rows.append((head + tail, [-100] * len(head) + tail))
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
        labels = torch.tensor([said + [-100] * (width - len(said)) for _, said in rows])
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    model.save_pretrained(args.out)


if __name__ == "__main__":
    main()
