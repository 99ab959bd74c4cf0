"""Everything the decoder needs to know about a model, as data."""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding with every scaling already applied, so that a position is always rotated alike.

    `inverse` holds the float32 inverse frequencies; the first 2 * len(inverse) dimensions of a head are
    rotated, the others pass (phi3's partial rotary). `scale` multiplies cos and sin (yarn, longrope).
    """

    inverse: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Layer:
    """What may differ from layer to layer. A key is visible iff position - key position < window."""

    rope: Rope
    window: int | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A dense decoder. `family` is for messages only: no code outside families.py may branch on it."""

    family: str
    layers: tuple[Layer, ...]
    vocab: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
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

    @property
    def kv_width(self) -> int:
        """Numbers stored per token by all layers together, keys and values."""
        return 2 * self.kv_heads * self.head_dim * len(self.layers)
