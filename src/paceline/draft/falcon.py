"""`falcon`: k tokens for each pass of the head (semi-autoregressive blocks; Gao et al. 2024, arXiv 2412.12639).

    z_u = LSTM([e(x_u); f_(u-1)])                         two layers; restarts at every LSTM_ROWS-th row of a text
    o_u = z_u + Attention(z)_u;  o_u += FFN(norm o_u)     sees the text and the whole of its own block
    o_u stands for the target's state f_(u-1+k), so its distribution is that of token x_(u+k)

A block is k rows side by side. The last k rows of the text say what the next k tokens are; k drafted tokens below one
another, with the features that their parent block put out, are the next block. Within a block tokens do not see one
another but through z: places of one depth below one block have one distribution. With k = 1 it is a recurrent EAGLE-1.

Keys and values depend on z alone, so they are stored when a row of text is computed, whatever block it is in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.attend.turn import rotate_
from paceline.core.forest import Forest, Law
from paceline.core.registry import Offers
from paceline.core.rows import Out, Rows
from paceline.draft import DRAFTERS, Ask, View
from paceline.draft.feature import FeatureDrafter, FeatureHead
from paceline.draft.grow import HEAD_TREE_NODES
from paceline.draft.head import HEADS, METHOD_KEY, HeadCard, HeadConfig, HeadFacts, HeadFiles, need
from paceline.draft.head_sizes import check_shapes, sketched
from paceline.draft.native_layers import layer_spec
from paceline.draft.tree import Tree
from paceline.model.blocks import FeedForward
from paceline.model.linear import Linear, Packing, plain
from paceline.model.norms import Norm

FALCON = "falcon"
LSTM_ROWS = 16
"""Rows after which the LSTM restarts: its state at a row is then a function of at most this many rows, and need not
be stored with each."""
FALCON_LAYERS = 2
State = tuple[Tensor, Tensor]
"""h and c of the LSTM, [N, FALCON_LAYERS, H]."""


@dataclass(frozen=True, kw_only=True)
class FalconConfig(HeadConfig):
    block: int = 2
    """k"""


def sizes(c: FalconConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every weight."""
    h, q, kv = c.width, c.heads * c.head_dim, c.kv_heads * c.head_dim
    out: dict[str, tuple[int, ...]] = {}
    for layer in range(FALCON_LAYERS):
        out |= {
            f"lstm.weight_ih_l{layer}": (4 * h, 2 * h if layer == 0 else h), f"lstm.weight_hh_l{layer}": (4 * h, h),
            f"lstm.bias_ih_l{layer}": (4 * h,), f"lstm.bias_hh_l{layer}": (4 * h,),
        }  # fmt: skip
    if c.own_head:
        out["lm_head.weight"] = (c.vocab, h)
    return out | {
        "self_attn.q_proj.weight": (q, h), "self_attn.k_proj.weight": (kv, h), "self_attn.v_proj.weight": (kv, h),
        "self_attn.o_proj.weight": (h, q), "post_attention_layernorm.weight": (h,), "mlp.gate_proj.weight": (c.ffn, h),
        "mlp.up_proj.weight": (c.ffn, h), "mlp.down_proj.weight": (h, c.ffn),
    }  # fmt: skip


def cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """h and c [N, H] of an LSTM's step from its gates [N, 4 H] (input, forget, new, output) and the c before."""
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@HEADS.register(FALCON, HeadCard("blocks of tokens from one pass of a recurrent decoder layer"))
class Falcon(FeatureHead):
    """The component."""

    def __init__(self, config: FalconConfig, weights: Mapping[str, Tensor], packing: Packing) -> None:
        check_shapes("Falcon", sizes(config), weights)
        read = sum(weights[name].numel() for name in sizes(config))
        super().__init__(layer_spec(FALCON, config), ("post_norm",), config.width, config.vocab, read, packing.dtype)
        self.config, self.block, self.compute = config, config.block, packing.compute

        def linear(*names: str, dim: int = 0, bias: Tensor | None = None) -> Linear:
            weight = torch.cat([weights[n] for n in names], dim).to(packing.dtype).contiguous()
            return packing.pack(weight, None if bias is None else bias.to(packing.dtype))

        self.gates = [
            linear(f"lstm.weight_ih_l{i}", f"lstm.weight_hh_l{i}", dim=1,
                   bias=weights[f"lstm.bias_ih_l{i}"] + weights[f"lstm.bias_hh_l{i}"])
            for i in range(FALCON_LAYERS)
        ]  # fmt: skip
        self.qkv = linear(*(f"self_attn.{x}_proj.weight" for x in "qkv"))
        self.out = linear("self_attn.o_proj.weight")
        self.ffn_norm = Norm(weights["post_attention_layernorm.weight"].float(), config.eps)
        gate_up = linear("mlp.gate_proj.weight", "mlp.up_proj.weight")
        self.ffn = FeedForward(self.spec, gate_up, linear("mlp.down_proj.weight"))
        self.own = linear("lm_head.weight") if config.own_head else None

    @classmethod
    def claims(cls, config: Mapping[str, Any]) -> bool:
        return config.get(METHOD_KEY) == FALCON

    @classmethod
    def facts(cls, config: Mapping[str, Any]) -> HeadFacts:
        made = FalconConfig.read(config)
        kept = 2 * made.kv_heads * made.head_dim + made.width
        return HeadFacts(FALCON, made.width, made.vocab, made.depth, kept, ("post_norm",))

    @classmethod
    def load(cls, files: HeadFiles, packing: Packing) -> "Falcon":
        return cls(FalconConfig.read(files.config), files.tensors(), packing)

    @classmethod
    def sketch(cls, width: int, vocab: int, seed: int) -> "Falcon":
        config = FalconConfig(width=width, vocab=vocab, max_len=512, heads=2, kv_heads=1, head_dim=4, ffn=8,
                              own_head=True)  # fmt: skip
        return cls(config, sketched(sizes(config), seed), plain(torch.float32, torch.device("cpu")))

    def describe(self) -> str:
        return f"falcon, blocks of {self.block}, {self.kv_bytes_per_token} bytes a row"

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        return hidden[0]

    def forward(self, rows: Rows) -> Out:
        raise NotImplementedError("Its rows are blocks: see FalconDrafter.")

    def law(self, features: Tensor) -> Tensor:
        """Logits [N, V] of features [N, H]."""
        assert self.target is not None
        return (self.target.head(features) if self.own is None else self.own(features.contiguous())).float()

    def blank(self, count: int) -> State:
        zeros = torch.zeros(count, FALCON_LAYERS, self.config.width, dtype=self.compute)
        return zeros, zeros

    def recur(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of the LSTM: z [N, H] and the state behind it, from x [N, 2 H]."""
        hs, cs = [], []
        for layer in range(FALCON_LAYERS):
            gates = self.gates[layer](torch.cat((x, state[0][:, layer]), -1).contiguous())
            x, c = cell(gates, state[1][:, layer])
            hs.append(x)
            cs.append(c)
        return x, (torch.stack(hs, 1), torch.stack(cs, 1))

    def project(self, z: Tensor, position: Tensor, reach: int) -> tuple[Tensor, Tensor]:
        """Queries [N, heads, D] and K/V [N, 2, kv_heads, D] of rows z, rotated; as stored, the latter."""
        c = self.config
        turned = c.heads + c.kv_heads
        qkv = self.qkv(z.contiguous()).view(len(z), turned + c.kv_heads, c.head_dim).float()
        rotate_(qkv.narrow(1, 0, turned), self.rotary(position, reach))
        kv = qkv[:, c.heads :].view(len(z), 2, c.kv_heads, c.head_dim)
        return qkv[:, : c.heads], kv.to(self.dtype).float()

    def store(self, slots: Sequence[int], kv: Tensor) -> None:
        self.attend.slots[0].index_copy_(2, torch.tensor(slots), kv.permute(1, 2, 0, 3).to(self.dtype))

    def text(self, slots: Sequence[int]) -> Tensor:
        """K/V [2, kv_heads, N, D] in these slots."""
        return self.attend.slots[0].index_select(2, torch.tensor(slots, dtype=torch.int64)).float()

    def look(self, z: Tensor, q: Tensor, text: Tensor, own: Tensor) -> Tensor:
        """What rows z [N, H] put out, that all see the text's K/V [2, kv_heads, S, D] and each its own [N, A, 2,
        kv_heads, D]."""
        c, group = self.config, self.config.heads // self.config.kv_heads
        query = q.view(len(q), c.kv_heads, group, c.head_dim) * self.spec.attention_scale
        scores = [torch.einsum("nhgd,hsd->nhgs", query, text[0]), torch.einsum("nhgd,nahd->nhga", query, own[:, :, 0])]
        shares = torch.cat(scores, -1).softmax(-1)
        wide = text.shape[2]
        y = torch.einsum("nhgs,hsd->nhgd", shares[..., :wide], text[1])
        y = y + torch.einsum("nhga,nahd->nhgd", shares[..., wide:], own[:, :, 1])
        x = z + self.out(y.reshape(len(q), -1).to(self.compute))
        made: Tensor = x + self.ffn(self.ffn_norm(x))
        return made


@dataclass(slots=True)
class FalconNode:
    """A drafted token as a row: its K/V [2, kv_heads, D], query, z and the LSTM's state behind it."""

    kv: Tensor
    q: Tensor
    z: Tensor
    state: tuple[Tensor, Tensor]


