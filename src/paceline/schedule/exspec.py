"""Groups of equal shape (EXSPEC, arXiv 2510.22876, section 4), for machines on which a step of equal row counts and
lengths is cheaper than a fuller one of mixed shape: a captured graph of a GPU, which has one number of rows, or a panel
of a CPU that a group fills and all would overflow. Step times decide, where they were measured. Nothing needs it to be
correct here: pages know no padding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from paceline.core.plan import Plan, Work
from paceline.core.request import Request
from paceline.schedule import Order, SchedulePolicy
from paceline.schedule.chunked import Forecast

LENGTH_CLASS = 64
"""Texts are as long as one another within such a step, tokens."""
PATIENCE_ROUNDS = 4
"""Rounds, of as many steps as it takes to serve all requests once, for which a decoding request may be left out before
its own group is the next."""

Expects = Callable[[Request], int]
"""Nodes that the length policy is likely to give a request."""


def none(request: Request) -> int:
    """Nobody drafts."""
    return 0


@dataclass(slots=True)
class Grouped:
    """Wraps a policy: of its turn at most `batch` decode in a step. All decoding requests are the window; the first
    bucket of equal shape with `batch` in it, in order, is the group, else the oldest are. Prompts are not touched."""

    inner: SchedulePolicy
    batch: int
    expects: Expects = none
    forecast: Forecast | None = None
    grouped: int = 0
    """Steps whose group was of one shape."""
    fallback: int = 0
    """Steps that had to mix."""
    whole: int = 0
    """Steps in which all decoded together: by step times that takes less for each of them."""
    levelled: int = 0
    """Steps of those in which the plan gave unequal rows, and the longer drafts were cut."""
    _alike: bool = False
    """Is the group of the step that is planned of one shape?"""
    _left_out: dict[int, int] = field(default_factory=dict)
    """Steps since a request decoded."""

    @property
    def order(self) -> Order:
        return self.inner.order

    def turn(self, order: Sequence[Request], now: float) -> list[Request]:
        turn = self.inner.turn(order, now)
        window = [r for r in turn if r.pending == 1 and not r.layer]
        self._alike = False
        group = self._chosen(window) if len(window) > self.batch else window
        served = {r.id for r in group}
        if window:
            self._left_out = {r.id: self._left_out.get(r.id, 0) + 1 for r in window if r.id not in served}
        return [r for r in turn if r.pending > 1 or r.layer or r.id in served]

    def rows(self, turn: Sequence[Request], now: float) -> int:
        return self.inner.rows(turn, now)

    def level(self, plan: Plan) -> Plan:
        """The plan of a step whose group is of one shape with as many rows for each: those of the shortest draft. How
        many a request gets is decided late (`auto`), so a shape is an expectation, and this is what makes it true."""
        drafting = [item for item in plan.items if item.request.pending == 1 and item.completes]
        least = min((item.nodes for item in drafting), default=0)
        longer = {item.request.id for item in drafting if item.nodes > least}
        if not self._alike or not longer:
            return plan
        self.levelled += 1
        cut = [item._replace(nodes=least, further=0) if item.request.id in longer else item for item in plan.items]
        return replace(plan, items=cut)

    @property
    def rate(self) -> float:
        """Share of the steps with a choice whose group was of one shape."""
        return self.grouped / max(self.grouped + self.fallback, 1)

    def shape(self, request: Request) -> tuple[int, int]:
        """Rows that the plan is going to give it, and its length class."""
        nodes = min(self.expects(request), request.left - 1)
        return nodes + 1, len(request.tokens) // LENGTH_CLASS

    def _chosen(self, window: Sequence[Request]) -> Sequence[Request]:
        """A group, or all, where that takes less time for each."""
        group, alike = self._group(window)
        if self.forecast is not None and self.forecast.measured:
            one, all_ = (
                self.forecast.predict(Work.of((rows, r.length, rows) for r in each for rows in [self.shape(r)[0]]))
                / len(each)
                for each in (group, window)
            )
            if all_ <= one:
                self.whole += 1
                return window
        self._alike = alike
        self.grouped += alike
        self.fallback += not alike
        return group

    def _group(self, window: Sequence[Request]) -> tuple[list[Request], bool]:
        """`batch` of them, and whether they are alike. A request that was left out too long goes first, in a group of
        the same shape where there is one."""
        patience = PATIENCE_ROUNDS * -(-len(window) // self.batch)
        late = [r for r in window if self._left_out.get(r.id, 0) >= patience]
        late.sort(key=lambda r: -self._left_out[r.id])
        urgent = {r.id for r in late}
        window = [*late, *(r for r in window if r.id not in urgent)]
        buckets: dict[tuple[int, int], list[Request]] = {}
        for request in window:
            bucket = buckets.setdefault(self.shape(request), [])
            bucket.append(request)
            if len(bucket) == self.batch and (not late or late[0] in bucket):
                return bucket, True
        return window[: self.batch], False
