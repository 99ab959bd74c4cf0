"""A proposer as the native library calls it: a native one directly, one in Python by a callback."""

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_void_p, cast, sizeof
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import InputError
from paceline.core.proposer import Continuation, Draft, Proposer, ProposerTable, Turn
from paceline.native.structs import KEPT_CALLBACK, MOST_NODES, PROPOSE, CProposer, integers_in


class Callbacks:
    """The table of functions of one run. What a proposer raises in Python ends its drafts, and is raised behind the
    run."""

    def __init__(
        self,
        library: Any,
        proposer: Proposer,
        texts: Sequence[Continuation],
        vocab: int,
        taps: Sequence[str] = (),
        width: int = 0,
    ) -> None:
        """`taps`: hidden states of `width` numbers that the run reads."""
        self.proposer, self.texts, self.vocab, self.taps, self.width = proposer, texts, vocab, taps, width
        self.error: Exception | None = None
        self.table = proposer.native()
        self.held: list[Any] = []
        if self.table is not None:
            self.c = self._entry(library, self.table)
        else:
            self.calls = PROPOSE(self._propose), KEPT_CALLBACK(self._kept)  # held: the library has their addresses
            self.c = CProposer(None, *(cast(call, c_void_p) for call in self.calls), None)

    def _entry(self, library: Any, table: ProposerTable) -> CProposer:
        """A table of functions, and those of its parts, as the library takes it."""
        if table.parts:
            parts = (CProposer * len(table.parts))(*(self._entry(library, part) for part in table.parts))
            self.held.append(parts)
            table.state.part = ctypes.addressof(parts)
        if table.taps:
            self.held.append(places := integers_in([self.taps.index(tap) for tap in table.taps]))
            table.state.tap = ctypes.addressof(places)
        calls = [cast(getattr(library, f"{table.name}_{end}"), c_void_p) for end in ("propose", "kept", "done")]
        return CProposer(ctypes.addressof(table.state), *calls)

    def ended(self) -> Exception | None:
        """Behind the run: what the proposer raised."""
        if self.table is not None and self.table.done is not None:
            self.table.done()
        return self.error

    def _turns(self, count: int, turns: Any) -> list[Turn]:
        each = [turns[i] for i in range(count)]
        whose = self.proposer.texts
        return [
            Turn(t.place, t.tokens[: t.said], self.texts[whose[t.place]], t.room, t.most, self._hidden(t)) for t in each
        ]

    def _hidden(self, turn: Any) -> dict[str, Tensor]:
        """Its hidden states by tap."""
        if not turn.hidden:
            return {}
        size = self.width * sizeof(c_float)
        first = (cast(turn.hidden, c_void_p).value or 0) - (turn.said - 1) * size
        starts = (first + place * turn.taps * sizeof(c_float) for place in range(len(self.taps)))
        rows = [(c_float * (turn.said * self.width)).from_address(start) for start in starts]
        read = [torch.frombuffer(row, dtype=torch.float32).view(-1, self.width) for row in rows]
        return dict(zip(self.taps, read))

    def _propose(self, state: Any, count: int, turns: Any, drafts: Any) -> None:
        try:
            mine = self._turns(count, turns)
            found = self.proposer.propose(mine) if self.error is None else []
            for i, (turn, (tokens, parents)) in enumerate(zip(mine, found)):
                check_draft((tokens, parents), min(self.proposer.nodes[turn.place], turn.most), turn.room, self.vocab)
                drafts[i].token[: len(tokens)], drafts[i].parent[: len(tokens)] = tokens, parents
                drafts[i].count = len(tokens)
        except Exception as error:
            self.error = error
            for i in range(count):
                drafts[i].count = 0

    def _kept(self, state: Any, count: int, turns: Any, drafts: Any, kept: Any) -> None:
        try:
            if self.error is None:
                self.proposer.kept(self._turns(count, turns), [kept[i].node[: kept[i].count] for i in range(count)])
        except Exception as error:
            self.error = error


def check_draft(draft: Draft, most: int, room: int, vocab: int) -> None:
    """InputError unless a draft is a tree of at most `most` nodes, none deeper than `room`."""
    tokens, parents = draft
    most, depth = min(most, MOST_NODES), dict[int, int]({-1: 0})
    for node, (token, parent) in enumerate(zip(tokens, parents)):
        depth[node] = depth.get(parent, room) + 1
        if not 0 <= token < vocab or not -1 <= parent < node or depth[node] > room or node >= most:
            raise InputError(
                f"Node {node} is token {token!r} below {parent}; a draft here has at most {most} nodes, none "
                f"deeper than {room}, of tokens below {vocab}."
            )
