"""Everything the decoder needs to know about a model, as data."""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "relu2", "swiglu_clamped"]
RouterScore = Literal["softmax", "sigmoid"]


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


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A layer's mixer of tokens that keeps a state for a text, not keys for each token: a gated convolution over the
    last `length` tokens (LFM2, Liquid AI 2025). The state is the convolution's last `length` - 1 inputs."""

    length: int
    bias: bool = False


Mixer = Attention | ShortConv
"""What mixes tokens. All but `Attention` are *recurrent*: they read the text through a state (model/state.py)."""


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
    """What a score becomes: a share among all experts, or a number between 0 and 1 of its own."""
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


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: what mixes tokens, then what is done to each token by itself."""

    mixer: Mixer
    feed: Dense | Experts

    @property
    def attention(self) -> Attention:
        """Its mixer, of a layer that is known to attend."""
        assert isinstance(self.mixer, Attention)
        return self.mixer


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
    layer_norm: bool = False
    """Norms subtract the mean, too."""
    norm_bias: bool = False
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
    early_exit: bool = False
    """It was trained to end behind any layer (`early_exit` in its config.json)."""

    @property
    def common(self) -> bool:
        """Whether the native decoder computes all layers: attention, and dense feed-forward parts or mixtures."""
        attends = all(isinstance(layer.mixer, Attention) for layer in self.layers)
        mixed, clamps = bool(self.mixtures), self.activation == "swiglu_clamped"
        odd = mixed and (self.parallel or not self.gated)
        return attends and not odd and not (clamps and len(self.mixtures) < len(self.layers))

    @property
    def ffn(self) -> int:
        """Inner numbers of the widest feed-forward part."""
        return max(max(feed.width, getattr(feed, "shared", 0)) for feed in (layer.feed for layer in self.layers))

    @property
    def mixtures(self) -> list[Experts]:
        """The feed-forward parts that are mixtures, in order."""
        return [layer.feed for layer in self.layers if isinstance(layer.feed, Experts)]

    @property
    def kv_width(self) -> int:
        """Numbers stored per token by all layers together, keys and values."""
        return 2 * self.kv_heads * self.head_dim * len(self.attentions)

    @property
    def attentions(self) -> list[Attention]:
        """The mixers of the layers that attend, in order."""
        return [layer.mixer for layer in self.layers if isinstance(layer.mixer, Attention)]

    @property
    def recurrent(self) -> bool:
        """Does a layer keep a state of the text?"""
        return len(self.attentions) < len(self.layers)

    @property
    def state_width(self) -> int:
        """Numbers of the state of a text, all layers together."""
        return sum(
            (m.length - 1) * self.hidden for m in (layer.mixer for layer in self.layers) if isinstance(m, ShortConv)
        )
