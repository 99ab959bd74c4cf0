"""Training of `eagle3` (draft/eagle3.py) by training-time test: the head is unrolled to its depth, each step on what
the step before put out, and learns the target's distribution at each (Li et al. 2025, arXiv 2503.01840, section 3.2).

Hidden states between layers are some thirty times what a fresh layer adds, so W begins divided by their size.
`norm_before_residual=true` begins the stream with norm f instead; over 24,000 tokens of the workbench target it learned
the first step more slowly, so it is not the default.

`fused=false` is EAGLE-1 (Li et al. 2024, arXiv 2401.15077): one step on the target's own states with uniform noise, to
be like the target's next state (SmoothL1) and to say what it would say (0.1 of the cross entropy).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.errors import InputError
from paceline.draft.eagle_shape import EAGLE3, EagleShape, spread
from paceline.draft.native_layers import layer_spec
from paceline.model.rotary import Rotary
from paceline.train import TRAINERS, Trains
from paceline.train.data import Sample
from paceline.train.features import FeatureBatch, FeatureSource
from paceline.train.heads import Steps, UnrolledMethod, write_head
from paceline.train.method import as_kind, commonest, typed
from paceline.train.target import TrainingTarget
from paceline.train.unroll import Mlp, RMSNorm, UnrolledAttention, look, turns

EAGLE_NOISE = 0.1
"""Half of the width of EAGLE-1's noise at 512 tokens; the paper scales it by 512 / length."""
SCALE_TEXTS = 8
"""Texts from which the size of the states is known."""
FREE_OPTIONS = ("draft_vocab", "depth", "fused", "ffn", "heads", "kv_heads", "head_dim", "norm_before_residual")


class EagleLayer(nn.Module):
    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        width, entry = shape.width, (2 if shape.fused else 1) * shape.width
        self.self_attn = UnrolledAttention(entry, width, shape.heads, shape.kv_heads, shape.head_dim)
        self.mlp, self.post_attention_layernorm = Mlp(width, shape.ffn), RMSNorm(width, shape.eps)
        if shape.fused:
            self.input_layernorm, self.hidden_norm = RMSNorm(width, shape.eps), RMSNorm(width, shape.eps)


class EagleModule(nn.Module):
    """The head over whole texts. The names of its weights are those of the checkpoint."""

    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(shape.taps) * shape.width if shape.fused else 2 * shape.width, shape.width, bias=False)
        self.layers = nn.ModuleList([EagleLayer(shape)])
        if shape.fused:
            self.norm = RMSNorm(shape.width, shape.eps)
            self.lm_head = nn.Linear(shape.width, shape.draft_vocab, bias=False)
        rope = layer_spec("eagle3", shape, scaling=shape.scaling).layers[0].attention.rope
        self.rotary = Rotary(rope, torch.device("cpu"), torch.float32, shape.max_len + 64)

    def unroll(self, embedded: Tensor, feature: Tensor, steps: int) -> list[Tensor]:
        """What it puts out at each step. embedded [B, R, H]: of the tokens of rows 1 .. R of a text; feature [B, R, H]:
        fused states of the rows before them. Step s has R - s rows."""
        layer, shape = self.layers[0], self.shape
        assert isinstance(layer, EagleLayer)
        text: tuple[Tensor, Tensor] | None = None
        above: list[tuple[Tensor, Tensor]] = []
        outs: list[Tensor] = []
        for step in range(steps):
            rows = embedded.shape[1] - step
            if rows < 1:
                break
            e, f = embedded[:, step:], feature[:, :rows]
            if shape.fused:
                normed = layer.hidden_norm(f)
                entry, x = torch.cat((layer.input_layernorm(e), normed), -1), f
                x = normed if shape.norm_before_residual else f
            else:
                entry = x = self.fc(torch.cat((e, f), -1))
            q, k, v = layer.self_attn.split(entry, turns(self.rotary, 1 + step, rows))
            if text is None:
                text = k, v
            else:
                above.append((k, v))
            x = x + layer.self_attn.o_proj(look(q, text, above, shape.head_dim**-0.5))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            outs.append(x)
            feature = x
        return outs


