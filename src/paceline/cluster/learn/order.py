"""A graph network that orders ready calls (Decima, arXiv 1810.01963; DeepSoCS, arXiv 2005.07666), some hundred
parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from paceline.cluster.learn.features import FEATURES, LEFT_PLACE, RANK_PLACE, CallGraph, graph
from paceline.cluster.learn.files import loaded
from paceline.cluster.workflow.heft import Ranks
from paceline.cluster.workflow.tasks import CallPredictor, Instance, Task

EMBEDDING_WIDTH = 6
"""Numbers of an embedding."""
LEAST_LEFT, OWN_RANK = 8.0, 1.0
"""At first: weights of what the workflow has left, and of the call's rank."""
SHIPPED_ORDER = Path(__file__).parent / "trained" / "order.safetensors"
"""Weights that planner `learned` takes where no others are given."""


class OrderNetwork(nn.Module):
    """Scores of ready calls. An embedding x gathers messages from children to parents, height by height, as
    `x + g(sum f(x_child))` with f and g shared; y sums up a workflow and z all of them; a score comes of (features, x,
    y, z) and of a linear function of the features, which at first is the rule "least left": the workflow with the least
    seconds left, and within it the rank. Training begins there. Permuting calls permutes the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, EMBEDDING_WIDTH)
        self.f = nn.Sequential(nn.Linear(EMBEDDING_WIDTH, EMBEDDING_WIDTH), nn.LeakyReLU())
        self.g = nn.Sequential(nn.Linear(EMBEDDING_WIDTH, EMBEDDING_WIDTH), nn.LeakyReLU())
        self.summary = nn.Sequential(nn.Linear(FEATURES + EMBEDDING_WIDTH, EMBEDDING_WIDTH), nn.LeakyReLU())
        self.all = nn.Sequential(nn.Linear(EMBEDDING_WIDTH, EMBEDDING_WIDTH), nn.LeakyReLU())
        last = nn.Linear(12, 1)
        self.score = nn.Sequential(nn.Linear(FEATURES + 3 * EMBEDDING_WIDTH, 12), nn.LeakyReLU(), last)
        self.rule = nn.Linear(FEATURES, 1)
        with torch.no_grad():
            for each in (self.rule.weight, self.rule.bias, last.weight, last.bias):
                each.zero_()
            self.rule.weight[0, LEFT_PLACE] = -LEAST_LEFT
            self.rule.weight[0, RANK_PLACE] = OWN_RANK

    def forward(self, g: CallGraph) -> Tensor:
        """float32 [R]."""
        x = nn.functional.leaky_relu(self.embed(g.features))
        for places in g.levels:
            message = self.f(x[g.children[places]])
            x = x + self._up(message, g.parents[places], len(x))
        own = self.summary(torch.cat((g.features, x), 1))
        y = torch.zeros(len(g.decision), EMBEDDING_WIDTH).index_add(0, g.workflow, own) / 10.0
        z = torch.zeros(int(g.decision[-1]) + 1, EMBEDDING_WIDTH).index_add(0, g.decision, self.all(y)) / 5.0
        at = g.ready
        parts = (g.features[at], x[at], y[g.workflow[at]], z[g.decision[g.workflow[at]]])
        out: Tensor = (self.score(torch.cat(parts, 1)) + self.rule(g.features[at]))[:, 0]
        return out

    def _up(self, message: Tensor, parents: Tensor, rows: int) -> Tensor:
        """g of the sums, in the rows of parents alone."""
        unique, index = torch.unique(parents, return_inverse=True)
        sums = torch.zeros(len(unique), EMBEDDING_WIDTH).index_add(0, index, message)
        return torch.zeros(rows, EMBEDDING_WIDTH).index_add(0, unique, self.g(sums))


@dataclass(slots=True)
class LearnedOrder:
    """The order of a network's scores. Where it is unsure (its softmax is as flat as `flat` of the flattest, or a score
    is not finite) the calls go by rank."""

    network: OrderNetwork
    predictor: CallPredictor
    flat: float = 0.98
    fallback: Ranks | None = None
    unsure: int = 0
    """How often the network was unsure of its order."""

    def order(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[Task]:
        if len(ready) == 1:
            return list(ready)
        with torch.inference_mode():
            scores = self.network(graph(ready, instances, self.predictor, now))
            spread = float(entropy(scores[None]))
        if not isfinite(spread) or spread > self.flat * log(len(ready)):
            self.unsure += 1
            return (self.fallback or Ranks()).order(ready, instances, now)
        values = scores.tolist()
        return [ready[at] for at in sorted(range(len(ready)), key=lambda at: (-values[at], ready[at].id))]


def entropy(scores: Tensor) -> Tensor:
    """Entropy of the softmax of each row [D, R], in nats; entries far below the rest contribute nothing. Returns
    float32 [D]."""
    chances = scores.softmax(1)
    return -(chances * chances.clamp_min(1e-30).log()).sum(1)


def save(network: OrderNetwork, path: Path) -> None:
    save_file(network.state_dict(), path, {"format": "paceline-workflow-order-2"})


def load(path: Path = SHIPPED_ORDER) -> OrderNetwork:
    """InputError for a file that holds no such network."""
    return loaded(OrderNetwork(), path, "an order made by `paceline train workflow-order`")
