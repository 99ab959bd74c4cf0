"""Does a text's K/V in a drafter's group pay for itself? A prompt's is computed once, whatever is drafted afterwards: a
short answer to a long prompt can be served sooner without it. And while many decode, no draft may pay at all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.core.plan import Work
from paceline.core.request import Request
from paceline.plan.allocate import Point, Price, best
from paceline.plan.cost import Drafting, StepTimes

RATE = 1 / 8
"""How quickly what is usual follows what came."""
CROWD = 16
"""So many alike say what more would."""
SPARE = 1 << 20
HOPED = 0.85
"""Chance of a token of a drafter of whom little is known, where it is asked what it might bring."""
Points = dict[str, list[Point]]


@dataclass(slots=True)
class Usual:
    """How long answers are, in tokens, among requests whose limit is of one size (a power of two); and how much of a
    prompt is found in the cache."""

    answers: dict[int, float] = field(default_factory=dict)
    cached: float = 0.0

    def hear(self, request: Request) -> None:
        """A request has ended."""
        if request.finish not in ("stop", "length"):
            return
        size, length = request.max_tokens.bit_length(), float(len(request.output))
        before = self.answers.get(size, length)
        self.answers[size] = before + RATE * (length - before)
        self.cached += RATE * (request.stats.cached / max(1, len(request.prompt)) - self.cached)

    def answer(self, request: Request) -> float:
        """Tokens that are still expected of it; as many as it may have, where none like it has ended yet."""
        usual = self.answers.get(request.max_tokens.bit_length(), float(request.max_tokens))
        return max(1.0, min(usual, request.max_tokens) - len(request.output))

    def rows(self, request: Request) -> int:
        """Tokens whose K/V has to be computed before it can draft."""
        return max(1, round(len(request.tokens) * (1.0 - self.cached)))


def prompt_seconds(times: StepTimes, drafters: Sequence[str], rows: int) -> float:
    """Of a drafter's passes over so many rows. They are not measured: its pass is to the target's as it is with one
    row, at most as long."""
    alone = times.of_target(Work.of([(1, 1, 1)]))
    share = min(times.of_draft(Drafting(name, 1, 1, 1)) for name in drafters) / alone
    return min(1.0, share) * times.of_target(Work.of([(rows, 0, 1)]))


def saved(price: Price, points: Points, drafters: Sequence[str], count: int) -> float:
    """Seconds of a token that drafts of these save, where `count` requests could all be given `points`."""
    others = {name: each for name, each in points.items() if name not in drafters}
    (_, less), (_, more) = (best(dict.fromkeys(range(count), each), SPARE, price) for each in (others, points))
    return 1.0 / less - 1.0 / more


def repays(
    times: StepTimes, usual: Usual, request: Request, drafters: Sequence[str], points: Callable[[int], Points],
    price: Callable[[int], Price], beside: int,
) -> bool:  # fmt: skip
    """Do drafts of these, who share a group, save more than the group's K/V of the prompt costs, `beside` others?
    `points`, `price`: of so many requests alike."""
    count = min(beside + 1, CROWD)
    gain = usual.answer(request) * saved(price(count), points(count), drafters, count)
    return gain > prompt_seconds(times, drafters, usual.rows(request))


def hoped(sizes: Sequence[int], chain: bool, deepest: int) -> list[Point]:
    """What a drafter of whom little is known might bring at each of its sizes."""
    tokens = [sum(HOPED**depth for depth in range(1, min(n, deepest) + 1)) for n in sizes]
    return [Point(n, n if chain else 0, each, float(n)) for n, each in zip(sizes, tokens)]


def gain(price: Price, drafter: str, points: Sequence[Point], count: int) -> float:
    """Speed of `count` requests that this drafter gives the best of `points`, over that of plain decoding."""
    seconds = [price.of(dict.fromkeys(range(count), (drafter, point))) for point in points]
    return max((1.0 + point.tokens) / took for point, took in zip(points, seconds)) * price.of({})
