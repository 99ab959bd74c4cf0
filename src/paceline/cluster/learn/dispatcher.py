"""A learned dispatching rule for job shops (Tassel et al., ICAPS 2023, arXiv 2306.05747): two small encoders."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from paceline.cluster.learn.files import loaded
from paceline.cluster.workflow.jssp.env import JOB_FEATURES, WINDOW_OPERATIONS, Env
from paceline.cluster.workflow.jssp.problem import Ints, Problem, Schedule

DISPATCH_WIDTH, DISPATCH_HIDDEN = 16, 32
MOST_WORK, IDLE = 10.0, -2.0
"""At first: the weight of a job's work left, and the logit of No-Op less that of the best job's."""
NO = -1e9
"""Logit of what is not legal."""


class DispatchAttention(nn.Module):
    """One head of attention with a feed-forward part, both residual, normed before."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(DISPATCH_WIDTH), nn.LayerNorm(DISPATCH_WIDTH)
        self.qkv, self.out = nn.Linear(DISPATCH_WIDTH, 3 * DISPATCH_WIDTH), nn.Linear(DISPATCH_WIDTH, DISPATCH_WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(DISPATCH_WIDTH, DISPATCH_HIDDEN), nn.ReLU(), nn.Linear(DISPATCH_HIDDEN, DISPATCH_WIDTH)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[..., T, DISPATCH_WIDTH]; `mask` [..., T, T] is true where a row may look."""
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = q @ k.transpose(-1, -2) / DISPATCH_WIDTH**0.5
        if mask is not None:
            weights = weights.masked_fill(~mask, NO)
        x = x + self.out(weights.softmax(-1) @ v)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class DispatchNetwork(nn.Module):
    """Logits of jobs and No-Op. An encoder over each job's window of operations, pooled; another over jobs that compete
    for a machine now; then a small head a job, and one for No-Op whose mean over jobs counts. To a job's logit comes a
    linear function of its next operation's features, which at first is the rule "most work remaining": training begins
    there. Permuting jobs permutes the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(JOB_FEATURES, DISPATCH_WIDTH)
        self.rule = nn.Linear(JOB_FEATURES, 1)
        nn.init.zeros_(self.rule.weight)
        nn.init.zeros_(self.rule.bias)
        with torch.no_grad():
            self.rule.weight[0, 4] = MOST_WORK
        self.ends = nn.Parameter(0.1 * torch.randn(2, DISPATCH_WIDTH))
        """Before the first operation, behind the last."""
        self.window, self.rivals = DispatchAttention(), DispatchAttention()
        self.job, self.idle = _head(), _head()

    def forward(self, features: Tensor, numbers: Tensor, machines: Tensor, legal: Tensor) -> Tensor:
        """Logits float32 [B, jobs + 1] from `Env.observe` and `Env.legal`; the last column is the choice to idle."""
        batch, jobs = machines.shape
        rule = self.rule(features[:, :, 1])[..., 0]
        x = self.embed(features) + _sinusoid(numbers)
        x = torch.where((numbers == -1)[..., None], self.ends[0], x)
        x = torch.where((numbers == -2)[..., None], self.ends[1], x)
        pooled = (
            self.window(x.view(batch * jobs, WINDOW_OPERATIONS, DISPATCH_WIDTH))
            .mean(1)
            .view(batch, jobs, DISPATCH_WIDTH)
        )
        ready = legal[:, :-1]
        rival = (machines[:, :, None] == machines[:, None]) & ready[:, :, None] & ready[:, None]
        mixed = self.rivals(pooled, rival | torch.eye(jobs, dtype=torch.bool))
        level = torch.where(ready, rule, NO).amax(1, keepdim=True)
        idle = level + IDLE + self.idle(mixed)[..., 0].mean(1, keepdim=True)
        logits = torch.cat((rule + self.job(mixed)[..., 0], idle), 1)
        return logits.masked_fill(~legal, NO)


def _head() -> nn.Sequential:
    last = nn.Linear(DISPATCH_HIDDEN, 1)
    nn.init.orthogonal_(last.weight, 0.01)
    return nn.Sequential(nn.Linear(DISPATCH_WIDTH, DISPATCH_HIDDEN), nn.Tanh(), last)


def _sinusoid(numbers: Tensor) -> Tensor:
    """Sinusoidal embedding [..., DISPATCH_WIDTH] of place numbers [...]; 0 for negative numbers."""
    rate = 10000.0 ** (-torch.arange(0, DISPATCH_WIDTH, 2) / DISPATCH_WIDTH)
    angle = numbers[..., None] * rate
    waves = torch.cat((angle.sin(), angle.cos()), -1)
    return torch.where((numbers >= 0)[..., None], waves, 0.0)


def logits(network: DispatchNetwork, env: Env, rows: Ints) -> Tensor:
    """float32 [R, jobs + 1]."""
    seen = (torch.from_numpy(each) for each in (*env.observe(rows), env.legal()[rows]))
    out: Tensor = network(*seen)
    return out


def solve(
    network: DispatchNetwork, problem: Problem, copies: int = 32, heats: tuple[float, float] = (0.5, 2.0), seed: int = 0
) -> Schedule:
    """The best of `copies` schedules, drawn at temperatures spread between `heats`; of one copy, the
    greedy one. Between two moments an order of all legal actions is drawn at once (Gumbel-max) and followed while it
    stays legal."""
    env, generator = Env([problem] * copies), torch.Generator().manual_seed(seed)
    heat = torch.linspace(*heats, copies) if copies > 1 else torch.zeros(1)
    with torch.inference_mode():
        while not env.done.all():
            rows = np.flatnonzero(~env.done)
            scores = logits(network, env, rows)
            luck = -torch.log(-torch.log(torch.rand(scores.shape, generator=generator).clamp_(1e-9, 1 - 1e-7)))
            keys = torch.where(scores > NO / 2, scores + heat[rows, None] * luck, NO)
            follow(env, rows, keys.argsort(dim=1, descending=True).numpy())
    makespans = env.makespans()
    return env.schedules()[int(makespans.argmin())]


def follow(env: Env, rows: Ints, orders: Ints) -> None:
    """Legal actions in their orders, while a copy's moment lasts; a No-Op ends it."""
    moment = env.now[rows].copy()
    for place in range(orders.shape[1]):
        actions = orders[:, place]
        can = env.legal()[rows, actions] & (env.now[rows] == moment)
        if place and not can.any():
            return
        env.act(rows[can], actions[can])


def save(network: DispatchNetwork, path: Path) -> None:
    save_file(network.state_dict(), path, {"format": "paceline-jssp-2"})


def load(path: Path) -> DispatchNetwork:
    """InputError for a file that holds no such network."""
    return loaded(DispatchNetwork(), path, "a job-shop policy made by `paceline train jssp`")


def best_of(network: DispatchNetwork, problems: Sequence[Problem], copies: int = 32) -> list[int]:
    """Makespans."""
    return [solve(network, problem, copies).makespan(problem) for problem in problems]