@TRAINERS.register("eagle3", Trains("a decoder layer on the target's features (EAGLE-3; fused=false: EAGLE-1)"))
class TrainEagle(UnrolledMethod):
    def __init__(self, target: TrainingTarget, settings: dict[str, Any]) -> None:
        settings = dict(settings)
        spec = target.spec
        fused = as_kind(settings.get("fused", True), bool)
        self.goals(settings, "kl" if fused else "smooth:1+kl:0.1", 0.8)
        self.steps = int(settings.pop("unroll", 0))
        """Steps that are trained; 0: all that it will draft, of EAGLE-1 one."""
        shape = EagleShape(
            spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.ffn, spec.vocab, spec.vocab, spec.max_len,
            spread(len(spec.layers)) if fused else ("post_norm",), fused, eps=spec.norm_eps,
        )  # fmt: skip
        free = {name: getattr(shape, name) for name in FREE_OPTIONS}
        shape = replace(shape, **typed(settings, free, EAGLE3, ("unroll", "objective")))
        if not 0 < shape.draft_vocab <= shape.vocab or shape.depth < 1:
            raise InputError(
                f"draft_vocab is {shape.draft_vocab} and depth {shape.depth}; expected are 1 to {shape.vocab}, and 1."
            )
        self.shape, self.target = shape, target
        self.taps = tuple(dict.fromkeys((*shape.taps, "post_norm")))
        self.module: EagleModule = EagleModule(shape)
        self.ids = torch.arange(shape.draft_vocab)
        self.scales = [1.0] * len(shape.taps)
        """Root mean squares of the states. All that reads f is behind a norm, so f may be of size 1, as what a fresh
        layer adds is."""
        self.start()

    @property
    def depth(self) -> int:
        return self.shape.depth

    def start(self) -> None:
        """First weights: the states of the highest tap, as they are, and the target's own norm and head. To a normed
        stream, which is small, the layer adds nothing at first."""
        with torch.no_grad():
            width = self.shape.width
            self.module.fc.weight.mul_(0.1)
            self.module.fc.weight[:, -width:] += torch.eye(width)
            if self.shape.fused:
                for number, scale in enumerate(self.scales):
                    self.module.fc.weight[:, number * width : (number + 1) * width] /= max(scale, 1e-6)
            layer = self.module.layers[0]
            assert isinstance(layer, EagleLayer)
            for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
                part.weight.mul_(0.0 if self.shape.norm_before_residual else 0.3)
            if self.shape.fused:
                self.module.norm.weight.copy_(self.target.decoder.weights.norm.weight / width**0.5)
                self.module.lm_head.weight.copy_(self.target.output[self.ids])

    def see(self, samples: Sequence[Sample]) -> None:
        """The draft vocabulary: the tokens that these texts have most of, in order of their ids. The size of the
        states."""
        if self.shape.draft_vocab < self.shape.vocab:
            self.ids = commonest(samples, self.shape.draft_vocab, self.shape.vocab)
        if self.shape.fused:
            source = FeatureSource(self.target, samples[:SCALE_TEXTS], self.shape.taps, None, 0)
            found = [source.states(name) for name in range(len(source.samples))]
            self.scales = [
                float(torch.cat([it[tap].float() for it in found]).square().mean().sqrt()) for tap in self.shape.taps
            ]
        self.start()

    def unroll(self, batch: FeatureBatch) -> Steps:
        rows = batch.ids.shape[1] - 2
        embedded = self.target.embed(batch.ids)[:, 1 : 1 + rows]
        states = [batch.hidden[tap][:, :rows] for tap in self.shape.taps]
        training = self.module.training
        steps = self.depth if not training else self.steps or (self.depth if self.shape.fused else 1)
        if self.shape.fused:
            feature = self.module.fc(torch.cat(states, -1))
        else:
            feature = states[0]
            if training:
                feature = feature + EAGLE_NOISE * (2 * torch.rand_like(feature) - 1)
        return self.module.unroll(embedded, feature, steps)

    def logits(self, out: Tensor) -> Tensor:
        if not self.shape.fused:
            return self.target.head(out)
        made: Tensor = self.module.lm_head(self.module.norm(out))
        return made

    def known(self) -> Tensor | None:
        return self.ids if self.shape.draft_vocab < self.shape.vocab else None

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        weights = {name: part.detach() for name, part in self.module.named_parameters()}
        if self.shape.fused:
            inside = torch.zeros(self.shape.vocab, dtype=torch.bool)
            inside[self.ids] = True
            weights |= {"d2t": self.ids - torch.arange(len(self.ids)), "t2d": inside}
        write_head(path, weights, self.shape.written(), self, facts)
