"""Training of `falcon` (draft/falcon.py) by coupled sequential glancing distillation (Gao et al. 2024, arXiv
2412.12639).

A pass without gradient says which rows are wrong. Of these, a share that falls as training goes on is answered: the
first row of a block gets the token and the feature that it should have said, k places on, in place of its own input, so
that the later rows of the block see it through the LSTM and attention. A second pass is trained: on features (SmoothL1)
and, with a weight of 0.1, on the target's distribution (0.9 KL + 0.1 hard cross entropy). `glance=0` leaves the first
pass out.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.errors import InputError
from paceline.draft.falcon import FALCON, FALCON_LAYERS, LSTM_ROWS, FalconConfig, cell
from paceline.draft.native_layers import layer_spec
from paceline.model.rotary import Rotary
from paceline.train import TRAINERS, Trains
from paceline.train.features import FeatureBatch
from paceline.train.heads import Steps, UnrolledMethod, write_head
from paceline.train.method import Loss, typed
from paceline.train.target import TrainingTarget
from paceline.train.unroll import Mlp, RMSNorm, UnrolledAttention, look, turns

FALCON_NOISE = 0.1
"""Half of the width of the uniform noise on features."""


class FalconModule(nn.Module):
    """The head over whole texts; row u reads the token x_u and the feature of row u - 1."""

    def __init__(self, config: FalconConfig) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.lstm = nn.LSTM(2 * width, width, FALCON_LAYERS, batch_first=True)
        self.self_attn = UnrolledAttention(width, width, config.heads, config.kv_heads, config.head_dim)
        self.mlp, self.post_attention_layernorm = Mlp(width, config.ffn), RMSNorm(width, config.eps)
        rope = layer_spec(FALCON, config).layers[0].attention.rope
        self.rotary = Rotary(rope, torch.device("cpu"), torch.float32, config.max_len + 64)

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z [N, H] and the states [N, FALCON_LAYERS, H] after it, from x [N, 2 H]."""
        hs, cs = [], []
        for i in range(FALCON_LAYERS):
            w = {name: getattr(self.lstm, f"{name}_l{i}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
            gates = nn.functional.linear(x, w["weight_ih"], w["bias_ih"])
            gates = gates + nn.functional.linear(h[:, i], w["weight_hh"], w["bias_hh"])
            x, after = cell(gates.float(), c[:, i])
            hs.append(x)
            cs.append(after)
        return x, torch.stack(hs, 1), torch.stack(cs, 1)

    def recur(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z [B, R, H] and the states [B, R, FALCON_LAYERS, H] after each row, from x [B, R, 2 H] of rows 0 .. R - 1;
        the LSTM restarts every LSTM_ROWS rows."""
        count, rows, width = x.shape
        whole = -(-rows // LSTM_ROWS) * LSTM_ROWS
        chunks = torch.cat((x, x.new_zeros(count, whole - rows, width)), 1).view(-1, LSTM_ROWS, width)
        h = c = chunks.new_zeros(len(chunks), FALCON_LAYERS, width // 2)
        made: list[tuple[Tensor, Tensor, Tensor]] = []
        for i in range(LSTM_ROWS):
            z, h, c = self.step(chunks[:, i], h, c)
            made.append((z, h, c))
        z, h, c = (torch.stack(part, 1) for part in zip(*made))
        z, h, c = (part.view(count, whole, *part.shape[2:])[:, :rows] for part in (z, h, c))
        return z, h, c

    def finish(self, z: Tensor, seen: Tensor) -> Tensor:
        x = z + self.self_attn.o_proj(seen)
        made: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return made

    def blocks(self, x: Tensor, phase: int) -> Tensor:
        """What rows 1 .. R - 1 put out, [B, R - 1, H], where every k rows are a block; the first begins at `phase`."""
        z = self.recur(x)[0][:, 1:]
        rows = z.shape[1]
        q, k, v = self.self_attn.split(z, turns(self.rotary, 1, rows))
        block = (torch.arange(1, rows + 1) + phase) // self.config.block
        seen = block[None] <= block[:, None]
        return self.finish(z, look(q, (k, v), [], self.config.head_dim**-0.5, seen))

    def rounds(self, x: Tensor, embedded: Tensor, depth: int) -> list[Tensor]:
        """What it puts out at each depth of a round at every row b = 1 .. R - 1 as the root's: [B, R - 1, H] each, the
        feature behind which the token b + 1 + depth stands. `embedded` [B, T, H]: of the true tokens."""
        z, h, c = self.recur(x)
        block, scale, rows = self.config.block, self.config.head_dim**-0.5, z.shape[1] - 1
        q, k, v = self.self_attn.split(z[:, 1:], turns(self.rotary, 1, rows))
        seen = torch.ones(rows, rows, dtype=torch.bool).tril()
        outs: list[Tensor] = []
        for i in range(block):
            at = (torch.arange(rows) - block + 1 + i).clamp(min=0)
            outs.append(self.finish(z[:, 1:][:, at], look(q[:, :, at], (k, v), [], scale, seen)))
        state, above = (h[:, 1:], c[:, 1:]), list[tuple[Tensor, Tensor]]()
        root = torch.arange(1, rows + 1)
        while len(outs) < depth:
            own: list[tuple[Tensor, Tensor]] = []
            for j in range(block):
                place = root + len(above) + 1
                token = embedded[:, place.clamp(max=embedded.shape[1] - 1)]
                begins = (place % LSTM_ROWS == 0)[None, :, None, None]
                hc = [part.masked_fill(begins, 0.0).flatten(0, 1) for part in state]
                entry = torch.cat((token, outs[len(outs) - block + j]), -1).flatten(0, 1)
                zj, *after = self.step(entry, *hc)
                state = tuple(part.view(h.shape[0], rows, *part.shape[1:]) for part in after)  # type: ignore[assignment]
                zj = zj.view(h.shape[0], rows, -1)
                qj, kj, vj = self.self_attn.split(zj, turns(self.rotary, 2 + len(above), rows))
                above.append((kj, vj))
                own.append((zj, qj))
            outs += [self.finish(zj, look(qj, (k, v), above, scale, seen)) for zj, qj in own]
        return outs[:depth]


@TRAINERS.register("falcon", Trains("blocks of tokens from one pass of a recurrent layer (block=2, glance=0.4)"))
class TrainFalcon(UnrolledMethod):
    def __init__(self, target: TrainingTarget, settings: dict[str, Any]) -> None:
        settings = dict(settings)
        self.goals(settings, "smooth:1+kl:0.09+ce:0.01", 1.0)
        spec = target.spec
        numbers: dict[str, Any] = {"glance": 0.4, "block": 2, "depth": 4, "ffn": spec.ffn}
        numbers |= typed(settings, numbers, FALCON, ("objective",))
        self.glance = numbers.pop("glance")
        if not 0 <= self.glance < 1 or numbers["block"] < 1 or numbers["depth"] < 1:
            raise InputError("falcon expects glance in [0, 1), and block and depth of at least 1.")
        self.config = FalconConfig(
            width=spec.hidden, vocab=spec.vocab, max_len=spec.max_len, heads=spec.heads, kv_heads=spec.kv_heads,
            head_dim=spec.head_dim, eps=spec.norm_eps, **numbers,
        )  # fmt: skip
        self.target, self.taps = target, ("post_norm",)
        self.module: FalconModule = FalconModule(self.config)

    @property
    def depth(self) -> int:
        return self.config.depth

    def entry(self, batch: FeatureBatch) -> tuple[Tensor, Tensor]:
        """x [B, T - 1, 2 H] of the rows 0 .. T - 2, and the embeddings [B, T, H] of all tokens."""
        embedded, post = self.target.embed(batch.ids), batch.hidden["post_norm"]
        feature = torch.cat((torch.zeros_like(post[:, :1]), post[:, :-2]), 1)
        return torch.cat((embedded[:, :-1], feature), -1), embedded

    def unroll(self, batch: FeatureBatch) -> Steps:
        x, embedded = self.entry(batch)
        outs = self.module.rounds(x, embedded, self.depth)
        return [out[:, : out.shape[1] - depth] for depth, out in enumerate(outs)]

    def logits(self, out: Tensor) -> Tensor:
        return self.target.head(out)

    def loss(self, batch: FeatureBatch, step: int, done: float = 0.0) -> Loss:
        k = self.config.block
        phase = int(torch.randint(k, ()))
        x, embedded = self.entry(batch)
        width = embedded.shape[-1]
        x = torch.cat((x[..., :width], x[..., width:] + FALCON_NOISE * (2 * torch.rand_like(x[..., width:]) - 1)), -1)
        if share := self.glance * max(0.0, 1 - done):
            x = self.glanced(x, embedded, batch, phase, share)
        return self.compared(self.module.blocks(x, phase), batch, phase)

    @torch.no_grad()
    def glanced(self, x: Tensor, embedded: Tensor, batch: FeatureBatch, phase: int, share: float) -> Tensor:
        """x with the answers in place of `share` times as many first rows of blocks as there are wrong rows."""
        k = self.config.block
        out = self.module.blocks(x, phase)
        rows = out.shape[1] + 1 - k
        learn = batch.learn[:, 1 + k : 1 + k + rows].bool()
        wrong = torch.zeros_like(learn)
        wrong[learn] = self.logits(out[:, :rows][learn]).argmax(-1) != batch.ids[:, 1 + k : 1 + k + rows][learn]
        firsts = learn & ((torch.arange(1, rows + 1) + phase) % k == 0)[None]
        places = firsts.nonzero()
        places = places[torch.randperm(len(places))[: int(share * int(wrong.sum()))]]
        answered = torch.cat((embedded[:, 1 + k : 1 + k + rows], batch.hidden["post_norm"][:, k : k + rows]), -1)
        x = x.clone()
        x[places[:, 0], places[:, 1] + 1] = answered[places[:, 0], places[:, 1]]
        return x

    def compared(self, out: Tensor, batch: FeatureBatch, phase: int) -> Loss:
        """Row u's output with the target's state of row u - 1 + k; accuracy by the place in the block."""
        k = self.config.block
        rows = out.shape[1] + 1 - k
        learn = batch.learn[:, 1 + k : 1 + k + rows].bool()
        state, token = batch.hidden["post_norm"][:, k : k + rows][learn], batch.ids[:, 1 + k : 1 + k + rows][learn]
        mine = out[:, :rows][learn]
        logits = self.logits(mine)
        with torch.no_grad():
            teacher = self.target.head(state)
        each = self.goal.places(teacher=teacher, logits=logits, token=token, hidden=state, out=mine)
        loss = Loss(each.mean() if len(each) else out.sum() * 0)
        hit = torch.zeros_like(learn)
        hit[learn] = logits.argmax(-1) == token
        place = (torch.arange(1, rows + 1) + phase) % k
        alive = torch.ones_like(learn)
        for d in range(k):
            here = learn & alive & (place == d)[None]
            loss.seen.append(float(here.sum()))
            loss.right.append(float((here & hit).sum()))
            alive = torch.zeros_like(learn)
            alive[:, 1:] = (here & hit)[:, :-1]
        return loss

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        weights = {name: part.detach() for name, part in self.module.named_parameters()}
        config = {
            "architectures": ["FalconSpeculator"], "speculators_model_type": FALCON, "speculators_version": "0.1.0",
            **self.config.written(),
        }  # fmt: skip
        write_head(path, weights, config, self, facts)
