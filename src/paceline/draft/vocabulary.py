"""The draft vocabulary: drafts are made of the N commonest tokens, so that a drafted token reads no more of the head
(FR-Spec, Zhao et al. 2025, arXiv 2502.14856).

Logits of all other tokens are -inf before anything else looks at them. So the distribution q that a draft is drawn from
and the one that a rule tests it by are the same, over the chosen tokens, and every verifier that may judge the drafter
may judge it. Between two steps the tokens may change.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.core.component import Narrows
from paceline.core.errors import InputError
from paceline.core.files import open_regular

LEARN = "learn"
LEARNED_TOKENS = 32768
"""Size of a vocabulary that is learned, unless it is named."""
LEAST_TOKENS = 64
"""Smallest vocabulary."""
FIRST_IDS = 512
"""Lowest ids, which stay where they are no more than half: bytes and single characters in a byte-pair vocabulary."""
HALF_LIFE_TOKENS = 50_000
"""Tokens of text after which a count weighs half."""
WINDOW_TOKENS = 4096
"""Number of latest tokens on which a new draft vocabulary is compared with the present one."""
COMPARED_EVERY = 512
"""Tokens from one comparison to the next."""
MIN_GAIN = 0.005
"""Share of the latest tokens that another vocabulary must have in addition."""
UNIT_TOKENS = {"": 1, "K": 1024}


@dataclass(frozen=True, slots=True)
class VocabularyWish:
    """What the option says: `32k`, `20000`, `32k:FILE`, `learn`, `learn:8k`."""

    size: int
    learns: bool
    corpus: Path | None


def wish_of(value: str | int) -> VocabularyWish:
    """Raises InputError."""
    head, _, tail = str(value).partition(":")
    try:
        if head == LEARN:
            size, corpus = number(tail) if tail else LEARNED_TOKENS, None
        else:
            size, corpus = number(head), Path(tail).expanduser() if tail else None
    except ValueError:
        raise InputError(
            f"draft_vocab is {value!r}, but it must be a number of tokens such as 32k, with a text to count in as "
            "32k:FILE, or learn, as learn:8k."
        ) from None
    if size < LEAST_TOKENS:
        raise InputError(f"draft_vocab is {value!r}, but drafts need at least {LEAST_TOKENS} tokens.")
    return VocabularyWish(size, head == LEARN, corpus)


def number(text: str) -> int:
    text = text.strip().upper()
    unit = text[-1:] if text[-1:] in UNIT_TOKENS else ""
    return int(text.removesuffix(unit)) * UNIT_TOKENS[unit]


class DraftVocabulary:
    """The tokens of one model's drafts. One thread owns it."""

    def __init__(self, model: Narrows, size: int, counts: Tensor, fixed: Iterable[int], *, drafts: bool) -> None:
        """counts: float64 [V], how common each token is. fixed: ids that stay whatever is counted. drafts: does the
        model nothing but draft?"""
        self.model, self.drafts, self.counts = model, drafts, counts
        self.size = min(size, model.vocab_size)
        stay = torch.tensor(sorted({i for i in fixed if i < model.vocab_size}), dtype=torch.int64)
        self.bonus = torch.zeros(model.vocab_size, dtype=torch.float64)
        self.bonus[stay] = float("inf")
        self.weight = 1.0
        """Weight of a token that is read now; it grows, instead of all counts becoming less."""
        self.latest: list[int] = []
        self.compared = self.changes = 0
        self.words = self.best()
        self.inside = self.take(self.words)

    def best(self) -> Tensor:
        """The ids to draft from by the counts as they are, ascending."""
        return (self.counts + self.bonus).topk(self.size).indices.sort().values

    def take(self, words: Tensor) -> Tensor:
        """Draft from these from now on; bool [V]: which are in."""
        self.model.narrow(words, self.drafts)
        inside = torch.zeros(self.model.vocab_size, dtype=torch.bool)
        inside[words] = True
        return inside

    def read(self, tokens: Sequence[int]) -> None:
        """Tokens of a text, committed or of a prompt. Called between two steps; the vocabulary may change."""
        tokens = [token for token in tokens if 0 <= token < self.model.vocab_size]
        self.weight *= 2 ** (len(tokens) / HALF_LIFE_TOKENS)
        add = torch.full((len(tokens),), self.weight, dtype=torch.float64)
        self.counts.index_add_(0, torch.tensor(tokens, dtype=torch.int64), add)
        if self.weight > 1e6:
            self.counts /= self.weight
            self.weight = 1.0
        self.latest = [*self.latest, *tokens][-WINDOW_TOKENS:]
        self.compared += len(tokens)
        if self.compared >= COMPARED_EVERY:
            self.compared = 0
            self.compare()

    def compare(self) -> None:
        """Change to the commonest tokens of now, if enough of the latest text is made of them."""
        words, latest = self.best(), torch.tensor(self.latest)
        other = torch.zeros_like(self.inside)
        other[words] = True
        if float(other[latest].double().mean() - self.inside[latest].double().mean()) < MIN_GAIN:
            return
        self.words, self.inside = words, self.take(words)
        self.changes += 1

    def share(self, tokens: Sequence[int]) -> float:
        """How many of these tokens are in, of all."""
        return float(self.inside[torch.tensor(tokens)].double().mean())


def vocabulary_of(wish: VocabularyWish, model: Narrows, text: Any, *, drafts: bool) -> DraftVocabulary:
    """A model's draft vocabulary; `text` has the tokenizer. Without a corpus ids count by their order, which in a
    byte-pair vocabulary is that of the merges: the commonest first. Raises InputError."""
    size = model.vocab_size
    counts = torch.arange(size, 0, -1, dtype=torch.float64) / (2 * size)  # below one occurrence
    if wish.corpus is not None:
        for entry in strings(wish.corpus):
            ids = torch.tensor(text.tokenizer.encode(entry, add_special_tokens=False), dtype=torch.int64)
            counts += torch.bincount(ids, minlength=size)[:size]
    specials = [*text.tokenizer.all_special_ids, *text.tokenizer.get_added_vocab().values()]
    return DraftVocabulary(model, wish.size, counts, [*range(min(FIRST_IDS, wish.size // 2)), *specials], drafts=drafts)


def strings(path: Path) -> Iterator[str]:
    """The texts of a file: of JSON, or a line of JSON each, its strings; else its lines. Raises InputError."""
    with open_regular(path, "draft_vocab") as file:
        content = file.read().decode("utf-8", errors="replace")
    try:
        yield from within(json.loads(content))
        return
    except (ValueError, RecursionError):
        pass
    for line in content.splitlines(keepends=True):
        try:
            yield from within(json.loads(line)) if line[:1] in "{[" else (line,)
        except (ValueError, RecursionError):
            yield line


def within(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from within(part)
