"""Does a prompt's K/V in a drafter's group pay for itself? It is computed once, whatever is drafted afterwards: a short
answer to a long prompt can be served sooner without it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.core.plan import Work
from paceline.core.request import Request
from paceline.plan.allocate import Point, Price, best
from paceline.plan.cost import Drafting, StepTimes

RATE = 1 / 8
"""How quickly what is usual follows what came."""
LOSS = 0.1
"""Share of a request's time that a group may be expected to cost on balance: which texts will draft better than most is
not known beforehand, and they are worth something."""
CROWD = 16
"""So many alike say what more would."""
SPARE = 1 << 20
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


def goodputs(price: Price, points: Points, drafters: Sequence[str], count: int) -> tuple[float, float]:
    """Tokens a second without drafts of these and with them, where `count` requests could all be given `points`."""
    others = {name: each for name, each in points.items() if name not in drafters}
    less, more = (best(dict.fromkeys(range(count), each), SPARE, price)[1] for each in (others, points))
    return less, more


def repays(
    times: StepTimes, usual: Usual, request: Request, drafters: Sequence[str], points: Callable[[int], Points],
    price: Callable[[int], Price], beside: int,
) -> bool:  # fmt: skip
    """Do drafts of these, who share a group, save what the group's K/V of the prompt costs, or nearly, `beside` others?
    `points`, `price`: of so many requests alike."""
    count, answer, rows = min(beside + 1, CROWD), usual.answer(request), usual.rows(request)
    less, more = goodputs(price(count), points(count), drafters, count)
    lost = prompt_seconds(times, drafters, rows) - answer * (1.0 / less - 1.0 / more)
    return lost < LOSS * (times.of_target(Work.of([(rows, 0, 1)])) + answer / less)
