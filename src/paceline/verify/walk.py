"""The walk that the rules which keep the distribution share: from the root down, one decision a node. All their
randomness is accept noise, which nothing else uses."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from paceline.core.noise import uniform
from paceline.core.request import Request
from paceline.sample.noise import gumbel, keys_tensor
from paceline.verify import Case, Rule

COIN, DRAW = 0, 1


class Walk(Rule, ABC):
    """A rule gives `choose`."""

    @abstractmethod
    def choose(self, case: Case, node: int, p: Tensor, request: Request, depth: int) -> tuple[int | None, int]:
        """The token after `node`, whose distribution is p, float64 [V], and the child that carries it: None where no
        child was accepted. `depth`: of the node below the root."""

    def judge(self, case: Case) -> None:
        for place in case.places:
            self._walk(case, place)

    def _walk(self, case: Case, place: int) -> None:
        node, verdict = case.roots[place], case.verdict
        request, depth = case.items[place].request, 0
        while True:
            line = case.line[node]
            p = case.sampler.probs([case.refs[line]], case.scores[line : line + 1])[0]
            verdict.score_rows[place].append(line)
            child, token = self.choose(case, node, p, request, depth)
            if child is None or not case.has_row(child):
                verdict.next_token[place] = token
                return
            verdict.path[place].append(child)
            node, depth = child, depth + 1


def coins(request: Request, depth: int, count: int) -> list[float]:
    """One uniform number in (0, 1) per sibling."""
    key = request.accept_noise.key
    return [uniform(key(request.index(depth), request.round, COIN, i)) for i in range(count)]


def draw(p: Tensor, request: Request, depth: int) -> int:
    """One token from p [V] with fresh accept noise; -1 where p has no mass (every token was masked)."""
    if not float(p.sum()) > 0:
        return -1
    key = request.accept_noise.key(request.index(depth), request.round, DRAW)
    noise = gumbel(keys_tensor([key], p.device), torch.arange(p.shape[0], device=p.device))[0]
    return int((torch.log(p) + noise).argmax())


def residual(p: Tensor, q: Tensor, rejected: int) -> Tensor:
    """norm([p - q]+), float64 [V]. Where round-off leaves no mass: p without the rejected token."""
    r = (p - q).clamp_min(0.0)
    if float(r.sum()) <= 1e-12:
        r = p.clone()
        r[rejected] = 0.0
    return r / r.sum()


def one_hot(p: Tensor, token: int) -> Tensor:
    """The distribution of a deterministic child."""
    q = torch.zeros_like(p)
    q[token] = 1.0
    return q
