"""Record of routes: which experts each token of a text used, in every mixture of a model."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from paceline.core.errors import InputError, RefusalError
from paceline.core.params import SamplingParams
from paceline.core.rows import Rows
from paceline.engine.llm import LLM
from paceline.model.decoder import Decoder

PIECE_TOKENS = 256
"""Tokens of a piece in which texts are read."""


@dataclass(frozen=True, slots=True)
class RouteRecord:
    """Routes of N tokens, in the order of the texts."""

    tokens: Tensor
    """[N] int64"""
    chosen: dict[int, Tensor]
    """{layer: [N, active] int64}"""
    counts: dict[int, int]
    """{layer: number of experts}"""

    def cut(self, first: int, last: int) -> "RouteRecord":
        """The tokens from `first` to `last`, exclusive."""
        part = {layer: chosen[first:last] for layer, chosen in self.chosen.items()}
        return RouteRecord(self.tokens[first:last], part, self.counts)


class RouteRecorder:
    """Listens to a decoder whose mixtures are in this process."""

    def __init__(self, layers: Iterable[int]) -> None:
        self.tokens: list[Tensor] = []
        self.chosen: dict[int, list[Tensor]] = {layer: [] for layer in layers}

    def begin(self, rows: Rows) -> None:
        """Take the rows of a pass."""
        self.tokens.append(rows.token.clone())


def record(model: str | Path, texts: Iterable[str], limit: int) -> tuple[RouteRecord, LLM]:
    """Routes of the first `limit` tokens of these texts, and the engine that read them, in float32. Raises RefusalError
    for a model without experts, InputError where there is no text."""
    llm = LLM(model, drafter="none", dtype="float32", prefix_cache=False, max_requests=8, blocks=512)
    decoder = llm.engine.model
    assert isinstance(decoder, Decoder)
    blocks = decoder.weights.blocks
    mixtures = {i: block.mixture for i, block in enumerate(blocks) if block.mixture is not None}
    if not mixtures:
        llm.close()
        raise RefusalError(f"{model} has no experts; routes are those of a mixture.")
    recorder = RouteRecorder(mixtures)
    decoder.before.append(recorder.begin)
    for layer, mixture in mixtures.items():
        mixture.record = recorder.chosen[layer].append
    pieces = cut_up(llm, texts, limit)
    if not pieces:
        llm.close()
        raise InputError("There is no text whose routes could be recorded; give a file with some.")
    llm.generate(pieces, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True), progress=False)
    for mixture in mixtures.values():
        mixture.record = None
    decoder.before.remove(recorder.begin)
    chosen = {layer: torch.cat(seen) for layer, seen in recorder.chosen.items()}
    return RouteRecord(torch.cat(recorder.tokens), chosen, {i: m.form.count for i, m in mixtures.items()}), llm


def cut_up(llm: LLM, texts: Iterable[str], limit: int) -> list[list[int]]:
    """Pieces of the texts' tokens."""
    longest = min(PIECE_TOKENS, llm.engine.model.max_len - 1)
    pieces: list[list[int]] = []
    left = limit
    for text in texts:
        ids = llm.ids(text)[:left]
        pieces += [ids[at : at + longest] for at in range(0, len(ids), longest)]
        left -= len(ids)
        if left <= 0:
            break
    return pieces
