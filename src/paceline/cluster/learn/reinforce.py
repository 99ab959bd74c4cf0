"""Training of the order network: REINFORCE with an input-dependent baseline (Decima, section 5.3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from paceline.cluster.learn.features import CallGraph, graph, join
from paceline.cluster.learn.order import LearnedOrder, OrderNetwork, entropy
from paceline.cluster.learn.scenes import Scene, scene
from paceline.cluster.learn.state import go_on, keep, weights
from paceline.cluster.workflow.heft import Ranks
from paceline.cluster.workflow.tasks import CallPredictor, Instance, Task

PAD = -1e9
"""A score that is never drawn; infinity would make gradients undefined."""


@dataclass(slots=True)
class DrawnOrder:
    """An order that draws without replacement by the network's softmax (Gumbel-max), and remembers."""

    network: OrderNetwork
    predictor: CallPredictor
    generator: torch.Generator
    seen: list[tuple[float, CallGraph, Tensor]] = field(default_factory=list)
    """(when, what, the order drawn as places in `ready`)."""

    def order(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[Task]:
        if len(ready) == 1:
            return list(ready)
        seen = graph(ready, instances, self.predictor, now)
        with torch.no_grad():
            scores = self.network(seen)
        noise = -torch.log(-torch.log(torch.rand(len(ready), generator=self.generator).clamp_(1e-9, 1 - 1e-7)))
        places = (scores + noise).argsort(descending=True)
        self.seen.append((now, seen, places))
        return [ready[place] for place in places.tolist()]


@dataclass(frozen=True, slots=True)
class ReinforcementPlan:
    """How long and how hard to train."""

    minutes: float = 5.0
    episodes: int = 8
    """Runs of one arrival sequence that share a baseline."""
    rate: float = 3e-3
    entropy: float = 0.01
    """Weight of the entropy at first; it falls to nothing."""
    noise: float = 0.5
    """Half of the scenes have up to this share of noise in times."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ReinforcementProgress:
    """Result of one update: mean completion time divided by HEFT's on the same scene, and the time used."""

    update: int
    ratio: float
    seconds: float
    held: float
    """The best so far on the scenes for validation, over HEFT's."""


def train(
    plan: ReinforcementPlan,
    report: Callable[[ReinforcementProgress], None] = lambda progress: None,
    state: Path | None = None,
) -> tuple[OrderNetwork, int]:
    """A network after `plan.minutes` of training, and its number of updates. The weights kept are those that did best
    on scenes of its own for validation, among every fiftieth update's. With `state` the run is kept in that file, and
    goes on from it where it is there."""
    torch.manual_seed(plan.seed)
    network = OrderNetwork()
    optimiser = torch.optim.Adam(network.parameters(), lr=plan.rate)
    rng = np.random.default_rng([plan.seed, 1])
    held = [scene(np.random.default_rng([plan.seed, 2, n]), noise=plan.noise * (n % 2)) for n in range(16)]
    heft = [each.play(Ranks()).mean() for each in held]
    before, update = 0.0, 0
    if state is not None and state.exists():
        found = go_on(state, network, optimiser, rng, plan.seed)
        before, update, best = found["used"], found["update"], found["best"]
    else:
        best = (validate(network, held, heft), weights(network))
    begun, whole = monotonic(), 60.0 * plan.minutes
    while (used := before + monotonic() - begun) < whole:
        for group in optimiser.param_groups:
            group["lr"] = plan.rate * max(0.05, 1.0 - used / whole)
        every, noise = float(rng.uniform(30.0, 60.0)), plan.noise * float(rng.uniform()) * float(rng.uniform() > 0.5)
        given = scene(rng, 14, every, noise, spread=float(rng.uniform(0.3, 1.4)))
        generator = torch.Generator().manual_seed(int(rng.integers(1 << 31)))
        ratio = step(network, optimiser, given, plan, generator, bonus=plan.entropy * (1.0 - used / whole))
        update += 1
        if update % 10 == 0:
            now = validate(network, held, heft) if update % 50 == 0 else best[0]
            if now < best[0]:
                best = (now, weights(network))
            if state is not None:
                rest = {"used": before + monotonic() - begun, "update": update, "best": best, "seed": plan.seed}
                keep(state, network, optimiser, rng, rest)
        report(ReinforcementProgress(update, ratio, before + monotonic() - begun, best[0]))
    network.load_state_dict(best[1])
    return network, update


def validate(network: OrderNetwork, scenes: Sequence[Scene], heft: Sequence[float]) -> float:
    """Mean over scenes of its mean completion over HEFT's."""
    done = [each.play(LearnedOrder(network, each.table)).mean() for each in scenes]
    return float(np.mean([a / b for a, b in zip(done, heft)]))


def step(
    network: OrderNetwork, optimiser: torch.optim.Optimizer, given: Scene, plan: ReinforcementPlan,
    generator: torch.Generator, *, bonus: float,
) -> float:  # fmt: skip
    """One update over episodes of a scene; its mean completion over HEFT's."""
    runs, totals = [], []
    for _ in range(plan.episodes):
        drawn = DrawnOrder(network, given.table, generator)
        outcome = given.play(drawn)
        runs.append((drawn.seen, returns([now for now, _, _ in drawn.seen], spans(given, outcome.finished))))
        totals.append(outcome.mean())
    base = baseline([([now for now, _, _ in seen], to_go) for seen, to_go in runs])
    advantages = torch.tensor([g - b for (_, to_go), row in zip(runs, base) for g, b in zip(to_go, row)])
    advantages /= advantages.std() + 1e-8
    decisions = [(what, places) for seen, _ in runs for _, what, places in seen]
    scores, places = padded(network(join([what for what, _ in decisions])), [places for _, places in decisions])
    loss = -(advantages * log_chance(scores, places) + bonus * entropy(scores)).mean()
    optimiser.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimiser.step()
    return float(np.mean(totals) / given.play(Ranks()).mean())


def padded(flat: Tensor, orders: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Scores of several decisions as rows [D, R], with `PAD` after the shorter ones, and their orders."""
    sizes = [len(each) for each in orders]
    scores = pad_sequence(list(torch.split(flat, sizes)), batch_first=True, padding_value=PAD)
    places = torch.arange(scores.shape[1]).repeat(len(orders), 1)
    for row, each in enumerate(orders):
        places[row, : len(each)] = each
    return scores, places


def log_chance(scores: Tensor, places: Tensor) -> Tensor:
    """Log-probability of orders drawn without replacement (Plackett-Luce): [D, R] twice, then [D]."""
    drawn = scores.gather(1, places)
    real = drawn > 0.5 * PAD
    rest = drawn.flip(1).logcumsumexp(1).flip(1)
    return torch.where(real, drawn - torch.where(real, rest, 0.0), 0.0).sum(1)


def spans(given: Scene, finished: dict[str, float]) -> list[tuple[float, float]]:
    """(arrival, end) of each graph."""
    return [(job.arrival, job.arrival + finished[f"w{n}"]) for n, job in enumerate(given.jobs)]


def returns(times: Sequence[float], lives: Sequence[tuple[float, float]]) -> list[float]:
    """Reward to go at each time: minus the seconds of open graphs from there on, so that the first is minus the sum
    of completion times of what is open or comes."""
    at = np.asarray(times)[:, None]
    starts, ends = (np.asarray(side)[None] for side in zip(*lives))
    left: list[float] = (-np.maximum(0.0, ends - np.maximum(starts, at))).sum(1).tolist()
    return left


def baseline(runs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[list[float]]:
    """For each run (times, returns) the mean over runs of their returns at its times, interpolated: it depends on the
    arrivals, which all share, and on nothing that a run chose."""
    curves = [(np.asarray(times), np.asarray(values)) for times, values in runs if len(times)]
    out = []
    for times, _ in runs:
        rows = [np.interp(times, *curve) for curve in curves]
        out.append(np.mean(rows, 0).tolist() if len(times) else [])
    return out
