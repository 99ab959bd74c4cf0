"""What a training method is to the loop, and `HeadMethod`: the whole of it for a head (draft/head.py)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from paceline.core.errors import InputError
from paceline.draft.head import Head
from paceline.draft.layers import DenseTexts, DraftLayer, whole
from paceline.model.rotary import Rotary
from paceline.train.data import Sample
from paceline.train.features import FeatureBatch
from paceline.train.objective import Objective
from paceline.train.target import TrainingTarget


@dataclass(slots=True)
class Loss:
    """total: a scalar with a gradient. right, seen: of each depth, places where this draft and all before it were
    right, and places where all before it were."""

    total: Tensor
    right: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)


@dataclass(slots=True)
class HeadStep:
    """What a head says at one depth, for rows 0 ... R - 1 of every text: out [B, R, H], for its `logits`."""

    out: Tensor


class Method(ABC):
    """See train/__init__.py."""

    module: nn.Module
    taps: tuple[str, ...] = ()
    accuracy: tuple[tuple[float, ...], ...] = ()
    """Accuracy of each rank at each depth; the loop sets it before `save`."""

    def see(self, samples: Sequence[Sample]) -> None:  # noqa: B027
        """Before anything else: the texts that it will learn from, for what depends on all of them."""

    @abstractmethod
    def loss(self, batch: FeatureBatch, step: int, done: float = 0.0) -> Loss: ...

    def ranks(self, batch: FeatureBatch) -> "Tensor | None":
        return None

    @abstractmethod
    def save(self, path: Path, facts: Mapping[str, Any]) -> None: ...


def settled(kind: type[Any], settings: Mapping[str, Any], known: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Fields of a dataclass from what the user set (texts or values) over what is known. Raises InputError."""
    free = {f.name: f.default for f in fields(kind) if f.name not in ("width", "vocab", "accuracy")}
    return {**known, **typed(settings, free, method)}


def typed(
    settings: Mapping[str, Any], defaults: Mapping[str, Any], method: str, further: Sequence[str] = ()
) -> dict[str, Any]:
    """What the user set (texts or values), each as its default's type. `further`: settings that the method has read
    already, for the error's list. Raises InputError."""
    out: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in defaults:
            has = ", ".join((*sorted(defaults), *further))
            raise InputError(f"{method} has no setting {name!r}; it has {has}.")
        kind = type(defaults[name])
        try:
            out[name] = as_kind(value, kind)
        except ValueError:
            raise InputError(f"{name} is {value!r}, but {method} expects {KIND_WORDS[kind]} there.") from None
    return out


KIND_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", tuple: "a list"}
"""Types of settings, as errors call them."""


def as_kind(value: Any, kind: type) -> Any:
    """A setting, which may be a text, as a value of this type."""
    if kind is bool and isinstance(value, str):
        if value.lower() not in ("true", "false", "yes", "no", "1", "0"):
            raise ValueError(value)
        return value.lower() in ("true", "yes", "1")
    return kind(value)


def placed(logits: Tensor, batch: FeatureBatch, depth: int, rows: int) -> Tensor:
    """[B, rows]: the rank that logits [B * rows, V] of this depth give the true token; -1 where there is none."""
    token = batch.ids[:, 2 + depth :].reshape(-1, 1)
    mine, place = logits.gather(1, token), torch.arange(logits.shape[-1])
    ahead = (logits > mine) | ((logits == mine) & (place < token))
    known = torch.arange(rows)[None] < (batch.length - 2 - depth)[:, None]
    return torch.where(known, ahead.sum(-1).view(-1, rows), -1)


def commonest(samples: Sequence[Sample], count: int, vocab: int) -> Tensor:
    """A draft vocabulary [count]: the tokens that these texts have most of, in order of their ids."""
    tokens = torch.tensor([token for sample in samples for token in sample.ids])
    return torch.bincount(tokens, minlength=vocab).topk(count).indices.sort().values


