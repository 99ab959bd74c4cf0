"""From answers to figures. Times go in as seconds and come out as milliseconds."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.bench.load.answer import TimedAnswer
from paceline.core.errors import InputError

SLO_METRICS = ("ttft", "tpot", "e2e")
"""What an SLO can bound."""
Slo = Mapping[str, float]
"""Metric -> milliseconds."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds; percentiles interpolate linearly between order statistics."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Iterable[float | None]) -> "Spread | None":
        """None where there are no values."""
        values = np.fromiter((s for s in seconds if s is not None), dtype=np.float64) * 1e3
        if not len(values):
            return None
        p50, p90, p95, p99 = np.percentile(values, (50, 90, 95, 99)).tolist()
        return cls(float(values.mean()), p50, p90, p95, p99, float(values.max()))


@dataclass(frozen=True, slots=True)
class Summary:
    """One run. `ttft` and `e2e` count from the intended arrival, `ttft_sent` and `e2e_sent` from the first byte out;
    latencies are of the requests that succeeded."""

    requests: int
    completed: int
    errors: dict[str, int]
    examples: dict[str, str]
    """Error kind -> the details of one example."""
    seconds: float
    """From the start of the run to the end of its last answer."""
    requests_per_second: float
    tokens_per_second: float
    prompt_tokens: int
    tokens: int
    counted: bool
    """Every answer had usage; else chunks stand for tokens."""
    ttft: Spread | None
    ttft_sent: Spread | None
    tpot: Spread | None
    tbt: Spread | None
    e2e: Spread | None
    e2e_sent: Spread | None
    goodput: float | None
    """Requests a second that succeeded within the SLO; None without one."""
    within: float | None
    """Their share of all requests."""
    tokens_per_chunk: float | None
    tau: float | None
    """Generated tokens / target passes, over the requests whose usage tells passes."""
    acceptance: float | None
    cached: float | None
    """Share of prompt tokens that the server found in its cache."""
    in_flight: float
    """Mean number of requests that had arrived and not ended."""
    in_flight_max: int


def summarize(answers: Sequence[TimedAnswer], slo: Slo | None = None) -> Summary:
    good = [a for a in answers if a.ok]
    seconds = max((a.ended for a in answers if a.ended is not None), default=0.0)
    tokens, prompt = sum(a.tokens for a in good), sum(a.usage.prompt for a in good if a.usage)
    chunks = sum(a.chunks for a in good)
    within = None if slo is None else sum(meets(a, slo) for a in good)
    told = [(a.tokens, a.usage) for a in good if a.usage and a.usage.passes]
    drafted = sum(u.drafted for _, u in told)
    per_second = 1 / seconds if seconds else 0.0
    return Summary(
        requests=len(answers),
        completed=len(good),
        errors=dict(Counter(a.error or "unfinished" for a in answers if not a.ok)),
        examples={a.error: a.detail for a in reversed(answers) if a.error},
        seconds=seconds,
        requests_per_second=len(good) * per_second,
        tokens_per_second=tokens * per_second,
        prompt_tokens=prompt,
        tokens=tokens,
        counted=all(a.usage for a in good),
        ttft=Spread.of(a.ttft for a in good),
        ttft_sent=Spread.of(None if a.ttft is None else a.ttft - a.held for a in good),
        tpot=Spread.of(a.tpot for a in good),
        tbt=Spread.of(gap for a in good for gap in a.gaps),
        e2e=Spread.of(a.e2e for a in good),
        e2e_sent=Spread.of(None if a.e2e is None else a.e2e - a.held for a in good),
        goodput=None if within is None else within * per_second,
        within=within / len(answers) if within is not None and answers else None,
        tokens_per_chunk=tokens / chunks if chunks else None,
        tau=sum(n for n, _ in told) / sum(u.passes or 0 for _, u in told) if told else None,
        acceptance=sum(u.accepted for _, u in told) / drafted if drafted else None,
        cached=sum(a.usage.cached for a in good if a.usage) / prompt if prompt else None,
        in_flight=sum(a.e2e or 0.0 for a in answers) * per_second,
        in_flight_max=most_in_flight(answers),
    )


def meets(answer: TimedAnswer, slo: Slo) -> bool:
    """Whether an answer kept every bound; a figure that it does not have (one token has no TPOT) keeps its bound."""
    own = {"ttft": answer.ttft, "tpot": answer.tpot, "e2e": answer.e2e}
    return all((value := own[name]) is None or value * 1e3 <= bound for name, bound in slo.items())


def parse_slo(words: str) -> dict[str, float]:
    """The bounds of "ttft:200,tpot:50,e2e:2000"."""
    found: dict[str, float] = {}
    for word in words.split(","):
        name, _, bound = word.strip().partition(":")
        try:
            value = float(bound)
        except ValueError:
            value = 0.0
        if name not in SLO_METRICS or name in found or not 0 < value < float("inf"):
            raise InputError(f"--slo is {words!r}, but it must be a list such as ttft:200,tpot:50,e2e:2000 (ms).")
        found[name] = value
    return found


def most_in_flight(answers: Sequence[TimedAnswer]) -> int:
    """The most requests that were between intended arrival and end at one time."""
    steps = [(a.intended, 1) for a in answers if a.ended is not None]
    steps += [(a.ended, -1) for a in answers if a.ended is not None]
    most = now = 0
    for _, change in sorted(steps):
        now += change
        most = max(most, now)
    return most
