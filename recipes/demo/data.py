"""Training text: GSM8K as chats, and Python's own standard library."""

import json
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizer import BOS, END
from torch import Tensor
from transformers import PreTrainedTokenizerFast

Document = list[int]
Source = tuple[float, list[Document]]  # its weight in the mix, its documents

HELD_OUT = 0.02
STDLIB_CHARS = 4_000_000
# Tests and generated tables (code pages, help topics) are not prose a reader would call Python.
SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "pydoc_data"}


@dataclass(frozen=True)
class Question:
    question: str
    answer: str

    def prompt(self, tokenizer: PreTrainedTokenizerFast) -> Document:
        """Token ids up to and with the assistant's header."""
        messages = [{"role": "user", "content": self.question}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text)["input_ids"])

    def document(self, tokenizer: PreTrainedTokenizerFast) -> Document:
        """Token ids of the whole chat; the last one is <|end|>."""
        return [*self.prompt(tokenizer), *tokenizer(self.answer)["input_ids"], END]


def read_questions(path: Path) -> tuple[list[Question], list[Question]]:
    """GSM8K's training questions in file order, split into (trained on, held out)."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    questions = [Question(row["question"], row["answer"]) for row in rows]
    cut = len(questions) - round(HELD_OUT * len(questions))
    return questions[:cut], questions[cut:]


def read_stdlib(seed: int) -> list[str]:
    """Standard-library sources, about `STDLIB_CHARS` characters of them, in a seeded order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(p for p in root.rglob("*.py") if not SKIPPED & set(p.relative_to(root).parts))
    random.Random(seed).shuffle(paths)
    texts: list[str] = []
    size = 0
    for path in paths:
        if size >= STDLIB_CHARS:
            break
        texts.append(path.read_text(encoding="utf-8", errors="replace"))
        size += len(texts[-1])
    return texts


def source_document(text: str, tokenizer: PreTrainedTokenizerFast) -> Document:
    return [BOS, *tokenizer(text)["input_ids"], END]


def rows_of(documents: list[Document], length: int, rng: random.Random) -> Iterator[Document]:
    """Documents end to end, cut into rows of `length` tokens; reshuffled each epoch, without end."""
    left: Document = []
    while True:
        for document in rng.sample(documents, len(documents)):
            left += document
            while len(left) >= length:
                yield left[:length]
                left = left[length:]


def batches(sources: list[Source], batch: int, length: int, seed: int) -> Iterator[Tensor]:
    """int64 [batch, length] without end; each row comes from one source, drawn by its weight."""
    rng = random.Random(seed)
    streams = [rows_of(documents, length, rng) for _, documents in sources]
    weights = [weight for weight, _ in sources]
    while True:
        yield torch.tensor([next(rng.choices(streams, weights)[0]) for _ in range(batch)])
