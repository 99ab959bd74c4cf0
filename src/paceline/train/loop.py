"""The loop: batches, gradients, steps, checkpoints. One for every method.

A run lives in the directory `out`: `state.pt` (weights, optimizers, where it stands; written at least once a minute and
at the end), `log.csv` (a line every few steps), `curve.svg` (its picture), `answers-*.jsonl` (what the target said),
and at the end what `--draft` takes. A run that is started again there goes on where it was; one of `steps` steps ends
with the same bits as if it had never been stopped: every step draws from a generator of its own seed, and texts come in
an order of (seed, epoch).
"""

import csv
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from paceline.core.errors import InputError, memory_ended, no_room_for
from paceline.draft.companion import CONFIG
from paceline.engine.options import Dtype
from paceline.train import TRAINERS
from paceline.train.curve import draw, of_log
from paceline.train.data import Sample, answered, given, read_lines, usable
from paceline.train.evaluate import Scores, evaluate
from paceline.train.features import FeatureSource
from paceline.train.files import directory, discard, put, whole_lines, writing
from paceline.train.method import Loss, Method
from paceline.train.optimizers import OPTIMIZER_NAMES, optimizers
from paceline.train.target import TrainingTarget

STATE, LOG, CURVE, PACKING = "state.pt", "log.csv", "curve.svg", ".packing"
LOG_STEPS = 10
"""Steps between two lines of the log."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A training. All but `minutes`, `report` and `cache` must be the same when a run goes on."""

    method: str
    target: str | Path
    data: tuple[Path, ...]
    out: Path
    minutes: float | None = 10.0
    """Stop after so long; None: after `steps`."""
    steps: int | None = None
    """Number of steps to stop after; None: stop after `minutes`."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The method's own."""
    answers: bool | None = None
    """Learn from the target's answers to the prompts (None: as the method's card says), else from the data as it is."""
    prompts: int | None = 2000
    """Most prompts that the target answers."""
    answer: int = 160
    """Most tokens of an answer."""
    temperature: float = 0.0
    """Temperature of the target's answers."""
    length: int = 512
    """Most tokens of a text."""
    whole: bool = False
    """Learn from the tokens of the prompts, too: the target's distributions are known there as well."""
    tokens: int = 1024
    """Tokens of a batch."""
    accumulate: int = 1
    """Batches of a step."""
    optimizer: str = "adamw"
    """Or `muon`: see train/optimizers.py."""
    lr: float | None = None
    """Learning rate; None: the method's."""
    weight_decay: float = 0.0
    warmup: int = 20
    """Steps in which the learning rate rises."""
    clip: float = 1.0
    """Most length of a gradient."""
    seed: int = 0
    held: int = 24
    """Texts that are not trained on, for evaluation."""
    dtype: Dtype = "bfloat16"
    """Data type of the target, the one it will serve with."""
    cache: Path | None = None
    """A directory for hidden states and answers; None: answers in `out`, hidden states computed each time."""
    cache_bytes: int = 2 << 30
    save_seconds: float = 50.0

    def key(self) -> dict[str, Any]:
        """What must not change between a run and its going on."""
        free = ("minutes", "steps", "out", "cache", "cache_bytes", "save_seconds")
        return {k: v for k, v in json.loads(json.dumps(asdict(self), default=str)).items() if k not in free}


@dataclass(frozen=True)
class TrainingProgress:
    step: int
    loss: float
    conditional: tuple[float, ...]
    tau: float
    """Tokens per pass with a chain, from the accuracies of the latest steps: 1 + a0 + a0 a1 + ..."""
    tokens: int
    seconds: float
    share: float
    """How much of the run is done."""


@dataclass(frozen=True)
class Trained:
    """Result of a training."""

    out: Path
    steps: int
    tokens: int
    seconds: float
    scores: Scores | None
    held: tuple[Sample, ...] = ()
    """The texts that it was not trained on."""