class HeadMethod(Method):
    """A method that trains a `Head`. A method gives `head` and perhaps `objective`, `decay`, `config` and `started`."""

    module: Head
    head: ClassVar[type[Head]]
    objective: ClassVar[str] = "kl"
    decay: ClassVar[float] = 1.0
    rows: ClassVar[int] = 2048
    """Most rows of a batch whose distributions are compared: over a large vocabulary they are what costs."""

    def __init__(self, target: TrainingTarget, settings: dict[str, Any]) -> None:
        settings = dict(settings)
        decay = float(settings.pop("decay", self.decay))
        self.goal = Objective.parse(str(settings.pop("objective", self.objective)), decay)
        self.target = target
        made = self.head.config_type(**settled(self.head.config_type, settings, self.config(target), self.head.method))
        if made.depth < 1:
            raise InputError(f"depth is {made.depth}, but a head drafts at least one token.")
        self.module: Head = self.head(made)
        self.taps = self.module.taps
        rope = DraftLayer.rope(made.head_dim or 2, made.theta)
        self.rotary = Rotary(rope, torch.device("cpu"), torch.float32, made.max_len)
        if made.draft_vocab > made.vocab:
            raise InputError(f"draft_vocab is {made.draft_vocab}, but the target has {made.vocab} tokens.")
        self.started()

    def see(self, samples: Sequence[Sample]) -> None:
        if size := self.module.config.draft_vocab:
            words = commonest(samples, size, self.module.config.vocab)
            self.module.d2t.copy_(words - torch.arange(size))
            with torch.no_grad():
                output = self.module.output[0]
                assert isinstance(output, nn.Linear)
                output.weight.copy_(self.target.output[words])
                output.bias.zero_()
            output.requires_grad_(self.module.config.own_head)

    def config(self, target: TrainingTarget) -> dict[str, Any]:
        """Fields of the head's config that the target decides."""
        spec = target.spec
        return {
            "width": spec.hidden, "vocab": spec.vocab, "max_len": spec.max_len, "heads": spec.heads,
            "kv_heads": spec.kv_heads, "head_dim": spec.head_dim, "ffn": spec.ffn, "eps": spec.norm_eps,
        }  # fmt: skip

    def started(self) -> None:
        """First weights beyond the module's own: output matrices begin as the target's."""
        if self.module.config.own_head and not self.module.config.draft_vocab:
            with torch.no_grad():
                for output in self.module.output:
                    assert isinstance(output, nn.Linear)
                    output.weight.copy_(self.target.output)
                    output.bias.zero_()

    @property
    def depth(self) -> int:
        return self.module.config.depth

    def unroll(self, batch: FeatureBatch, wanted: Tensor | None = None) -> list[HeadStep]:
        """What the head says at each depth, the true tokens above. At depth d, rows 0 ... T - 3 - d; with `wanted`
        [B, T], those that draft such a token, zeros elsewhere."""
        hidden = batch.hidden[self.module.taps[0]]
        count, length, width = hidden.shape
        embedded = self.target.embed(batch.ids)
        following = torch.cat((embedded[:, 1:], embedded.new_zeros(count, 1, width)), 1)
        context = hidden
        if self.module.kv_layers:
            attend = DenseTexts(count, length, self.rotary)
            flat = self.module.enrich(hidden.reshape(-1, width), following.reshape(-1, width), attend)
            context = flat.view(count, length, width)
        text, row = self.rows_of(wanted, count, length)
        state = self.module.begin(context[text, row], embedded[text, row + 1])
        steps: list[HeadStep] = []
        for depth in range(min(self.depth, length - 2)):
            rows = length - 2 - depth
            if depth:
                left = row < rows
                text, row = text[left], row[left]
                state = self.module.extend(state[left], embedded[text, row + 1 + depth], depth - 1)
            out = self.module.draft(state, depth)
            steps.append(HeadStep(out.new_zeros(count, rows, out.shape[-1]).index_put((text, row), out)))
        return steps

    def rows_of(self, wanted: Tensor | None, count: int, length: int) -> tuple[Tensor, Tensor]:
        """(texts, rows) that draft a token which is wanted, at some depth."""
        keep = torch.ones(count, length - 2, dtype=torch.bool)
        if wanted is not None:
            keep = torch.zeros_like(keep)
            for depth in range(min(self.depth, length - 2)):
                keep[:, : length - 2 - depth] |= wanted[:, 1 + depth : length - 1]
        text, row = keep.nonzero(as_tuple=True)
        return text, row

    def loss(self, batch: FeatureBatch, step: int, done: float = 0.0) -> Loss:
        hidden = batch.hidden[self.module.taps[0]]
        states = self.teacher(hidden)
        wanted = self.wanted(batch)
        where = wanted.flatten().cumsum(0).view(wanted.shape) - 1
        words = self.module.words
        with torch.no_grad():
            teacher = self.target.head(states[wanted], words)
        loss, weight = Loss(torch.zeros(())), 0.0
        alive = torch.ones_like(wanted)
        for depth, each in enumerate(self.unroll(batch, wanted)):
            rows = each.out.shape[1]
            mine = wanted[:, 1 + depth : 1 + depth + rows]
            if not mine.any():
                break
            out, token = each.out[mine], batch.ids[:, 2 + depth : 2 + depth + rows][mine]
            logits = self.module.logits(out, depth, self.target.head)
            state, law = states[:, 1 + depth : 1 + depth + rows][mine], teacher[where[:, 1 + depth :][:, :rows][mine]]
            at = token if words is None else torch.searchsorted(words, token).clamp(max=len(words) - 1)
            inside = torch.ones_like(token, dtype=torch.bool) if words is None else words[at] == token
            places = self.goal.places(teacher=law, logits=logits, token=at, hidden=state, out=out)
            loss.total = loss.total + self.goal.decay**depth * (places * inside).sum() / inside.sum().clamp(min=1)
            weight += self.goal.decay**depth
            hit = torch.zeros_like(mine)
            hit[mine] = inside & (logits.detach().argmax(-1) == at)
            before = alive[:, :rows] & mine
            alive = before & hit
            loss.seen.append(float(before.sum()))
            loss.right.append(float(alive.sum()))
        loss.total = loss.total / max(weight, 1e-9)
        return loss

    def wanted(self, batch: FeatureBatch) -> Tensor:
        """[B, T]: rows whose distribution is learned, of a token that is to be predicted; a random stretch of `rows` of
        them."""
        wanted = torch.zeros_like(batch.learn, dtype=torch.bool)
        wanted[:, 1:-1] = batch.learn[:, 2:] > 0
        found = wanted.flatten().nonzero().flatten()
        if len(found) > self.rows:
            start = int(torch.randint(len(found) - self.rows + 1, ()))
            wanted = torch.zeros_like(wanted).flatten()
            wanted[found[start : start + self.rows]] = True
            wanted = wanted.view(batch.learn.shape)
        return wanted

    def teacher(self, hidden: Tensor) -> Tensor:
        """The states behind the target's final norm, of those that the head reads."""
        return hidden

    @torch.no_grad()
    def ranks(self, batch: FeatureBatch) -> Tensor:
        """[B, T, depths]: the rank that the true token has at each depth of a round at each row; -1 where none is."""
        steps, words = self.unroll(batch), self.module.words
        out = torch.full((*batch.ids.shape, self.depth), -1, dtype=torch.int64)
        for depth, each in enumerate(steps):
            rows = each.out.shape[1]
            made = self.module.logits(each.out.reshape(-1, each.out.shape[-1]), depth, self.target.head)
            out[:, :rows, depth] = placed(whole(made, words, self.target.spec.vocab), batch, depth, rows)
        return out

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        module = self.module
        kept, module.config = module.config, replace(module.config, accuracy=self.accuracy)
        verifier = {"name_or_path": self.target.name, "architectures": [self.target.spec.family]}
        proposal = {"proposal_type": "greedy", "speculative_tokens": self.depth}
        module.save(
            path,
            speculators_config={
                "algorithm": module.method, "default_proposal_method": "greedy", "proposal_methods": [proposal],
                "verifier": verifier,
            },
            training=dict(facts),
        )  # fmt: skip
        module.config = kept
