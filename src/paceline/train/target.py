"""Target of a training: its decoder, and the tensors that heads share with it, through which gradients pass."""

import hashlib
import math
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from paceline.core.errors import RefusalError
from paceline.engine.options import Dtype
from paceline.engine.text import Text
from paceline.model.checkpoint import open_tensors, resolve
from paceline.model.decoder import Decoder
from paceline.model.families import FAMILIES
from paceline.model.linear import plain
from paceline.model.load import load_model
from paceline.model.loader import Loader
from paceline.model.spec import Attention, Dense, ModelSpec

SAMPLE = 1 << 20
"""Bytes of each end of a weight file that its fingerprint reads."""


class TrainingTarget:
    """A model that drafters are trained for. Frozen."""

    def __init__(self, model: str | Path, dtype: Dtype = "bfloat16") -> None:
        """`dtype`: of its decoder. Raises CheckpointError."""
        self.name, self.path = str(model), resolve(model)
        self.dtype: Dtype = dtype
        self.text = Text(self.path)
        self.decoder: Decoder = load_model(self.path, dtype=dtype)
        if "post_norm" not in self.decoder.places:
            raise RefusalError(f"{model} does not show its hidden states, so no head can be trained on it.")

        self.blocks = 0

    def reserve(self, blocks: int, size: int) -> None:
        """Allocate a K/V pool of at least `blocks` blocks: sources of several lengths share one decoder."""
        if blocks > self.blocks:
            self.decoder.allocate(blocks, size)
            self.blocks = blocks

    @property
    def spec(self) -> ModelSpec:
        return self.decoder.spec

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of config and weights: equal for equal files."""
        digest = hashlib.sha256()
        files = (
            [self.path] if self.path.is_file() else [*self.path.glob("config.json"), *self.path.glob("*.safetensors")]
        )
        for file in sorted(files):
            size = file.stat().st_size
            digest.update(f"{file.name} {size}".encode())
            with file.open("rb") as handle:
                digest.update(handle.read(SAMPLE))
                handle.seek(max(0, size - SAMPLE))
                digest.update(handle.read())
        return digest.hexdigest()[:16]

    @torch.no_grad()
    def embed(self, token: Tensor) -> Tensor:
        """[..., H] in float32, as they enter the first layer."""
        return self.decoder.embed(token.reshape(-1)).float().view(*token.shape, -1)

    @cached_property
    def output(self) -> Tensor:
        """The output matrix [V, H], float32."""
        tensors = open_tensors(self.path)
        cpu, names = torch.device("cpu"), FAMILIES[self.spec.family].names
        loader = Loader(self.spec, names, tensors, plain(torch.float32, cpu), cpu)
        own = not self.spec.tied or f"{loader.names.head}.weight" in tensors.place
        table = torch.empty(0) if own and not self.spec.tied else loader.table(loader.names.embedding)
        return loader.head(table).float().contiguous()

    def layer(self, index: int) -> dict[str, Tensor] | None:
        """Weights of a layer in float32, by the names of `DraftLayer`; None for a layer of another form."""
        spec, names = self.spec, FAMILIES[self.spec.family].names
        mixer, feeds = spec.layers[index].mixer, spec.layers[index].feed
        biased = spec.qkv_bias or spec.out_bias or spec.mlp_bias or spec.norm_bias
        other = (
            spec.qk_norm or spec.post_norms or spec.layer_norm or spec.parallel or not (spec.pre_norms and spec.gated)
        )
        if not isinstance(mixer, Attention) or not isinstance(feeds, Dense) or biased or other or spec.norm_offset:
            return None
        if spec.activation != "silu" or len(names.qkv) != 3 or len(names.gate_up) != 2 or mixer.window is not None:
            return None
        cpu, h, at = torch.device("cpu"), spec.hidden, names.layer.format(index)
        loader = Loader(spec, names, open_tensors(self.path), plain(torch.float32, cpu), cpu)
        if loader.interleaved:
            return None
        kv = spec.kv_heads * spec.head_dim
        sizes = {
            names.qkv[0]: (spec.heads * spec.head_dim, h), names.qkv[1]: (kv, h), names.qkv[2]: (kv, h),
            names.out: (h, spec.heads * spec.head_dim), names.gate_up[0]: (feeds.width, h),
            names.gate_up[1]: (feeds.width, h), names.down: (h, feeds.width), names.attention_norm: (h,),
            names.ffn_norm: (h,),
        }  # fmt: skip
        ours = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "input_layernorm",
                "post_attention_layernorm")  # fmt: skip
        return {
            f"{name}.weight": loader.take(f"{at}{theirs}.weight", *size).float()
            for name, (theirs, size) in zip(ours, sizes.items())
        }

    @property
    def theta(self) -> float:
        """Base of the rotation of the last layer that attends, as if it were not scaled."""
        inverse = self.spec.attentions[-1].rope.inverse
        return inverse[1] ** -len(inverse) if len(inverse) > 1 else 10_000.0

    @cached_property
    def norm_weight(self) -> Tensor:
        """Weight [H] of the final norm, float32."""
        weight: Tensor = self.decoder.weights.norm.weight.float()
        return weight / math.sqrt(weight.shape[-1])  # as `model.blocks.Norm` holds it

    def norm(self, hidden: Tensor) -> Tensor:
        """States behind the final norm, of those before it."""
        flat: Tensor = self.decoder.weights.norm(hidden.reshape(-1, hidden.shape[-1]))
        return flat.reshape(hidden.shape)

    def head(self, hidden: Tensor, words: Tensor | None = None) -> Tensor:
        """Logits [..., V] of hidden states [..., H] behind the final norm, or of these words alone; differentiable."""
        output = self.output if words is None else self.output[words]
        logits = torch.nn.functional.linear(hidden, output.to(hidden.dtype)).float() * self.spec.logit_scale
        cap = self.spec.logit_softcap
        return logits if cap is None else (logits / cap).tanh() * cap
