"""`mtp`: the layer that a model brings along to predict further tokens (multi-token prediction; Qwen3-Next, Qwen 3.5).

    u = W [norm e(x_t); norm f]                 f: the target's state behind its final norm, of the row before
    f' = norm' Layer(u)                         one decoder layer of the family, with K/V of its own
    logits = the target's head of f'            what follows x_t; the children read f' in place of f

Its weights are the tensors `mtp.*` of the target's own checkpoint, so an engine has it without being given anything. It
can also lie in a directory of its own: those tensors, and the model's config.json with `speculators_model_type` `mtp`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.core.forest import Law
from paceline.core.registry import Need, Offers
from paceline.core.rows import Out, Rows
from paceline.draft import DRAFTERS
from paceline.draft.companion import CONFIG
from paceline.draft.feature import FeatureDrafter, FeatureHead
from paceline.draft.grow import HEAD_TREE_NODES
from paceline.draft.head import HEADS, METHOD_KEY, HeadCard, HeadFacts, HeadFiles
from paceline.model.blocks import Block, FeedForward, SelfAttention
from paceline.model.checkpoint import open_tensors, read_config
from paceline.model.families import FAMILIES
from paceline.model.family import MTP_PREFIX
from paceline.model.footprint import Footprint
from paceline.model.json_files import read_json
from paceline.model.linear import Linear, Packing, alone, plain
from paceline.model.loader import Loader
from paceline.model.norms import Norm
from paceline.model.recognise import text_config
from paceline.model.spec import Attention, Dense, Layer, ModelSpec, Rope

MTP = "mtp"
MTP_TAP = "post_norm"
MTP_DEPTH = 3
"""Tokens below the root that its layer, which was trained for one, is worth being asked for."""
OWN_TABLE = ".embed_tokens.weight"
"""End of the name of a table that is the model's own once more."""
NEED_MTP = Need(MTP, "a model whose checkpoint holds a layer for further tokens (tensors mtp.*)")


def layer_of(spec: ModelSpec) -> ModelSpec:
    """Spec of the one layer: the family's attention, and a feed-forward part as in the last layer."""
    feeds = [layer.feed for layer in spec.layers if layer.feed is not None]
    return replace(spec, layers=(Layer(spec.attentions[0], feeds[-1]),))


def holds_head(path: Path) -> bool:
    """Does the checkpoint of a model hold such a layer that is served?"""
    if path.suffix != ".gguf":
        if not (path / CONFIG).is_file():
            return False
        family = FAMILIES.get(str(text_config(read_json(path / CONFIG)).get("model_type")))
        if family is None or not family.mtp:
            return False
    return bool(open_tensors(path).ahead())


