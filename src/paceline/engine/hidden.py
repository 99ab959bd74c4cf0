"""Hidden states of the target that a drafter will still need: of committed rows that its own K/V group lacks."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.cache.txn import Txn
from paceline.core.component import Component
from paceline.core.request import Request


class HiddenStates:
    """{request: {tap: hidden states [N, H]}} of the last N committed rows of each text, within a budget of bytes.

    They are held as far as the group that lags most still needs them, and at least of the last row. What is dropped
    costs a recomputation of those rows (`take_lost`), never a text.
    """

    def __init__(self, components: Mapping[str, Component], budget: int) -> None:
        """`budget`: bytes for all requests together."""
        self.groups = [name for name, it in components.items() if it.taps and it.kv_bytes_per_token]
        """Components with K/V of their own that is made from hidden states."""
        self.budget, self.bytes = budget, 0
        self._lost: list[tuple[Txn, Request]] = []
        self._held: dict[int, dict[str, Tensor]] = {}

    def keep(self, request: Request, txn: Txn, new: Mapping[str, Tensor]) -> None:
        """Add the rows that a step has committed. `new`: [rows, H] of each tap; after the commit."""
        number, before = request.id, self._held.get(request.id, {})
        self.drop(number)
        rows = txn.lease.length - txn.base
        joined = {
            tap: torch.cat([before[tap], states]) if tap in before else states.clone() for tap, states in new.items()
        }
        need = max(1, txn.lease.length - self._frontier(txn, self.groups))
        self._held[number] = {tap: states[-need:] for tap, states in joined.items()}
        self.bytes += size(self._held[number])
        if self.bytes > self.budget and need > rows:  # its own rows would not fit next to what others hold
            self.drop(number)
            self._lost.append((txn, request))

    def take_lost(self) -> list[tuple[Txn, Request, int]]:
        """Requests whose hidden states were dropped since this was last asked, with the rows that they still have."""
        lost, self._lost = self._lost, []
        found = [(txn, request, self._frontier(txn, self.groups)) for txn, request in lost]
        return [(txn, request, length) for txn, request, length in found if length < txn.lease.length]

    def of(self, request: int, txn: Txn, group: str | None) -> dict[str, Tensor]:
        """Hidden states by tap, of the committed rows that `group` lacks; None: of the last row. Fewer rows if some
        were dropped."""
        need = 1 if group is None else txn.base - txn.lease.frontier.get(group, txn.base)
        return {
            tap: states[len(states) - min(need, len(states)) :] for tap, states in self._held.get(request, {}).items()
        }

    def drop(self, request: int) -> None:
        """A request has ended or gave up its lease."""
        self.bytes -= size(self._held.pop(request, {}))

    @staticmethod
    def _frontier(txn: Txn, groups: Sequence[str]) -> int:
        """Rows that every group of these has complete."""
        return min([txn.lease.frontier[group] for group in groups if group in txn.lease.frontier], default=1 << 62)


def size(states: Mapping[str, Tensor]) -> int:
    """Bytes of what is held."""
    return sum(it.numel() * it.element_size() for it in states.values())