@dataclass(slots=True)
class FalconBlock:
    """Outputs of a block: features [k, H] and distributions [k, V] of the k tokens after it."""

    features: Tensor
    logits: Tensor


@dataclass(slots=True)
class FalconState:
    """State of a request between steps: that of the LSTM after its row `row`."""

    row: int
    state: tuple[Tensor, Tensor]


@DRAFTERS.register(
    FALCON,
    Offers(
        "blocks of tokens from one pass of a head", frozenset({Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT}), "tree",
        HEAD_TREE_NODES, needs=frozenset({need(FALCON)}), group=FALCON, auto=(FALCON,),
    ),
)  # fmt: skip
class FalconDrafter(FeatureDrafter):
    group = FALCON
    head: Falcon

    @torch.inference_mode()
    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        self.kept = {ask.request.id: view.slots.get(ask.request.id) for ask in asks}
        return super().draft(asks, view)

    def grow(self, trees: Sequence[Tree]) -> list[Tensor]:
        tables: list[Tensor] = []
        self.texts: dict[int, Tensor] = {}
        self.nodes: dict[int, dict[tuple[int, ...], FalconNode]] = {}
        left = self.chunk
        for tree in trees:
            left -= self.catch_up_rows(tree, max(1, left))
            if tree.lagging:
                tree.fresh = []
        self.blocks([(tree, ()) for tree in trees if tree.fresh])
        while active := [tree for tree in trees if tree.fresh]:
            places = [(tree, place) for tree in active for place in sorted(tree.fresh)]
            paths = [(tree, tree.path(place)) for tree, place in places]
            k = self.head.block
            self.blocks([(t, path) for t, path in paths if path and len(path) % k == 0 and path not in t.states])
            logits = torch.stack(
                [t.states[path[: len(path) - len(path) % k]].logits[len(path) % k] for t, path in paths]
            )
            self._level(places, logits, tables)
        return tables

    def catch_up_rows(self, tree: Tree, most: int) -> int:
        """Compute K/V of the text's missing rows, up to `most` of them, and remember the LSTM's state. Returns the
        number of rows."""
        start, stop = tree.reach, min(tree.known, tree.reach + most)
        kept, k = self.kept.get(tree.ask.request.id), self.head.block
        again = max(0, min(start, tree.known - k))  # the last block's rows are needed as queries, too
        first, state = again - again % LSTM_ROWS, self.head.blank(1)
        if isinstance(kept, FalconState) and kept.row + 1 == again and again % LSTM_ROWS:
            first, state = again, (kept.state[0][None], kept.state[1][None])
        tokens = torch.tensor(tree.text(first, stop))
        before = self.head.before([-1] * (first == 0) + tree.slots(max(0, first - 1), stop - 1))
        x = torch.cat((self.embedded(tokens), before.to(self.head.compute)), -1)
        zs, states = [], {}
        for i, row in enumerate(range(first, stop)):
            z, state = self.head.recur(x[i : i + 1], state if row % LSTM_ROWS else self.head.blank(1))
            zs.append(z)
            states[row] = state
        z = torch.cat(zs)
        q, kv = self.head.project(z, torch.arange(first, stop), stop + 1)
        self.head.store(tree.slots(start, stop), kv[start - first :])
        tree.reach = stop
        mark = max(first, stop - 1 - k)  # next time its last block is computed from there
        tree.states["kept"] = FalconState(mark, (states[mark][0][0], states[mark][1][0]))
        if not tree.lagging:
            self.nodes[id(tree)] = {(): FalconNode(kv[-1], q[-k:], z[-k:], (state[0][0], state[1][0]))}
            self.texts[id(tree)] = self.head.text(tree.slots(min(1, stop - 1), stop))
        return stop - start

    def embedded(self, tokens: Tensor) -> Tensor:
        assert self.head.target is not None
        return self.head.target.embed(tokens).to(self.head.compute)

    def blocks(self, wanted: Sequence[tuple[Tree, tuple[int, ...]]]) -> None:
        """Compute the blocks that end with these paths: () is the end of the text."""
        if not wanted:
            return
        for i in range(self.head.block):
            self.rows({(id(t), path[: len(path) - self.head.block + 1 + i]): t for t, path in wanted if path})
        outs = []
        for tree, path in wanted:
            nodes = self.nodes[id(tree)]
            if not path:
                root = nodes[()]
                own = self.texts[id(tree)].new_empty(
                    len(root.z), 0, 2, self.head.config.kv_heads, self.head.config.head_dim
                )
                outs.append(self.head.look(root.z, root.q, self.texts[id(tree)], own))
                continue
            line = [nodes[path[: i + 1]] for i in range(len(path))]
            mine, k = line[-self.head.block :], self.head.block
            own = torch.stack([node.kv for node in line])[None].expand(k, -1, -1, -1, -1)
            z, q = torch.stack([node.z for node in mine]), torch.stack([node.q for node in mine])
            outs.append(self.head.look(z, q, self.texts[id(tree)], own))
        features = torch.cat(outs)
        logits, at = self.head.law(features), 0
        for (tree, path), out in zip(wanted, outs):
            made = FalconBlock(out, logits[at : at + len(out)])
            if len(out) < self.head.block:  # the text is shorter than a block
                lack = self.head.block - len(out)
                made = FalconBlock(
                    torch.cat((out[:1].expand(lack, -1), out)),
                    torch.cat((made.logits[:1].expand(lack, -1), made.logits)),
                )
            tree.states[path] = made
            at += len(out)

    def rows(self, wanted: Mapping[tuple[int, tuple[int, ...]], Tree]) -> None:
        """Compute the rows of drafted tokens, whose parents' are there."""
        todo = [(tree, path) for (key, path), tree in wanted.items() if path not in self.nodes[key]]
        if not todo:
            return
        above = [self.nodes[id(tree)][path[:-1]].state for tree, path in todo]
        position = [tree.known - 1 + len(path) for tree, path in todo]
        begins = torch.tensor([p % LSTM_ROWS == 0 for p in position])[:, None, None]
        h, c = (torch.stack([state[i] for state in above]).masked_fill(begins, 0.0) for i in (0, 1))
        k, features = self.head.block, []
        for tree, path in todo:
            whole = (len(path) - 1) // k * k
            features.append(tree.states[path[:whole]].features[len(path) - 1 - whole])
        x = torch.cat((self.embedded(torch.tensor([path[-1] for _, path in todo])), torch.stack(features)), -1)
        z, state = self.head.recur(x, (h, c))
        q, kv = self.head.project(z, torch.tensor(position), max(position) + 1)
        for i, (tree, path) in enumerate(todo):
            self.nodes[id(tree)][path] = FalconNode(kv[i], q[i], z[i], (state[0][i], state[1][i]))

    def learn(self, view: View) -> None:
        kept = {
            ask.request.id: tree.states.get("kept")
            for ask in view.asks
            if isinstance(tree := view.slots.get(ask.request.id), Tree)
        }
        super().learn(view)
        view.slots.update((number, it) for number, it in kept.items() if it is not None)
