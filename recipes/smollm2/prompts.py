"""Prompts of three kinds, for training and held out: sums (GSM8K, SVAMP), programs (MBPP), Python's documentation."""

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.train.data import read_lines

SIZES = {"gsm8k": 800, "svamp": 480, "mbpp": 220, "docs": 700}
"""Prompts that are trained on."""
HELD = 10
"""Prompts of each kind that are not: of GSM8K its test part, of the others the last ones."""
ENTRY = re.compile(
    r"^\.\. (?:function|method|class|attribute|exception|data|decorator):: (.+)\n((?:\n|   .*\n)+)", re.M
)
ROLE = re.compile(r":[\w:]+:`[!~]?([^`<]+?)(?: <[^`]*>)?`|``([^`]+)``|[*]{1,2}(\w+)[*]{1,2}")
ASKS: tuple[Callable[[str, str], str], ...] = (
    lambda name, text: f"Explain what {name} does in Python.",
    lambda name, text: f"Write a short Python example that uses {name}.",
    lambda name, text: f"{text}\n\nSay in two sentences what this part of Python's documentation means.",
    lambda name, text: f"{name}: {text}\n\nWrite an example for this entry of Python's documentation.",
)


def entries(sources: Path) -> Iterator[tuple[str, str]]:
    """(signature, first paragraph) of what the library's pages describe. `sources`: the directory `_sources/library`
    of Python's HTML documentation (Debian: python3-doc)."""
    for page in sorted(sources.glob("*.rst.txt")):
        module = page.name.removesuffix(".rst.txt")
        for name, body in ENTRY.findall(page.read_text(encoding="utf-8")):
            paragraphs = [" ".join(part.split()) for part in body.split("\n\n")]
            text = next((part for part in paragraphs if part and not part.startswith((":", ".."))), "")
            text = ROLE.sub(lambda found: next(part for part in found.groups() if part), text)
            if 60 <= len(text) <= 600:
                yield (name if "." in name or module in ("functions", "stdtypes") else f"{module}.{name}"), text


def prompts(data: Path, docs: Path, seed: int) -> tuple[list[str], dict[str, list[str]]]:
    """What is trained on, shuffled; and what is held out, by kind."""
    rng = random.Random(seed)
    told = json.loads((data / "reasoning" / "svamp.json").read_text(encoding="utf-8"))
    asked = [rng.choice(ASKS)(name, text) for name, text in entries(docs)]
    found = {
        "gsm8k": [line["question"] for line in read_lines(data / "gsm8k_train.jsonl")],
        "svamp": [f"{line['Body'].rstrip(' .')}. {line['Question']}" for line in told],
        "mbpp": [line["prompt"] for line in read_lines(data / "reasoning/mbpp_sanitized.jsonl")],
        "docs": asked,
    }
    for lines in found.values():
        rng.shuffle(lines)
    chosen = [line for kind, count in SIZES.items() for line in found[kind][:count]]
    rng.shuffle(chosen)
    test = [line["question"] for line in read_lines(data / "gsm8k_test.jsonl")]
    return chosen, {"sums": test[:HELD], "programs": found["mbpp"][-HELD:], "documentation": found["docs"][-HELD:]}
