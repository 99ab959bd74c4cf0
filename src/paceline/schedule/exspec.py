"""Groups of equal shape (EXSPEC, arXiv 2510.22876, section 4), for machines on which a step of equal row counts and
lengths is cheaper than a fuller one of mixed shape: fixed graphs, static shapes. Nothing needs it to be correct here:
pages know no padding."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from paceline.core.request import Request
from paceline.schedule import Order, SchedulePolicy

LENGTH_CLASS = 64
"""Texts are as long as one another within such a step, tokens."""
PATIENCE_ROUNDS = 4
"""Rounds, of as many steps as it takes to serve all requests once, for which a decoding request may be left out before
its own group is the next."""

Shape = Callable[[Request], Hashable]


@dataclass(slots=True)
class Grouped:
    """Wraps a policy: of its turn at most `batch` decode in a step. All decoding requests are the window; the first
    bucket of equal shape with `batch` in it, in order, is the group, else the oldest are. Prompts are not touched."""

    inner: SchedulePolicy
    batch: int
    shape: Shape
    grouped: int = 0
    """Steps whose group was of one shape."""
    fallback: int = 0
    """Steps that had to mix."""
    _left_out: dict[int, int] = field(default_factory=dict)
    """Steps since a request decoded."""

    @property
    def order(self) -> Order:
        return self.inner.order

    def turn(self, order: Sequence[Request], now: float) -> list[Request]:
        turn = self.inner.turn(order, now)
        window = [r for r in turn if r.pending == 1 and not r.layer]
        group = self._group(window) if len(window) > self.batch else window
        served = {r.id for r in group}
        if window:
            self._left_out = {r.id: self._left_out.get(r.id, 0) + 1 for r in window if r.id not in served}
        return [r for r in turn if r.pending > 1 or r.layer or r.id in served]

    def rows(self, turn: Sequence[Request], now: float) -> int:
        return self.inner.rows(turn, now)

    @property
    def rate(self) -> float:
        """Share of the steps with a choice whose group was of one shape."""
        return self.grouped / max(self.grouped + self.fallback, 1)

    def _group(self, window: Sequence[Request]) -> list[Request]:
        """`batch` of them. A request that was left out too long goes first, in a group of the same shape where there is
        one."""
        patience = PATIENCE_ROUNDS * -(-len(window) // self.batch)
        late = [r for r in window if self._left_out.get(r.id, 0) >= patience]
        late.sort(key=lambda r: -self._left_out[r.id])
        urgent = {r.id for r in late}
        window = [*late, *(r for r in window if r.id not in urgent)]
        buckets: dict[Hashable, list[Request]] = {}
        for request in window:
            bucket = buckets.setdefault(self.shape(request), [])
            bucket.append(request)
            if len(bucket) == self.batch and (not late or late[0] in bucket):
                self.grouped += 1
                return bucket
        self.fallback += 1
        return window[: self.batch]


def shape(nodes: Mapping[str, int]) -> Shape:
    """Rows of a chain of `nodes` by drafter, and length class."""
    return partial(_shape, nodes)


def _shape(nodes: Mapping[str, int], request: Request) -> Hashable:
    wish = request.params.max_nodes
    chain = nodes.get(request.drafter, 0) if wish is None else wish
    return min(chain, request.left - 1) + 1, len(request.tokens) // LENGTH_CLASS
