"""Fine-tunes of an engine's model, by name; equal matrices are in memory once (BlockLLM, arXiv 2404.18322)."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from paceline.core.errors import InputError
from paceline.model.chain import BASE_NAME, Chain, Link, is_chain
from paceline.model.chained import ChainTable, ChainWeights, check_alike, check_base, composed
from paceline.model.load import load_model
from paceline.model.lora import LoraWeights
from paceline.model.spread.layers import LayeredDecoder

if TYPE_CHECKING:
    from paceline.model.decoder import Decoder

log = logging.getLogger("paceline")
MOST_CHAINS = 256
"""Maximum number of chains remembered by their own names; the least recently used goes first."""


class Zoo:
    """The fine-tunes of a model."""

    def __init__(self, base: "Decoder", names: set[str], substitutes: Mapping[str, str] = MappingProxyType({})) -> None:
        """`names`: of the base itself. `substitutes`: {digest of a layer: that of the base's that takes its place}"""
        check_base(base)
        self.base, self.substitutes = base, substitutes
        self.models: dict[str, Decoder] = dict.fromkeys({BASE_NAME, *names}, base)
        self.used = set[str]()
        """Digests of layers that were substituted."""
        base.chains = base.chains or ChainTable(base)

    def add(self, name: str, path: Path, form: Mapping[str, Any]) -> Chain:
        """Load a fine-tune; the chain of all its layers. `form`: keyword arguments of `load_model`."""
        if not name.strip() or is_chain(name) or set(name) & set("[]+") or name in self.models:
            raise InputError(f"{name[:60]!r} cannot be the name of a fine-tune: it is taken, or has one of [, ] and +.")
        decoder = self.base.group.models[path] if isinstance(self.base, LayeredDecoder) else load_model(path, **form)
        check_alike(f"The fine-tune {name!r}", decoder, self.base)
        self.models[name] = self._substituted(name, decoder)
        return (Link(name, 0, len(self.base.spec.layers)),)

    def _substituted(self, name: str, decoder: "Decoder") -> "Decoder":
        """Replace its layers by the base's where allowed; the replaced ones leave memory."""
        own, its = decoder.weights.sections, self.base.weights.sections
        gone = [
            i for i in range(len(own) - 2) if self.substitutes.get(own[i + 1], own[i + 1]) == its[i + 1] != own[i + 1]
        ]
        if not gone:
            return decoder
        blocks, sections = list(decoder.weights.blocks), list(own)
        for i in gone:
            self.used.add(own[i + 1])
            blocks[i], sections[i + 1] = self.base.weights.blocks[i], its[i + 1]
        log.warning("%s is computed with the model's own layers %s, as the report allows.", name, gone)
        return self.base.alike(replace(decoder.weights, blocks=blocks, sections=tuple(sections)), "")

    def composed(self, chain: Chain, deltas: Mapping[str, LoraWeights]) -> ChainWeights:
        """A chain of these models' layers, and of adapters' by name."""
        return composed(self.base, self.models, chain, deltas)

    def shared_layers(self, name: str) -> int:
        """Layers that a fine-tune has from the base."""
        pairs = zip(self.models[name].weights.sections[1:-1], self.base.weights.sections[1:-1], strict=True)
        return sum(mine == its for mine, its in pairs)
