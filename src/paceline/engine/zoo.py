"""Fine-tunes of an engine's model, by name: what is equal in them is in memory once (BlockLLM, arXiv 2404.18322)."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import InputError
from paceline.model.chain import Chain, Link, is_chain
from paceline.model.chained import ChainTable, ChainWeights, check_alike, check_base, composed
from paceline.model.load import load_model
from paceline.model.lora import LoraWeights

if TYPE_CHECKING:
    from paceline.model.decoder import Decoder

log = logging.getLogger("paceline")
MOST_CHAINS = 256
"""Chains that are remembered by their own names; the one that is unused for longest goes first."""
BASE_NAME = "base"
"""The engine's own model in a chain, besides its own name."""


class Zoo:
    """The fine-tunes of a model."""

    def __init__(self, base: "Decoder", names: set[str]) -> None:
        """`names`: of the base itself."""
        check_base(base)
        self.base = base
        self.models: dict[str, Decoder] = dict.fromkeys({BASE_NAME, *names}, base)
        self.own = frozenset(self.models)
        """Names of the base."""
        base.chains = base.chains or ChainTable(base)

    def add(self, name: str, path: Path, form: Mapping[str, Any]) -> Chain:
        """Load a fine-tune; the chain of all its layers. `form`: keyword arguments of `load_model`."""
        if not name.strip() or is_chain(name) or set(name) & set("[]+") or name in self.models:
            raise InputError(f"{name[:60]!r} cannot be the name of a fine-tune: it is taken, or has one of [, ] and +.")
        decoder = load_model(path, **form)
        check_alike(f"The fine-tune {name!r}", decoder, self.base)
        self.models[name] = decoder
        return (Link(name, 0, len(self.base.spec.layers)),)

    def composed(self, chain: Chain, deltas: Mapping[str, LoraWeights]) -> ChainWeights:
        """A chain of these models' layers, and of adapters' by name."""
        return composed(self.base, self.models, chain, deltas)

    def shared_layers(self, name: str) -> int:
        """Layers that a fine-tune has from the base."""
        pairs = zip(self.models[name].weights.sections[1:-1], self.base.weights.sections[1:-1], strict=True)
        return sum(mine == its for mine, its in pairs)
