"""`longspec`: a decoder layer whose memory does not grow with the text (LongSpec, Yang et al. 2025, arXiv 2502.17421).

    x = e(token);  x += SelfAttention(norm x)             over the last WINDOW tokens
    x += CrossAttention(norm x)                           over the keys and values of the target's last layer
    x += FFN(norm x);  logits = head x                    the target's head, without a norm before it

Of the text the target's own cache is read, of the committed rows, where it lies; the drafted tokens are seen by self
attention alone. Its own keys and values are functions of token and position: what is kept of a request is a window of
them, rebuilt from the text when it is lost. Texts are read span by span, and spans are merged by their log-sum-exp:
nothing as long as the text is ever made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from paceline.attend.turn import rotate_
from paceline.cache.txn import Txn
from paceline.core.component import TARGET, Ability, Embeds, KeySource, Rowless
from paceline.core.forest import ROOT, Forest, Law
from paceline.core.registry import Offers
from paceline.draft import DRAFTERS, Ask, Host, View
from paceline.draft.dyspec import DySpec
from paceline.draft.grow import HEAD_TREE_NODES
from paceline.draft.head import HEADS, METHOD_KEY, HeadCard, HeadConfig, HeadFacts, HeadFiles, need
from paceline.draft.head_sizes import check_shapes, sketched
from paceline.draft.native_layers import layer_spec
from paceline.draft.tree import Tree
from paceline.model.blocks import FeedForward
from paceline.model.linear import Linear, Packing, plain
from paceline.model.norms import Norm
from paceline.model.rotary import Rotary

LONGSPEC = "longspec"
READ_ROWS = 512
"""Rows of the target's cache that are read at a time."""
Part = tuple[Tensor, Tensor]
"""What attention over some keys gives [N, heads, D], and the log-sum-exp [N, heads] of their scores."""


@dataclass(frozen=True, kw_only=True)
class LongSpecConfig(HeadConfig):
    window: int = 512
    """Tokens that self attention sees."""


