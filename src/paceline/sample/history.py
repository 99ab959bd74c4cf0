"""The processors that need the whole text so far: penalties and the user's callables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from paceline.core.params import LogitsFn
from paceline.core.request import Request

EMPTY = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the penalties know of a path."""

    repetition: float
    presence: float
    frequency: float
    prompt: Tensor
    """Distinct prompt ids, int64 [P]; empty without repetition penalty."""
    known: frozenset[int]
    """Ids in `prompt`, as a set."""
    fresh: tuple[int, ...] = ()
    """Distinct output ids that are not in `known`."""
    counts: Mapping[int, int] = field(default_factory=dict)
    """Output occurrences."""


class Penalties:
    """Repetition (prompt and output), then presence and frequency (output only)."""

    def __init__(self) -> None:
        self._latest: tuple[int, frozenset[int], Tensor] = (-1, frozenset(), EMPTY)
        """A group, and the distinct tokens of its prompt."""

    def start(self, request: Request) -> Seen | None:
        p = request.params
        repetition = 1.0 if p.repetition_penalty is None else p.repetition_penalty
        if repetition == 1 and not p.presence_penalty and not p.frequency_penalty:
            return None
        known, prompt = self._prompt(request) if repetition != 1 else (frozenset(), EMPTY)
        return Seen(repetition, p.presence_penalty, p.frequency_penalty, prompt, known)

    def _prompt(self, request: Request) -> tuple[frozenset[int], Tensor]:
        """The distinct ids of its prompt, worked out once for all samples of it."""
        if request.group < 0 or self._latest[0] != request.group:
            known = frozenset(request.prompt)
            self._latest = request.group, known, torch.tensor(sorted(known), dtype=torch.int64)
        return self._latest[1], self._latest[2]

    def advance(self, state: Seen, token: int) -> Seen:
        counts = {**state.counts, token: state.counts.get(token, 0) + 1}
        is_fresh = token not in state.known and token not in state.counts
        return replace(state, counts=counts, fresh=(*state.fresh, token) if is_fresh else state.fresh)

    def apply(self, states: Sequence[Seen | None], logits: Tensor) -> Tensor:
        for row, state in zip(logits, states):
            if state is None:
                continue
            if state.repetition != 1:
                ids = torch.cat([state.prompt, torch.tensor(state.fresh, dtype=torch.int64)])
                seen = row[ids]
                row[ids] = torch.where(seen > 0, seen / state.repetition, seen * state.repetition)
            if state.counts and (state.presence or state.frequency):
                times = torch.tensor(list(state.counts.values())).to(row)
                row[torch.tensor(list(state.counts))] -= state.presence + state.frequency * times
        return logits

    def rules(self, state: Seen) -> Mapping[str, Any]:
        return {
            "repetition": state.repetition, "presence": state.presence, "frequency": state.frequency,
            "prompt": state.prompt, "fresh": state.fresh, "counts": state.counts,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class PathText:
    """A path and the callables that want to see it."""

    request: int
    functions: tuple[LogitsFn, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()


class Custom:
    """The user's own callables, in order. One that fails empties its row, so that its request fails alone."""

    def __init__(self) -> None:
        self.failures: dict[int, str] = {}
        """{request id: why its callable failed last}."""

    def start(self, request: Request) -> PathText | None:
        functions = tuple(request.params.processors)
        return PathText(request.id, functions, tuple(request.prompt)) if functions else None

    def advance(self, state: PathText, token: int) -> PathText:
        return replace(state, output=(*state.output, token))

    def apply(self, states: Sequence[PathText | None], logits: Tensor) -> Tensor:
        for i, state in enumerate(states):
            if state is not None:
                logits[i] = self._call(state, logits[i])
        return logits

    def rules(self, state: PathText) -> None:
        return None

    def _call(self, state: PathText, row: Tensor) -> Tensor:
        try:
            for function in state.functions:
                shape, row = row.shape, function(state.prompt, state.output, row)
                if not isinstance(row, Tensor) or row.shape != shape:
                    raise TypeError(f"it returned {type(row).__name__}, not logits of shape {tuple(shape)}")
            if row.isnan().any():
                raise ValueError("it returned NaN")
        except Exception as error:  # a user's code: whatever it raises is that request's affair
            self.failures[state.request] = f"{type(error).__name__}: {error}"
            return torch.tensor(float("-inf"))
        return row
