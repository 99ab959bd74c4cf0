"""Conversion of a decoder that was loaded for a GPU into one that computes with its kernels."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from paceline.attend.fused import Fused
from paceline.model.blocks import Block, FeedForward, Mixture, SelfAttention
from paceline.model.decoder import Decoder
from paceline.model.gpu.experts import GroupedMixture, grouped
from paceline.model.gpu.fused import GATED_KINDS, gated, kernelled, looked_up
from paceline.model.gpu.graphs import CudaGraphs, Graphs, Repeating


def furnish(decoder: Decoder) -> None:
    """Compute its norms, gates, mixtures and look-ups by kernels from now on."""
    weights, spec = decoder.weights, decoder.spec
    weights.norm = kernelled(weights.norm) or weights.norm
    for block in weights.blocks:
        for name in ("attention_norm", "attention_post_norm", "ffn_norm", "ffn_post_norm"):
            setattr(block, name, kernelled(getattr(block, name)))
        if isinstance(attention := block.attention, SelfAttention):
            attention.head_norm = kernelled(attention.head_norm)
        if spec.gated and spec.activation in GATED_KINDS:
            for feed in feeds(block):
                feed.gates = partial(gated, spec.activation)
        if type(block.ffn) is Mixture:
            block.ffn = grouped(block.ffn)
    for index, (block, after) in enumerate(pairwise(weights.blocks)):
        if block.close is None and after.mixer is not None:
            decoder.following[index] = after.attention_norm
    decoder.kernels = looked_up
    # a mixture of another kind asks the host for its experts
    still = all(type(it.ffn) in (FeedForward, GroupedMixture, type(None)) for it in weights.blocks)
    if still and not spec.recurrent and decoder.attend_type is not Fused:
        for rotary in decoder.rotaries:
            rotary.extend(rotary.most)  # a longer table would be another tensor
        device = CudaGraphs() if decoder.device.type == "cuda" else Repeating()
        decoder.graphs = Graphs(device, decoder.device)


def feeds(block: Block) -> Iterator[FeedForward]:
    """The dense feed-forward parts of a layer."""
    if isinstance(block.ffn, FeedForward):
        yield block.ffn
    elif (mixture := block.mixture) is not None:
        yield from mixture.experts
        if mixture.shared is not None:
            yield mixture.shared