def sizes(c: LongSpecConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every weight."""
    h, q, kv = c.width, c.heads * c.head_dim, c.kv_heads * c.head_dim
    own = {"lm_head.weight": (c.vocab, h)} if c.own_head else {}
    return {
        "input_layernorm.weight": (h,), "self_attn.q_proj.weight": (q, h), "self_attn.k_proj.weight": (kv, h),
        "self_attn.v_proj.weight": (kv, h), "self_attn.o_proj.weight": (h, q), "cross_layernorm.weight": (h,),
        "cross_attn.q_proj.weight": (q, h), "cross_attn.o_proj.weight": (h, q),
        "post_attention_layernorm.weight": (h,), "mlp.gate_proj.weight": (c.ffn, h), "mlp.up_proj.weight": (c.ffn, h),
        "mlp.down_proj.weight": (h, c.ffn), **own,
    }  # fmt: skip


def part(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Part:
    """Attention of q [N, heads, D] over keys and values [S, kv_heads, D], or [N, S, kv_heads, D] of each its own."""
    query = q.view(len(q), keys.shape[-2], -1, q.shape[-1]) * scale
    each = "nshd" if keys.dim() == 4 else "shd"
    scores = torch.einsum(f"nhgd,{each}->nhgs", query, keys)
    out = torch.einsum(f"nhgs,{each}->nhgd", scores.softmax(-1), values)
    return out.reshape(q.shape), scores.logsumexp(-1).reshape(q.shape[:2])


def merge(one: Part, other: Part) -> Part:
    """Attention over the keys of both."""
    weight = (one[1] - other[1]).sigmoid()[..., None]
    return one[0] * weight + other[0] * (1 - weight), torch.logaddexp(one[1], other[1])


@HEADS.register(LONGSPEC, HeadCard("a layer that reads the target's own cache, for long texts"))
class LongSpec(Rowless):
    """The component. It keeps nothing for each token of a text."""

    taps: tuple[str, ...] = ()
    abilities = frozenset[Ability]()

    def __init__(self, config: LongSpecConfig, weights: Mapping[str, Tensor], packing: Packing) -> None:
        check_shapes("LongSpec", sizes(config), weights)
        self.config, self.spec, self.compute = config, layer_spec(LONGSPEC, config), packing.compute
        self.width, self.vocab_size, self.max_len = config.width, config.vocab, config.max_len
        self.weight_bytes = sum(weights[name].numel() for name in sizes(config)) * packing.dtype.itemsize
        self.rotary = Rotary(
            self.spec.layers[0].attention.rope, torch.device("cpu"), torch.float32, config.max_len + 64
        )

        def linear(*names: str) -> Linear:
            joined = torch.cat([weights[f"{name}.weight"] for name in names])
            return packing.pack(joined.to(packing.dtype).contiguous(), None)

        def norm(name: str) -> Norm:
            return Norm(weights[f"{name}.weight"].float(), config.eps)

        self.norms = [norm(name) for name in ("input_layernorm", "cross_layernorm", "post_attention_layernorm")]
        self.q, self.kv = linear("self_attn.q_proj"), linear("self_attn.k_proj", "self_attn.v_proj")
        self.out, self.cross_out = linear("self_attn.o_proj"), linear("cross_attn.o_proj")
        self.cross_q = linear("cross_attn.q_proj")
        self.ffn = FeedForward(self.spec, linear("mlp.gate_proj", "mlp.up_proj"), linear("mlp.down_proj"))
        self.own = linear("lm_head") if config.own_head else None
        self.target: Embeds | None = None

    @classmethod
    def claims(cls, config: Mapping[str, Any]) -> bool:
        return config.get(METHOD_KEY) == LONGSPEC

    @classmethod
    def facts(cls, config: Mapping[str, Any]) -> HeadFacts:
        made = LongSpecConfig.read(config)
        return HeadFacts(LONGSPEC, made.width, made.vocab, made.depth, 0, ())

    @classmethod
    def load(cls, files: HeadFiles, packing: Packing) -> "LongSpec":
        return cls(LongSpecConfig.read(files.config), files.tensors(), packing)

    @classmethod
    def sketch(cls, width: int, vocab: int, seed: int) -> "LongSpec":
        config = LongSpecConfig(
            width=width, vocab=vocab, max_len=512, heads=2, kv_heads=1, head_dim=2, ffn=8, own_head=True, window=5
        )
        return cls(config, sketched(sizes(config), seed), plain(torch.float32, torch.device("cpu")))

    def describe(self) -> str:
        return f"longspec, a window of {self.config.window} tokens"

    # -- the layer -----------------------------------------------------------------------------------------------------

    def turned(self, x: Tensor, position: Tensor) -> Tensor:
        x = x.float().contiguous()
        rotate_(x, self.rotary(position, int(position.max()) + 1))
        return x

    def embedded(self, tokens: Sequence[int]) -> Tensor:
        assert self.target is not None
        return self.target.embed(torch.tensor(tokens)).to(self.compute)

    def rows(self, tokens: Sequence[int], position: Sequence[int]) -> Tensor:
        """Keys and values [N, 2, kv_heads, D] of tokens at these positions."""
        c = self.config
        kv = self.kv(self.norms[0](self.embedded(tokens))).view(len(tokens), 2, c.kv_heads, c.head_dim).float()
        return torch.stack((self.turned(kv[:, 0], torch.tensor(position)), kv[:, 1]), 1)

    def attended(self, tokens: Sequence[int], position: int, window: Tensor, above: Tensor) -> Tensor:
        """x [N, H] behind self attention, of nodes of one depth: over the `window` [S, 2, kv_heads, D] of the text, and
        each over its path `above` [N, A, 2, kv_heads, D], itself included."""
        c, x = self.config, self.embedded(tokens)
        at = torch.full((len(tokens),), position)
        q = self.turned(self.q(self.norms[0](x)).view(len(x), c.heads, c.head_dim), at)
        near = window[max(0, len(window) + above.shape[1] - c.window) :]
        parts = [part(q, near[:, 0], near[:, 1], self.spec.attention_scale)] if len(near) else []
        if above.shape[1]:
            parts.append(part(q, above[:, :, 0], above[:, :, 1], self.spec.attention_scale))
        seen = parts[0] if len(parts) == 1 else merge(*parts)
        return x + self.out(seen[0].flatten(1).to(self.compute))

    def crossed(self, x: Tensor, position: int, slots: Tensor, target: KeySource) -> Tensor:
        """x [N, H] behind cross attention over the target's last layer in these slots, READ_ROWS by READ_ROWS."""
        if not len(slots):
            return x
        c = self.config
        q = self.cross_q(self.norms[1](x)).view(len(x), c.heads, c.head_dim)
        q = self.turned(q, torch.full((len(x),), position))
        seen: Part | None = None
        for span in torch.split(slots, READ_ROWS):
            new = part(q, *target.last_keys(span), self.spec.attention_scale)
            seen = new if seen is None else merge(seen, new)
        assert seen is not None
        return x + self.cross_out(seen[0].flatten(1).to(self.compute))

    def law(self, x: Tensor) -> Tensor:
        """Logits [N, V] of x [N, H] behind both attentions."""
        x = x + self.ffn(self.norms[2](x))
        assert self.target is not None
        return (self.target.head(x) if self.own is None else self.own(x)).float()


@dataclass(slots=True)
class KeyWindow:
    """What is remembered of a request: keys and values [S, 2, kv_heads, D] of the rows up to `stop` of its text, the
    last `window` ones."""

    stop: int
    kv: Tensor


@DRAFTERS.register(
    LONGSPEC,
    Offers(
        "a layer that reads the target's own cache", frozenset({Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT}), "tree",
        HEAD_TREE_NODES, needs=frozenset({need(LONGSPEC)}), auto=(LONGSPEC,),
    ),
)  # fmt: skip
class LongSpecDrafter(DySpec):
    """Trees on the layer. It keeps no K/V group: `reach` is always the whole text."""

    def __init__(self, host: Host) -> None:
        self.group = TARGET
        super().__init__(host)
        self.native = None
        self.head = cast(LongSpec, host.components[LONGSPEC])
        self.head.target = host.embeds(TARGET)
        target = host.components[TARGET]
        assert "keys" in target.abilities, "the target does not show its cache"
        self.keys = cast(KeySource, target)

    @torch.inference_mode()
    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        self.windows = {ask.request.id: view.slots.pop(ask.request.id, None) for ask in asks}
        trees = []
        for ask in asks:
            if ask.item.nodes:
                law = Law.POINT if ask.request.params.greedy and ask.law is not Law.SAMPLED else ask.law
                tree = Tree(ask, ask.known, law)
                tree.fresh = [ROOT]
                self.plant(tree)
                trees.append(tree)
        return self.forest(trees, self.grow(trees), view)

    def grow(self, trees: Sequence[Tree]) -> list[Tensor]:
        tables: list[Tensor] = []
        for tree in trees:
            window = self.window(tree, self.windows.get(tree.ask.request.id))
            tree.states = {"window": window, (): window.kv[-1], "slots": committed(tree.ask.txn)}
        while active := [tree for tree in trees if tree.fresh]:
            places, xs = list[tuple[Tree, int]](), list[Tensor]()
            for tree in active:
                mine = sorted(tree.fresh, key=lambda place: tree.depth[place] if place != ROOT else 0)
                places += [(tree, place) for place in mine]
                for depth in dict.fromkeys(len(tree.path(place)) for place in mine):
                    xs.append(self.level(tree, [path for p in mine if len(path := tree.path(p)) == depth], depth))
            self._level(places, self.head.law(torch.cat(xs)), tables)
        return tables

    def window(self, tree: Tree, kept: object) -> KeyWindow:
        """Window over the whole text: the remembered rows and the new ones."""
        most, known = self.head.config.window, tree.known
        start = max(0, known - most)
        old = kept.kv if isinstance(kept, KeyWindow) and start <= kept.stop <= known else None
        first = kept.stop if old is not None and isinstance(kept, KeyWindow) else start
        parts = [old] if old is not None else []
        if first < known:
            parts.append(self.head.rows(tree.text(first, known), range(first, known)))
        return KeyWindow(known, torch.cat(parts)[-most:].clone())

    def level(self, tree: Tree, paths: list[tuple[int, ...]], depth: int) -> Tensor:
        """x [N, H] of the nodes with these paths, all of one depth; () is the last token of the text."""
        window, known = tree.states["window"].kv, tree.known
        new = dict.fromkeys(path[:i] for path in paths for i in range(1, depth + 1) if path[:i] not in tree.states)
        if new:
            rows = self.head.rows([path[-1] for path in new], [known - 1 + len(path) for path in new])
            tree.states.update(zip(new, rows))
        above = (
            torch.stack([torch.stack([tree.states[path[: i + 1]] for i in range(depth)]) for path in paths])
            if (depth)
            else window.new_empty(len(paths), 0, *window.shape[1:])
        )
        tokens = [path[-1] if path else tree.text(known - 1, known)[0] for path in paths]
        x = self.head.attended(tokens, known - 1 + depth, window, above)
        return self.head.crossed(x, known - 1 + depth, tree.states["slots"], self.keys)

    def learn(self, view: View) -> None:
        for ask in view.asks:
            tree = view.slots.pop(ask.request.id, None)
            if isinstance(tree, Tree):
                if tree.ask.item.nodes:
                    self.observe(tree, [tree.places[node] for node in view.accepted(ask)])
                view.slots[ask.request.id] = tree.states["window"]


def committed(txn: Txn) -> Tensor:
    """Slots, int64 [N], of the rows that were committed before a transaction."""
    size, blocks = txn.lease.pool.block_size, torch.tensor(txn.lease.blocks, dtype=torch.int64)
    return (blocks[:, None] * size + torch.arange(size)).flatten()[: txn.base]
