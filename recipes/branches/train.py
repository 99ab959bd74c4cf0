"""Train a model to write independent sums in parallel branches, with tags, and measure it.

    python recipes/branches/train.py MODEL OUT [--minutes 60] [--threads 2]
    python recipes/branches/train.py MODEL OUT --measure 50

MODEL is a directory in Hugging Face layout, such as SmolLM2-135M-Instruct. The twelve tags become tokens, whose vectors
begin as the means of their words'. Each text is a block: an outline of 2 to 6 sums, a path for each, and a conclusion
that adds them up, under the mask and at the positions of Multiverse's training (arXiv 2506.09991, section 4). The loss
is that of the answer. OUT is kept every `--keep` steps; the same command goes on from there, with a fresh optimizer.

`--measure` asks new questions, none of which speaks of branches: how many answers fork, how many are right, tokens a
pass; and how many are right by plain decoding, which writes the same tags in sequence.
"""

import argparse
import json
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from paceline.reason.tags import TAG_NAMES, read, trained

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "studies"))
from judged import difference, share, within

MOST_SUMS = 6
NEW_TAGS = [f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/")]
STEPS_FILE = "steps.json"
TOTAL = re.compile(r"(-?\d+)(?=\.?\s*(?:<|$))")
"""Behind the last words before it: a number alone, its point, and what is no word."""
MEASURED = "measured"
"""Seed of new questions: training's are numbers, and -1 draws as 1 does."""


def problem(rng: random.Random) -> tuple[str, str, int]:
    """A question, its answer in tags, and the total."""
    sums, values = [], []
    for _ in range(rng.randint(2, MOST_SUMS)):
        a, b = rng.randint(2, 20), rng.randint(2, 20)
        kind = rng.choice("+-") if a > b else "+"
        sums.append(f"{a} {kind} {b}")
        values.append(a + b if kind == "+" else a - b)
    question = f"Work out {', '.join(sums[:-1])} and {sums[-1]}, and add up the results."
    outlines = "".join(f"<Outline>{i}: {each}</Outline>" for i, each in enumerate(sums, 1))
    paths = "".join(f"<Path>{i}: {each} = {value}</Path>" for i, (each, value) in enumerate(zip(sums, values), 1))
    running, steps = values[0], []
    for value in values[1:]:
        steps.append(f"{running} + {value} = {running + value}")
        running += value
    end = f"<Conclusion>{', '.join(steps)}</Conclusion>"
    return question, f"<Parallel><Goal>{outlines}</Goal>{paths}{end}</Parallel>The total is {running}.", running


def total(text: str) -> int | None:
    """The total that an answer comes to; tokens that end a text may stand behind it."""
    found = TOTAL.match(text.rpartition("The total is ")[2])
    return int(found[1]) if "The total is " in text and found else None


def with_tags(path: Path) -> tuple[Any, Any]:
    """Tokenizer and model, with a token for each tag."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    missing = [tag for tag in NEW_TAGS if tag not in tokenizer.get_vocab()]
    if missing:
        words = {tag: tokenizer.encode(tag, add_special_tokens=False) for tag in missing}
        tokenizer.add_special_tokens({"additional_special_tokens": missing})
        model.resize_token_embeddings(max(len(tokenizer), model.config.vocab_size))
        with torch.no_grad():
            for table in {id(it): it for it in (model.get_input_embeddings(), model.get_output_embeddings())}.values():
                for tag, ids in words.items():
                    table.weight[tokenizer.convert_tokens_to_ids(tag)] = table.weight[ids].mean(0)
    return tokenizer, model


def prompt(tokenizer: Any, question: str) -> list[int]:
    said = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


def example(tokenizer: Any, rng: random.Random) -> tuple[list[int], int, list[int], torch.Tensor]:
    """Tokens, the first that is to be predicted, positions, and the mask [n, n] of what each token sees."""
    question, answer, _ = problem(rng)
    head = prompt(tokenizer, question)
    tokens = [*head, *tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    positions, sees = trained(read(tokenizer, tokens), len(tokens))
    return tokens, len(head), positions, torch.tensor(sees)


def batch(tokenizer: Any, rng: random.Random, size: int) -> dict[str, torch.Tensor]:
    rows = [example(tokenizer, rng) for _ in range(size)]
    width = max(len(tokens) for tokens, *_ in rows)
    ids, labels = torch.zeros((size, width), dtype=torch.long), torch.full((size, width), -100)
    positions, masks = torch.zeros((size, width), dtype=torch.long), torch.zeros((size, 1, width, width))
    masks[:] = torch.finfo(torch.float32).min
    for i, (tokens, start, at, sees) in enumerate(rows):
        ids[i, : len(tokens)] = torch.tensor(tokens)
        labels[i, start : len(tokens)] = ids[i, start : len(tokens)]
        positions[i, : len(tokens)] = torch.tensor(at)
        masks[i, 0, : len(tokens), : len(tokens)].masked_fill_(sees, 0.0)
        masks[i, 0, len(tokens) :, 0] = 0.0  # padding sees something
    return {"input_ids": ids, "labels": labels, "position_ids": positions, "attention_mask": masks}


def train(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    done = json.loads((args.out / STEPS_FILE).read_text()) if (args.out / STEPS_FILE).is_file() else 0
    tokenizer, model = with_tags(args.out if done else args.model)
    torch.manual_seed(done)
    rng, until = random.Random(done), time.monotonic() + 60 * args.minutes
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=1e-4)
    steps = 0
    while time.monotonic() < until and (args.steps is None or steps < args.steps):
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, (steps + 1) / 20)
        loss = model(**batch(tokenizer, rng, args.batch)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps % 10 == 0:
            print(f"step {done + steps}: loss {loss.item():.3f}", flush=True)
        if steps % args.keep == 0:
            keep(model, tokenizer, args.out, done + steps)
    keep(model, tokenizer, args.out, done + steps)


def keep(model: Any, tokenizer: Any, out: Path, steps: int) -> None:
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / STEPS_FILE).write_text(json.dumps(steps))


def measure(args: argparse.Namespace) -> None:
    from paceline import LLM, SamplingParams
    from paceline.reason.parallel import Parallel, ParallelSettings
    from paceline.reason.runner import BASE, Runner

    rng, same, forked = random.Random(MEASURED), 0, 0
    rights: dict[str, list[bool]] = {"branches": [], "sequence": []}
    counts = dict.fromkeys(("tokens", "passes"), 0)
    wish = SamplingParams(temperature=0, max_tokens=400, skip_special_tokens=False)
    with LLM(args.out, drafter="none") as llm:
        for _ in range(args.measure):
            question, _, wanted = problem(rng)
            ids = llm.text.chat([{"role": "user", "content": question}])
            policy, runner = Parallel(ParallelSettings(mode="tags")), Runner({BASE: llm.engine})
            [request] = runner.submit(ids, wish.resolve({}), policy)
            while request.finish is None:
                runner.step()
            [plain] = llm.generate([ids], wish, progress=False)
            rights["branches"].append(total(request.text) == wanted)
            rights["sequence"].append(total(plain.text) == wanted)
            same += plain.text == request.text
            forked += policy.report["branches"] > 0
            counts = {name: number + policy.report[name] for name, number in counts.items()}
    for row, right in rights.items():
        print(f"{row}: right {share(sum(right), len(right))}")
    mean, half = difference(rights["branches"], rights["sequence"])
    print(f"branches less sequence {mean:+.3f} {within(half)}; {forked} of {args.measure} forked unasked, "
          f"{counts['tokens'] / max(1, counts['passes']):.2f} tokens a pass; {same} texts the same")  # fmt: skip


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rate", type=float, default=3e-5)
    parser.add_argument("--keep", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--measure", type=int, default=0, metavar="N")
    args = parser.parse_args(words)
    (measure if args.measure else train)(args)


if __name__ == "__main__":
    main()
