"""Everything the decoder needs to know about a model, as data."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "relu2", "swiglu_clamped", "xielu"]
RouterScore = Literal["softmax", "sigmoid", "sparse"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding with every scaling already applied, so that a position is always rotated alike.

    `inverse` holds the float32 inverse frequencies; the first 2 * len(inverse) dimensions of a head are
    rotated, the others pass (phi3's partial rotary). `scale` multiplies cos and sin (yarn, longrope).
    """

    inverse: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer's mixer of tokens. A key is visible iff position - key position < window."""

    rope: Rope
    window: int | None = None
    kv_heads: int | None = None
    """Heads of keys and values, and numbers of a head, where they are not the model's (Gemma 4)."""
    head_dim: int | None = None
    shares: int | None = None
    """The layer whose keys and values it reads; None: it has its own."""
    same: bool = False
    """Values are what keys are before their norm and rotation."""

    @property
    def plain(self) -> bool:
        """Are keys and values those of most models?"""
        return self == Attention(self.rope, self.window)


@dataclass(frozen=True, slots=True)
class Latent:
    """A layer's mixer of tokens whose keys and values are made of one latent vector for each token (MLA, DeepSeek-V2,
    arXiv 2405.04434, section 2.1). The vector is kept, and a part that is rotated; what would make keys and values of
    it is multiplied into queries and results."""

    rope: Rope
    rank: int
    """Numbers of the latent vector."""
    query_rank: int | None
    """Numbers of the latent vector that queries are made of; None: they are made of the input."""
    head_dim: int
    """Numbers of a head's queries that are not rotated, and of its values."""
    value_dim: int
    interleaved: bool = True
    """Pairs that are rotated together lie side by side."""
    window: None = None
    shares: None = None

    @property
    def width(self) -> int:
        """Numbers that are kept of each token."""
        return self.rank + 2 * len(self.rope.inverse)


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A layer's mixer of tokens that keeps a state for a text, not keys for each token: a gated convolution over the
    last `length` tokens (LFM2, Liquid AI 2025). The state is the convolution's last `length` - 1 inputs."""

    length: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Mamba:
    """Mamba-2 (Dao & Gu 2024, arXiv 2405.21060): a short convolution, then a matrix for each head that decays by one
    number and takes up a value times a key. `groups` of heads share keys and queries of `state` numbers."""

    heads: int
    head_dim: int
    groups: int
    state: int
    length: int
    """Tokens that the convolution reads."""
    conv_bias: bool
    in_bias: bool
    out_bias: bool
    limits: tuple[float, float]
    """Shortest and longest time step."""
    norm: Literal["gate_first", "norm_first", ""] = "gate_first"
    """What comes first where heads are gated and normed; none: they are gated alone."""

    @property
    def width(self) -> int:
        """Numbers of all values together."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Numbers of a row that the convolution mixes."""
        return self.width + 2 * self.groups * self.state

    @property
    def record(self) -> int:
        """Numbers that a row brings to the state."""
        return self.channels + self.heads

    @property
    def matrix(self) -> tuple[int, int, int, int]:
        """Shape of all heads' matrices."""
        return (self.groups, self.heads // self.groups, self.head_dim, self.state)


@dataclass(frozen=True, slots=True)
class Delta:
    """Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): as Mamba-2, but a key's old value makes room for the new
    one. Each of `key_heads` serves as many value heads as there are for one."""

    heads: int
    head_dim: int
    key_heads: int
    key_dim: int
    length: int
    """Tokens that the convolution reads."""
    fused: bool
    """The checkpoint has all input projections head by head in two matrices (qwen3_next), else in four."""
    paired: bool = False
    """Rates and decays have one of these four matrices together, head by head (GGUF's Qwen3-Next)."""
    tiled: bool = False
    """Value head h reads key head h % key_heads (GGUF's order), else h // (heads / key_heads)."""

    @property
    def inner(self) -> list[int]:
        """Outputs of each of these matrices: gates, what the convolution mixes, rates and decays."""
        keys = self.key_heads * self.key_dim
        if self.fused:
            return [2 * (self.width + keys), 2 * self.heads]
        rates = [2 * self.heads] if self.paired else [self.heads, self.heads]
        return [self.width, self.width + 2 * keys, *rates]

    @property
    def width(self) -> int:
        """Numbers of all values together."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Numbers of a row that the convolution mixes."""
        return self.width + 2 * self.key_heads * self.key_dim

    @property
    def record(self) -> int:
        """Numbers that a row brings to the state."""
        return self.channels + 2 * self.heads

    @property
    def matrix(self) -> tuple[int, int, int, int]:
        """Shape of all heads' matrices."""
        return (self.key_heads, self.heads // self.key_heads, self.head_dim, self.key_dim)


@dataclass(frozen=True, slots=True)
class Both:
    """Attention and a recurrence that read the same input side by side, and are added together (Falcon-H1)."""

    attention: Attention
    recurrence: Mamba


Attends = Attention | Latent
"""What keeps something of each token."""
Recurrent = ShortConv | Mamba | Delta
"""What reads the text through a state (model/state.py)."""
Mixer = Attention | Latent | ShortConv | Mamba | Delta | Both
"""What mixes tokens."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A feed-forward part with `width` inner numbers."""

    width: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of `count` feed-forward parts with `width` inner numbers each. A router chooses `active` of them for
    each token (Shazeer et al. 2017, arXiv 1701.06538)."""

    count: int
    active: int
    width: int
    normed: bool
    """The weights of the chosen experts add up to 1; else they are their shares among all experts."""
    shared: int = 0
    """Inner numbers of one more expert that every token uses; 0: there is none."""
    shared_gated: bool = True
    """That one is weighed by a gate of its own."""
    score: RouterScore = "softmax"
    """What a score becomes: a share among all experts, or a number between 0 and 1 of its own, or the share of the best
    among those near it, then of the next best (`near`: SparseMixer, arXiv 2409.12136)."""
    near: float = 0.0
    """How far below the best, as a part of it, an expert may be to count as near."""
    corrected: bool = False
    """Each expert has a number that is added to it where experts are chosen, not where they are weighed."""
    groups: int = 1
    """Experts are chosen from the best `active_groups` of these groups alone; a group is as good as its best
    `group_best` experts together (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""
    active_groups: int = 1
    group_best: int = 2
    scale: float = 1.0
    """Factor of all weights."""
    floor: float = 0.0
    """Added to the sum of the weights before they are divided by it."""
    router_bias: bool = False
    weighs_inputs: bool = False
    """Weights multiply what experts read, not what they give (Llama 4)."""
    shared_scale: float = 1.0
    """Factor of what the expert that every token uses gives; it is loaded into its weights."""
    beside: int = 0
    """Inner numbers of a dense part next to the mixture, both with norms of their own (Gemma 4); 0: there is none."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """What a layer keeps of each token: `parts` times `heads` times `width` numbers; keys and values are two parts."""

    parts: int
    heads: int
    width: int

    @property
    def numbers(self) -> int:
        """Numbers of a token in all: parts times heads times width."""
        return self.parts * self.heads * self.width


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: what mixes tokens, then what is done to each token by itself; some lack one of them."""

    mixer: Mixer | None
    feed: Dense | Experts | None

    @property
    def attention(self) -> Attention:
        """The mixer of a layer that is known to attend."""
        assert isinstance(self.attends, Attention)
        return self.attends

    @property
    def attends(self) -> Attends | None:
        """Mixer that keeps keys and values, or reads another's; None where there is none."""
        if isinstance(self.mixer, Both):
            return self.mixer.attention
        return self.mixer if isinstance(self.mixer, Attention | Latent) else None

    @property
    def recurs(self) -> Recurrent | None:
        """What keeps a state, if anything does."""
        if isinstance(self.mixer, Both):
            return self.mixer.recurrence
        return self.mixer if isinstance(self.mixer, ShortConv | Mamba | Delta) else None


MOST_NATIVE_LENGTH = 16
"""Tokens that a native convolution reads (base.h)."""


def recurs_alone(layer: Layer) -> bool:
    """Is its mixer a recurrence that the native library computes?"""
    mixer = layer.mixer
    return isinstance(mixer, ShortConv | Mamba | Delta) and mixer.length <= MOST_NATIVE_LENGTH


Counted = tuple[tuple[int, float], ...]
"""Factors, each with how many outputs it is for."""


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Factors of Falcon-H1's projections, which become part of the weights as they are loaded."""

    attention_in: float
    attention_out: float
    key: float
    scan_in: float
    scan_out: float
    scan: tuple[float, ...]
    """Factors of a recurrence's inputs: gate, values, keys, queries, time steps."""
    gate: float
    down: float

    @property
    def folded(self) -> bool:
        """Whether weights have them already, as in GGUF files."""
        return {self.attention_in, self.attention_out, self.key, self.scan_in, *self.scan, self.gate, self.down} == {1}

    def qkv(self, queries: int, keys: int) -> Counted:
        """(count, factor) of the outputs of queries, keys and values."""
        by = self.attention_in
        return (queries, by), (keys, by * self.key), (keys, by)

    def inner(self, parts: Sequence[int]) -> Counted:
        """Factors of a recurrence's inputs."""
        return tuple((count, self.scan_in * factor) for count, factor in zip(parts, self.scan))

    def gates(self, width: int) -> Counted:
        """Factors of gates and what they gate."""
        return (width, self.gate), (width, 1.0)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder. `family` is for messages only: no code outside families.py and read_spec.py may branch on it."""

    family: str
    layers: tuple[Layer, ...]
    vocab: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    max_len: int
    activation: Activation
    norm_eps: float
    norm_offset: float
    """Added to every norm weight: 1 for gemma, whose checkpoints store w - 1."""
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """RMS norm over each head of q and k before the rotation."""
    post_norms: bool
    """Norms after attention and after the feed-forward as well as before (gemma's four norms)."""
    attention_scale: float
    attention_softcap: float | None
    logit_softcap: float | None
    embedding_scale: float
    eos: tuple[int, ...]
    pre_norms: bool = True
    """Norms before attention and feed-forward; without them there are post norms (olmo2, exaone4)."""
    whole_norm: bool = False
    """q and k are normed over all their heads together."""
    norm_unweighted: bool = False
    """q and k are normed without weights, and only in layers that rotate them (Llama 4)."""
    layer_norm: bool = False
    """Norms subtract the mean, too."""
    norm_bias: bool = False
    norm_turned: bool = False
    """q and k are normed behind their rotation, not before it (Hunyuan)."""
    head_bias: bool = False
    parallel: bool = False
    """Attention and feed-forward read the same normed input, and are added together (cohere)."""
    gated: bool = True
    """Feed-forward of two matrices and their product; else of one, activated."""
    residual_scale: float = 1.0
    """What a layer adds is multiplied by this first."""
    logit_scale: float = 1.0
    sinks: bool = False
    """Each head has a score of its own that takes a share and gives nothing (gpt-oss)."""
    swiglu: tuple[float, float] = (1.0, 0.0)
    """Slope and limit of `swiglu_clamped`: (1 + up) gate sigmoid(slope gate), both cut at the limit."""
    gated_attention: bool = False
    """What a head attends to is multiplied by the sigmoid of a gate (qwen3_next)."""
    head_gates: bool = False
    """The checkpoint has one such gate for a head (lfm3), which is loaded once for each of the head's numbers."""
    multipliers: Multipliers | None = None
    value_norm: bool = False
    """Values are normed over each head, without weights."""
    layer_scale: bool = False
    """The stream is multiplied by a number behind each layer."""
    token_width: int = 0
    """Numbers of what each layer has of a token's own (Gemma 4's per-layer embeddings), looked up among `token_vocab`
    rows; 0: nothing."""
    token_vocab: int = 0
    early_exit: bool = False
    """Was the model trained to end after any layer (`early_exit` in its config.json)?"""

    @property
    def common(self) -> bool:
        """Whether the native decoder computes all layers: attention or a recurrence, and dense feed-forward parts or
        mixtures."""
        whole = all(
            layer.mixer.plain and layer.feed is not None if isinstance(layer.mixer, Attention) else recurs_alone(layer)
            for layer in self.layers
        )
        attends = whole and not (self.value_norm or self.layer_scale or self.token_width)
        mixed, clamps = bool(self.mixtures), self.activation == "swiglu_clamped"
        if self.norm_turned or self.norm_unweighted or self.activation == "xielu" or (self.qk_norm and self.layer_norm):
            return False
        apart = any(it.beside or it.weighs_inputs or it.score == "sparse" for it in self.mixtures)
        odd = mixed and (self.parallel or not self.gated or apart)
        return attends and not odd and not (clamps and len(self.mixtures) < len(self.layers))

    @property
    def ffn(self) -> int:
        """Inner numbers of the widest feed-forward part."""
        feeds = [layer.feed for layer in self.layers if layer.feed is not None]
        beside = [max(it.shared, it.beside) for it in self.mixtures]
        return max([feed.width for feed in feeds] + beside, default=self.hidden)

    @property
    def mixtures(self) -> list[Experts]:
        """The feed-forward parts that are mixtures, in order."""
        return [layer.feed for layer in self.layers if isinstance(layer.feed, Experts)]

    @property
    def kv_width(self) -> int:
        """Numbers stored per token by all layers together, keys and values."""
        return sum(shape.numbers * len(layers) for shape, layers in self.pools.items())

    def kept(self, mixer: Attends) -> KvShape:
        """Keys and values of each token in a layer with this mixer."""
        if isinstance(mixer, Latent):
            return KvShape(1, 1, mixer.width)
        return KvShape(2, mixer.kv_heads or self.kv_heads, mixer.head_dim or self.head_dim)

    @property
    def pools(self) -> dict[KvShape, list[int]]:
        """The layers that keep something of each token, by its shape."""
        found: dict[KvShape, list[int]] = {}
        for index, layer in enumerate(self.layers):
            if layer.attends is not None and layer.attends.shares is None:
                found.setdefault(self.kept(layer.attends), []).append(index)
        return found

    def place(self, index: int) -> tuple[int, int]:
        """Where a layer that attends finds its keys: the pool's number, and the place in it."""
        mixer = self.layers[index].attends
        assert mixer is not None
        shape, owner = self.kept(mixer), index if mixer.shares is None else mixer.shares
        pools = self.pools
        return list(pools).index(shape), pools[shape].index(owner)

    @property
    def uniform(self) -> bool:
        """Does each layer that attends keep keys and values of the model's own shape?"""
        return all(isinstance(it, Attention) and it.plain for it in self.attentions)

    @property
    def attentions(self) -> list[Attends]:
        """The mixers of the layers that attend, in order."""
        return [layer.attends for layer in self.layers if layer.attends is not None]

    @property
    def recurrences(self) -> list[Recurrent]:
        """What keeps a state, in order."""
        return [layer.recurs for layer in self.layers if layer.recurs is not None]

    @property
    def recurrent(self) -> bool:
        """Does a layer keep a state of the text?"""
        return bool(self.recurrences)

    def state_bytes(self, itemsize: int) -> int:
        """Bytes of the state of a text, all layers together; `itemsize`: of a number that layers compute with."""
        return sum(
            (it.length - 1) * self.hidden * itemsize
            if isinstance(it, ShortConv)
            else (it.length - 1) * it.channels * itemsize + prod(it.matrix) * max(itemsize, 4)
            for it in self.recurrences
        )

    def record_bytes(self, itemsize: int) -> int:
        """Bytes that one row brings to the state (its record)."""
        widths = [self.hidden if isinstance(it, ShortConv) else it.record for it in self.recurrences]
        return itemsize * sum(widths)
