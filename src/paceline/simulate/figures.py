"""What a decision log says of time: throughput, and each request's latencies."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from paceline.simulate.log import Arrival, Event, Step


@dataclass(slots=True)
class Figures:
    """Seconds. A token is out at its step's end."""

    tokens: int = 0
    steps: int = 0
    start: float = 0.0
    """The first arrival."""
    end: float = 0.0
    ttft: list[float] = field(default_factory=list)
    tbt: list[float] = field(default_factory=list)
    """Between two deliveries to one request, of one token or several."""
    latency: list[float] = field(default_factory=list)
    """Seconds from arrival to the last token, per request that ended."""
    drafters: Counter[str] = field(default_factory=Counter)
    """Drafter -> tokens of the steps in which it drafted."""

    @property
    def throughput(self) -> float:
        """Tokens per second."""
        return self.tokens / (self.end - self.start) if self.end > self.start else 0.0


def figures(events: Iterable[Event]) -> Figures:
    out, arrived, last = Figures(start=float("inf")), dict[int, float](), dict[int, float]()
    for event in events:
        if isinstance(event, Arrival):
            arrived[event.id] = event.now
            out.start = min(out.start, event.now)
        if not isinstance(event, Step) or event.outcome is None:
            continue
        out.end = event.now + event.outcome.times.total
        out.steps += 1
        for given, result in zip(event.decision.items, event.outcome.results):
            if result.emitted:
                first = given.id not in last
                waits = out.ttft if first else out.tbt
                waits.append(out.end - (arrived[given.id] if first else last[given.id]))
                last[given.id] = out.end
                out.tokens += result.emitted
                out.drafters[given.drafter if given.nodes else "none"] += result.emitted
            if result.finish is not None:
                out.latency.append(out.end - arrived[given.id])
    return out


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between order statistics."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])
