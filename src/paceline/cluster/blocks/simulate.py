"""Requests through blocks on a virtual clock: queues, batches and hops, without models.

A request passes its chain once for each token. At each block it goes to the instance with the least of waiting, work
and way (section 5.2), which keeps the request afterwards: its K/V is there. An instance takes what waits, up to a
batch, when its device is free; a batch of n rows costs the block's time and `row` of it for each further row.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from paceline.model.spread.place import BlockPlaces, Demand, ZooBlock


@dataclass(frozen=True, slots=True)
class Ways:
    """What the way between devices takes."""

    near: float
    """Seconds between devices of one server, for one row."""
    far: float
    """Seconds between servers."""
    row: float = 0.03
    """What a further row of a batch costs, as a share of the first."""
    batch: int = 32
    """Most rows of a batch."""


@dataclass(slots=True)
class Journey:
    """A request on its way."""

    chain: tuple[str, ...]
    tokens: int
    """Passes that are left."""
    begun: float
    step: int = 0
    at: int = -1
    """Device where it was last."""
    owner: dict[str, int] = field(default_factory=dict)
    """Device that has its K/V, by block."""


@dataclass(slots=True)
class ZooOutcome:
    """What became of the requests."""

    seconds: list[float] = field(default_factory=list)
    """Time of each request, from its arrival to its last token."""
    tokens: int = 0
    end: float = 0.0
    near: int = 0
    far: int = 0
    """Hops within and between servers."""
    batches: int = 0
    rows: int = 0
    busy: float = 0.0
    """Seconds of work of all devices."""

    def percentile(self, share: float) -> float:
        """Nearest rank."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class ZooSimulator:
    """`blocks` by name, at `places`."""

    def __init__(self, blocks: Mapping[str, ZooBlock], places: BlockPlaces, ways: Ways) -> None:
        self.blocks, self.places, self.ways = blocks, places, ways
        self.queues = {(name, device): list[Journey]() for name, at in places.at.items() for device in at}
        self.waiting = [0.0] * len(places.devices)
        """Seconds of work that wait at each device, in batches of one row."""
        self.free = [0.0] * len(places.devices)
        self.events: list[tuple[float, int, str, object]] = []
        self.count = 0
        self.out = ZooOutcome()

    def run(self, demands: Sequence[Demand], requests: int, tokens: int, seed: int = 0) -> ZooOutcome:
        """`requests` of `tokens` passes each, whose models are drawn by their rates."""
        rng, total = Random(seed), sum(it.rate for it in demands)
        now = 0.0
        for _ in range(requests):
            now += rng.expovariate(total / tokens)
            [demand] = rng.choices(demands, [it.rate for it in demands])
            self._at(now, "arrive", Journey(demand.chain, tokens, now))
        while self.events:
            now, _, kind, what = heapq.heappop(self.events)
            if kind == "arrive":
                assert isinstance(what, Journey)
                self._enqueue(now, what)
            else:
                assert isinstance(what, int)
                self._serve(now, what)
        self.out.end = now
        return self.out

    def _at(self, when: float, kind: str, what: object) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, kind, what))

    def _enqueue(self, now: float, it: Journey) -> None:
        """To the best instance of its next block."""
        name = it.chain[it.step]
        device = it.owner.get(name)
        if device is None:
            device = min(
                self.places.at[name],
                key=lambda i: (self.waiting[i] + max(0.0, self.free[i] - now) + self._way(it.at, i), i),
            )
            it.owner[name] = device
        way = self._way(it.at, device)
        if it.at >= 0 and it.at != device:
            if self.places.devices[it.at].server == self.places.devices[device].server:
                self.out.near += 1
            else:
                self.out.far += 1
        if way:
            it.at = device
            self._at(now + way, "arrive", it)
            return
        it.at = device
        self.queues[name, device].append(it)
        self.waiting[device] += self.blocks[name].seconds * self.ways.row
        if self.free[device] <= now:
            self._serve(now, device)

    def _way(self, source: int, target: int) -> float:
        if source < 0 or source == target:
            return 0.0
        devices = self.places.devices
        return self.ways.near if devices[source].server == devices[target].server else self.ways.far

    def _serve(self, now: float, device: int) -> None:
        """The longest queue of a device, once it is free; what is done moves on then."""
        if self.free[device] > now:
            return
        mine = [(len(queue), name) for (name, at), queue in self.queues.items() if at == device and queue]
        if not mine:
            return
        name = max(mine)[1]
        queue = self.queues[name, device]
        batch, self.queues[name, device] = queue[: self.ways.batch], queue[self.ways.batch :]
        self.waiting[device] -= len(batch) * self.blocks[name].seconds * self.ways.row
        seconds = self.blocks[name].seconds * (1 + self.ways.row * (len(batch) - 1))
        self.free[device] = end = now + seconds
        self.out.busy += seconds
        self.out.batches += 1
        self.out.rows += len(batch)
        for it in batch:
            it.step += 1
            if it.step == len(it.chain):
                it.step, it.tokens = 0, it.tokens - 1
                self.out.tokens += 1
                if not it.tokens:
                    self.out.seconds.append(end - it.begun)
                    continue
            self._at(end, "arrive", it)
        self._at(end, "serve", device)