@HEADS.register(MTP, HeadCard("the layer for further tokens that comes with a model"))
class Mtp(FeatureHead):
    """The component. `output` [vocab, hidden]: a head of its own; None: the target's."""

    def __init__(
        self, spec: ModelSpec, norms: tuple[Norm, Norm, Norm], fc: Linear, block: Block, packing: Packing,
        numbers: int, output: Linear | None = None,
    ) -> None:  # fmt: skip
        """`spec`: of the one layer; `norms`: of embeddings, of the target's states, and of what it puts out."""
        super().__init__(spec, (MTP_TAP,), spec.hidden, spec.vocab, numbers, packing.dtype)
        self.embedding_norm, self.state_norm, self.norm = norms
        self.fc, self.block, self.output, self.compute = fc, block, output, packing.compute

    @classmethod
    def claims(cls, config: Mapping[str, Any]) -> bool:
        return config.get(METHOD_KEY) == MTP

    @classmethod
    def facts(cls, config: Mapping[str, Any]) -> HeadFacts:
        try:
            kept = 2 * int(config["num_key_value_heads"]) * int(config["head_dim"]) + int(config["hidden_size"])
            return HeadFacts(MTP, int(config["hidden_size"]), int(config["vocab_size"]), MTP_DEPTH, kept, (MTP_TAP,))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"The config of the head is not usable ({error!r}); it must be that of the model it comes from."
            ) from None

    @classmethod
    def load(cls, files: HeadFiles, packing: Packing) -> "Mtp":
        return cls.of(files.path, packing)

    @classmethod
    def of(cls, path: Path, packing: Packing) -> "Mtp":
        """The layer in a checkpoint. Raises CheckpointError for one that lacks a part of it."""
        packing = alone(packing) if packing.native else packing
        whole, tensors = read_config(path), open_tensors(path)
        family = FAMILIES[whole.family]
        if not family.mtp:
            raise CheckpointError(f"The layer for further tokens of {whole.family}, in {path}, is not served.")
        spec = layer_of(whole)
        names = replace(family.names, layer=MTP_PREFIX + "layers.{}.")
        loader = Loader(spec, names, tensors, packing, torch.device("cpu"))
        fc = loader.linear("", (MTP_PREFIX + "fc",), (spec.hidden,), 2 * spec.hidden, False)
        named = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        first, second, last = (loader.norm(MTP_PREFIX + name, spec.hidden) for name in named)
        block = loader.block(0)
        if unknown := sorted(name for name in tensors.ahead() - tensors.taken if not name.endswith(OWN_TABLE)):
            raise CheckpointError(
                f"{path} holds {unknown[0]}, which a layer for further tokens of {whole.family} has no place for."
            )
        return cls(spec, (first, second, last), fc, block, packing, loader.bytes // packing.dtype.itemsize)

    @classmethod
    def sketch(cls, width: int, vocab: int, seed: int) -> "Mtp":
        packing, stream = plain(torch.float32, torch.device("cpu")), torch.Generator().manual_seed(seed)
        layer = Layer(Attention(Rope((1.0, 0.1))), Dense(8))
        spec = ModelSpec(
            MTP, (layer,), vocab, width, 2, 1, 4, 512, "silu", 1e-6, 0.0, False, False, False, False, False, False,
            0.5, None, None, 1.0, (), gated_attention=True,
        )  # fmt: skip

        def matrix(outputs: int, inputs: int) -> Linear:
            return packing.pack(torch.randn(outputs, inputs, generator=stream) * inputs**-0.5, None)

        def norm() -> Norm:
            return Norm(torch.ones(width), 1e-6)

        block = Block(
            spec, norm(), SelfAttention(spec, 0, matrix(24, width), None, matrix(width, 8)), None, norm(),
            FeedForward(spec, matrix(16, width), matrix(width, 8)), None,
        )  # fmt: skip
        fc = matrix(width, 2 * width)
        return cls(spec, (norm(), norm(), norm()), fc, block, packing, 100 * width, matrix(vocab, width))

    def describe(self) -> str:
        return f"layer for further tokens of {self.spec.family}, {self.kv_bytes_per_token} bytes a row"

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        return hidden[0]

    @torch.inference_mode()
    def forward(self, rows: Rows) -> Out:
        assert self.target is not None and rows.hidden is not None
        self.attend.prepare(rows)
        embedded, state = self.target.embed(rows.token).to(self.compute), rows.hidden.to(self.compute)
        x = self.fc(torch.cat((self.embedding_norm(embedded), self.state_norm(state)), -1))
        turn = self.rotary(rows.position, max(s.base + s.rows for s in rows.segments) + 1)
        self.block.attend(x, None, turn, self.attend)
        self.block.feed(x)
        x = self.norm(x)
        wanted = x.index_select(0, rows.want)
        if not len(wanted):
            return Out(torch.empty(0, self.vocab_size), leave=x)
        logits = self.target.head(wanted) if self.output is None else self.output(wanted)
        return Out(logits.float(), leave=x)


def own_footprint(path: Path, packing: Packing) -> Footprint:
    """What the layer in a model's checkpoint takes of memory, from the headers: an upper bound."""
    spec, tensors = layer_of(read_config(path)), open_tensors(path)
    shapes = [tensors.shape(name) for name in tensors.ahead()]
    size, numbers = packing.dtype.itemsize, sum(torch.Size(shape).numel() for shape in shapes)
    return Footprint(
        weights=numbers * max(size, 2) + numbers // 8, loading=4 * numbers, slot=(spec.kv_width + spec.hidden) * size,
        unit=1, vocab=spec.vocab, fixed=1 << 20, row=4 * spec.hidden * 22, key=16, mask=8, pair=32, copy=8,
        pairs=1 << 20,
    )  # fmt: skip


@DRAFTERS.register(
    MTP,
    Offers(
        "the layer for further tokens that comes with a model", frozenset({Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT}),
        "tree", HEAD_TREE_NODES, needs=frozenset({NEED_MTP}), group=MTP, auto=(MTP,),
    ),
)  # fmt: skip
class MtpDrafter(FeatureDrafter):
    group = MTP