def train(
    plan: TrainingPlan,
    report: Callable[[TrainingProgress], None] = lambda now: None,
    target: TrainingTarget | None = None,
) -> Trained:
    """Train, or go on. `target`: the plan's, where it is loaded already. Raises InputError, CheckpointError or
    RefusalError before anything is trained; InputError naming the batch where a loss is not finite."""
    check(plan)
    directory(plan.out)
    run, held = opened(plan, target)
    method, source, target = run.method, run.source, run.source.target
    run.go(report)
    scores = evaluate(method, source, list(range(held)))
    if scores is not None:
        method.accuracy = scores.accuracy
    facts = {"steps": run.step, "tokens": run.tokens, "seed": plan.seed, "target": target.fingerprint}
    if scores is not None:
        facts |= {
            "tau": round(scores.tau, 4),
            "tree_tau": round(scores.tree, 4),
            "conditional": [round(x, 4) for x in scores.conditional],
        }
    method.module.eval()
    pack(method, plan.out, facts)
    return Trained(plan.out, run.step, run.tokens, run.seconds, scores, tuple(source.samples[:held]))


def pack(method: Method, out: Path, facts: dict[str, Any]) -> None:
    """Write what `--draft` takes: in a directory of its own, then in place, the config last. What was there before
    stays until all is written, and a directory with a config is whole."""
    part = out / PACKING
    discard(part)
    with writing(out, part):
        method.save(part, facts)
        for file in sorted(part.iterdir(), key=lambda file: (file.name == CONFIG, file.name)):
            if (place := out / file.name).is_dir():
                discard(place)
            file.replace(place)
    discard(part)


