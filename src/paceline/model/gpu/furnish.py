"""What turns a decoder that was loaded for a GPU into one that computes with its kernels."""

from collections.abc import Iterator
from functools import partial

from paceline.model.blocks import Block, FeedForward, Mixture
from paceline.model.decoder import Decoder
from paceline.model.gpu.experts import grouped
from paceline.model.gpu.fused import GATED_KINDS, gated, kernelled, looked_up


def furnish(decoder: Decoder) -> None:
    """Compute its norms, gates, mixtures and look-ups by kernels from now on."""
    weights, spec = decoder.weights, decoder.spec
    weights.norm = kernelled(weights.norm) or weights.norm
    for block in weights.blocks:
        for name in ("attention_norm", "attention_post_norm", "ffn_norm", "ffn_post_norm"):
            setattr(block, name, kernelled(getattr(block, name)))
        if (attention := block.attention) is not None:
            attention.head_norm = kernelled(attention.head_norm)
        if spec.gated and spec.activation in GATED_KINDS:
            for feed in feeds(block):
                feed.gates = partial(gated, spec.activation)
        if isinstance(block.ffn, Mixture):
            block.ffn = grouped(block.ffn)
    for index, block in enumerate(weights.blocks[1:]):
        if block.mixer is not None:
            decoder.following[index] = block.attention_norm
    decoder.kernels = looked_up


def feeds(block: Block) -> Iterator[FeedForward]:
    """The dense feed-forward parts of a layer."""
    if isinstance(block.ffn, FeedForward):
        yield block.ffn
    elif block.ffn is not None:
        yield from block.ffn.experts
        if block.ffn.shared is not None:
            yield block.ffn.shared
