"""Fine-tune a model a little, in several ways, so that there are models that share most of their weights.

    python recipes/zoo/train.py MODEL OUT TEXT.json ... [--plan top2 top2 top4 lora whole] [--steps 12] [--threads 1]

MODEL is a directory in Hugging Face layout, such as SmolLM2-135M. The texts are JSON or JSON lines; number i is that of
fine-tune i, in turn. `topN` trains the last N layers, `lora` makes an adapter in PEFT's layout (pip install peft), and
`whole` trains all but the embedding. OUT gets a directory for each: `top2-0`, `top2-1`, ...; those that are there stay.
"""

import argparse
import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

WINDOW = 64
"""Tokens of a text that is learned at once."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--plan", nargs="+", default=["top2", "top2", "top2", "top2", "top4", "top4", "lora", "whole"])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for number, kind in enumerate(args.plan):
        place = args.out / f"{kind}-{number}"
        if not place.exists():
            began = time.monotonic()
            losses = tune(args, kind, number, place)
            print(
                f"{place.name}: loss {losses[0]:.2f} to {losses[-1]:.2f}, {time.monotonic() - began:.0f} s", flush=True
            )


def tune(args: argparse.Namespace, kind: str, number: int, place: Path) -> list[float]:
    """One fine-tune; the losses of its steps."""
    torch.manual_seed(number)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model: Any = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    rate, layers = args.rate, model.model.layers
    model.requires_grad_(False)
    if kind == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
        )
        rate = 10 * args.rate
    else:
        for layer in layers if kind == "whole" else layers[-int(kind.removeprefix("top")) :]:
            layer.requires_grad_(True)
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer, losses = torch.optim.AdamW(learned, lr=rate), list[float]()
    windows = cut(tokenizer, args.texts[number % len(args.texts)], random.Random(number))
    for _ in range(args.steps):
        ids = torch.tensor([next(windows) for _ in range(args.batch)])
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if kind == "lora":
        model.save_pretrained(place)
    else:
        keep(args.model, place, dict(model.named_parameters()))
    return losses


def keep(base: Path, place: Path, tuned: dict[str, torch.Tensor]) -> None:
    """The base's files with what was trained in place of its own, in its dtypes."""
    place.mkdir(parents=True)
    for file in base.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, place)
    weights = load_file(base / "model.safetensors")
    changed = {name: p.detach().to(weights[name].dtype) for name, p in tuned.items() if p.requires_grad}
    save_file(weights | changed, place / "model.safetensors", {"format": "pt"})


def cut(tokenizer: Any, file: Path, rng: random.Random) -> Iterator[list[int]]:
    """Windows of a file's texts, one behind the other, in an order of their own."""
    raw = file.read_text()
    found = json.loads(raw) if file.suffix == ".json" else [json.loads(line) for line in raw.splitlines()]
    texts = ["\n".join(part for part in each.values() if isinstance(part, str)) for each in found]
    ids = list[int]()
    while True:
        while len(ids) < WINDOW:
            ids += [*tokenizer.encode(rng.choice(texts)), tokenizer.eos_token_id or 0]
        yield ids[:WINDOW]
        ids = ids[WINDOW:]


if __name__ == "__main__":
    main()