def opened(plan: TrainingPlan, target: TrainingTarget | None = None) -> "tuple[TrainingRun, int]":
    """The run of this plan where it stands, and how many of its texts, the first ones, are held out. `target`: the
    plan's, where it is loaded already."""
    plan = replace(plan, lr=plan.lr or TRAINERS.card(plan.method).lr)
    target = target or TrainingTarget(plan.target, plan.dtype)
    torch.manual_seed(plan.seed)
    method = TRAINERS.get(plan.method)(target, plan.settings)
    samples = texts(plan, target)
    held = min(plan.held, max(1, len(samples) // 10))
    if plan.whole:
        samples[held:] = [replace(sample, start=1) for sample in samples[held:]]
    method.see(samples[held:])
    source = FeatureSource(target, samples, method.taps, plan.cache, plan.cache_bytes)
    run = TrainingRun(plan, method, source, list(range(held, len(samples))))
    run.restore()
    return run, held


def check(plan: TrainingPlan) -> None:
    """InputError for what would fail only later."""
    if plan.minutes is None and plan.steps is None:
        raise InputError("Neither minutes nor steps are given, so the training would not end; give one of them.")
    for name in ("minutes", "steps", "tokens", "accumulate", "length", "lr", "answer", "held"):
        value = getattr(plan, name)
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{name} is {value}, but it must be a positive number.")
    TRAINERS.card(plan.method)
    if plan.optimizer not in OPTIMIZER_NAMES:
        raise InputError(f"optimizer is {plan.optimizer!r}, but it must be one of {', '.join(OPTIMIZER_NAMES)}.")
    if plan.out.exists() and not plan.out.is_dir():
        raise InputError(f"out {plan.out} is a file; give a directory.")


def texts(plan: TrainingPlan, target: TrainingTarget) -> list[Sample]:
    """All that is learned from and held out, in an order of the seed."""
    entries = [entry for path in plan.data for entry in read_lines(path)]
    order = torch.randperm(len(entries), generator=torch.Generator().manual_seed(plan.seed)).tolist()
    entries = [entries[i] for i in order]
    wanted = TRAINERS.card(plan.method).data == "answers" if plan.answers is None else plan.answers
    entries = usable(entries, wanted)
    if wanted:
        samples = answered(
            target, entries, plan.length, limit=plan.prompts, cache=plan.cache or plan.out, answer=plan.answer,
            temperature=plan.temperature, seed=plan.seed,
        )  # fmt: skip
    else:
        samples = list(given(target, entries, plan.length))
    if len(samples) < 2:
        raise InputError(
            f"The data has {len(samples)} usable texts, but at least 2 are needed; give JSON lines with text, "
            "messages, or prompt (and answer)."
        )
    return samples


class TrainingRun:
    """A training under way."""

    def __init__(self, plan: TrainingPlan, method: Method, source: FeatureSource, names: Sequence[int]) -> None:
        self.plan, self.method, self.source, self.names = plan, method, source, names
        self.weights = [weight for weight in method.module.parameters() if weight.requires_grad]
        if not self.weights:
            raise InputError(f"{plan.method} has no weights to train with these settings.")
        assert plan.lr is not None
        self.optimizers = optimizers(plan.optimizer, method.module, plan.lr, plan.weight_decay)
        self.step = self.tokens = 0
        self.seconds, self.saved = 0.0, time.monotonic()
        self.cool: tuple[int, int] | None = None
        """(first step, number of steps) of the end, where the learning rate falls; part of the state, because a run
        limited by time learns only under way where its end is."""
        self.recent: list[Loss] = []
        self.window: list[float] = []

    # -- what a step is a function of -------------------------------------------------------------------------------

    def batches(self, epoch: int) -> list[list[int]]:
        """The texts of an epoch in batches of about `tokens`, texts of like length together; a function of seed and
        epoch."""
        stream = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + epoch)
        order = [self.names[i] for i in torch.randperm(len(self.names), generator=stream).tolist()]
        sizes = [len(self.source.samples[name].ids) for name in range(len(self.source.samples))]
        batches: list[list[int]] = []
        for start in range(0, len(order), 64):
            pool = sorted(order[start : start + 64], key=lambda name: (sizes[name], name))
            batch: list[int] = []
            for name in pool:
                if batch and (len(batch) + 1) * max(sizes[name], *(sizes[n] for n in batch)) > self.plan.tokens:
                    batches.append(batch)
                    batch = []
                batch.append(name)
            batches.append(batch)
        shuffled = torch.randperm(len(batches), generator=stream).tolist()
        return [batches[i] for i in shuffled]

    def stream(self) -> Iterator[list[int]]:
        """Batches from where the run stands, without end."""
        skip, epoch = self.step * self.plan.accumulate, 0
        while True:
            batches = self.batches(epoch)
            if skip < len(batches):
                yield from batches[skip:]
            skip, epoch = max(0, skip - len(batches)), epoch + 1

    def rate(self) -> float:
        """Factor of the learning rate in this step."""
        warm = min(1.0, (self.step + 1) / max(1, self.plan.warmup))
        if self.cool is None or self.step < self.cool[0]:
            return warm
        return warm * max(0.0, 1 - (self.step - self.cool[0] + 1) / self.cool[1])

    def plan_end(self) -> None:
        """Where the end begins: the last fifth."""
        plan = self.plan
        if plan.minutes is None:
            assert plan.steps is not None
            length = max(1, plan.steps // 5)
            self.cool = plan.steps - length, length
        elif self.cool is None and self.done() >= 0.8:
            self.cool = self.step, max(1, self.step // 4)

    def done(self) -> float:
        plan = self.plan
        shares = [
            0.0 if plan.steps is None else self.step / plan.steps,
            0.0 if plan.minutes is None else self.seconds / (60 * plan.minutes),
        ]
        return max(shares)

    def finished(self) -> bool:
        if self.plan.minutes is None:
            return self.step >= (self.plan.steps or 0)
        ended = self.cool is not None and self.step >= sum(self.cool)
        return ended or (self.plan.steps is not None and self.step >= self.plan.steps) or self.done() >= 1.2

    # -- the loop ----------------------------------------------------------------------------------------------------

    def go(self, report: Callable[[TrainingProgress], None]) -> None:
        batches = self.stream()
        self.method.module.train()
        while not self.finished():
            begun = time.monotonic()
            self.plan_end()
            torch.manual_seed(self.plan.seed * 7_919 + self.step)
            loss = self.advance([next(batches) for _ in range(self.plan.accumulate)])
            self.step += 1
            self.seconds += time.monotonic() - begun
            self.window.append(loss)
            if self.step % LOG_STEPS == 0:
                now = self.progress()
                with writing(self.plan.out):
                    self.write(now)
                report(now)
            if time.monotonic() - self.saved >= self.plan.save_seconds:
                self.save()
        if self.step < LOG_STEPS and self.window:  # too short for a line of its own
            with writing(self.plan.out):
                self.write(self.progress())
        self.save()

    def advance(self, batches: Sequence[Sequence[int]]) -> float:
        """Make one optimizer step; return its loss."""
        total = 0.0
        for optimizer, lr in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * self.rate()
            optimizer.zero_grad(set_to_none=True)
        for names in batches:
            batch = self.source.batch(names)
            with lower():
                loss = self.method.loss(batch, self.step, min(1.0, self.done()))
            if not torch.isfinite(loss.total):
                raise InputError(
                    f"The loss of step {self.step} is {loss.total.item()}, in the batch of texts {list(names)}; the "
                    f"run stands at its last checkpoint: take these texts out, or lower lr from {self.plan.lr}."
                )
            if loss.total.requires_grad:
                torch.autograd.backward(loss.total / len(batches))
            total += loss.total.item() / len(batches)
            self.tokens += int(batch.length.sum())
            self.recent = [*self.recent[1 - 4 * LOG_STEPS :], loss]
        torch.nn.utils.clip_grad_norm_(self.weights, self.plan.clip)
        for optimizer, _ in self.optimizers:
            optimizer.step()
        return total

    def progress(self) -> TrainingProgress:
        depths = max((len(loss.seen) for loss in self.recent), default=0)
        rates = []
        for depth in range(depths):
            mine = [loss for loss in self.recent if depth < len(loss.seen)]
            rates.append(sum(it.right[depth] for it in mine) / max(1.0, sum(it.seen[depth] for it in mine)))
        tau = 1 + sum(math.prod(rates[: depth + 1]) for depth in range(depths))
        mean = sum(self.window) / max(1, len(self.window))
        self.window.clear()
        return TrainingProgress(self.step, mean, tuple(rates), tau, self.tokens, self.seconds, min(1.0, self.done()))

    # -- on disk -----------------------------------------------------------------------------------------------------

    def write(self, now: TrainingProgress) -> None:
        file = self.plan.out / LOG
        new = not file.exists()
        with file.open("a", newline="", encoding="utf-8") as handle:
            lines = csv.writer(handle)
            if new:
                depths = [f"accuracy_{d + 1}" for d in range(len(now.conditional))]
                lines.writerow(["step", "tokens", "seconds", "loss", "simulated_tau", *depths])
            rates = [f"{x:.4f}" for x in now.conditional]
            lines.writerow([now.step, now.tokens, f"{now.seconds:.1f}", f"{now.loss:.5f}", f"{now.tau:.4f}", *rates])

    def save(self) -> None:
        file = self.plan.out / STATE
        part = file.with_suffix(".part")
        trained = {name: weight for name, weight in self.method.module.named_parameters() if weight.requires_grad}
        state = {
            "plan": self.plan.key(), "step": self.step, "tokens": self.tokens, "seconds": self.seconds,
            "cool": self.cool, "weights": trained,
            "optimizers": [optimizer.state_dict() for optimizer, _ in self.optimizers],
        }  # fmt: skip
        with writing(self.plan.out, part):
            torch.save(state, part)
            part.replace(file)
        self.saved = time.monotonic()
        if (log := self.plan.out / LOG).is_file():
            with writing(self.plan.out):
                draw(self.plan.out / CURVE, f"{self.plan.method} for {self.plan.target}", "step", of_log(log))

    def restore(self) -> None:
        """Go on where the directory's run stands. Raises InputError where it is another one."""
        file = self.plan.out / STATE
        if not file.is_file():
            (self.plan.out / LOG).unlink(missing_ok=True)
            return
        try:
            state = torch.load(file, weights_only=True)
            own, other = self.plan.key(), dict(state["plan"])
        except Exception as error:  # torch.load raises many types for a damaged file; a foreign one lacks the plan
            if memory_ended(error):
                raise no_room_for(file) from error
            raise InputError(f"{file} cannot be read ({error!r}); delete it to start again.") from None
        differ = sorted(name for name in {*own, *other} if own.get(name) != other.get(name))
        if differ:
            name = differ[0]
            raise InputError(
                f"{self.plan.out} holds a training with {name} = {other.get(name)!r}, not {own.get(name)!r}; give the "
                "same settings to go on, or another directory."
            )
        self.step, self.tokens, self.seconds, self.cool = (
            state["step"], state["tokens"], state["seconds"], state["cool"],
        )  # fmt: skip
        if self.plan.minutes is not None and self.done() < 0.8:
            self.cool = None  # there is more time than when it was set
        self.method.module.load_state_dict(state["weights"], strict=False)
        for (optimizer, _), saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        if (log := self.plan.out / LOG).is_file():  # without the lines of what is done again
            head, *lines = [line.rstrip("\r") for line in whole_lines(log)] or [""]
            lines = [line for line in lines if int(line.split(",")[0]) <= self.step]
            put(log, "".join(f"{line}\n" for line in (head, *lines) if line))


def lower() -> AbstractContextManager[Any]:
    """Matrices in bfloat16 where the CPU multiplies it natively; sums and distributions stay in float32."""
    native = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return torch.autocast("cpu", torch.bfloat16) if native else nullcontext()
