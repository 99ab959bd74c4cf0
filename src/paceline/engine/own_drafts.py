"""What drafts for one adapter alone: an adapter of the engine's draft model, or a head of the method of the engine's.

A draft model keeps such an adapter in the slot of the target's: a pass drafts for many. Its K/V is named by the digest
of both. A head without K/V is a component of a drafter that is made for these requests. Neither changes a text.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from paceline.core.component import DRAFT, TARGET, Component, keeps_rows
from paceline.core.errors import CheckpointError, RefusalError
from paceline.draft.companion import CONFIG
from paceline.draft.head import HEADS, load_head, method_of
from paceline.draft.ppd import PPD
from paceline.engine.identity import identity_of
from paceline.model.decoder import Decoder
from paceline.model.lora import MAX_LORA_RANK, LoraWeights, read_lora
from paceline.model.lora_config import MAX_LORA_CONFIG_BYTES

HEAD_BYTES_RATIO = 16
"""Most bytes of a head's files for each byte that the head of all takes in memory, where a number has half a byte or
more."""


@dataclass(frozen=True, slots=True)
class OwnHead:
    """A head for one adapter."""

    method: str
    component: Component
    digest: str
    """Digest of its files."""


class OwnDrafts:
    """The own drafts of an engine's adapters, by slot."""

    def __init__(
        self, components: Mapping[str, Component], changed: Callable[[Mapping[str, OwnHead]], None],
        max_rank: int = MAX_LORA_RANK,
    ) -> None:  # fmt: skip
        """`changed`: called with {digest of an adapter: its head} after each change."""
        self.components, self.changed, self.max_rank = components, changed, max_rank
        self.heads: dict[int, tuple[str, OwnHead]] = {}
        """(digest of the adapter, its head)"""
        self._adapted = set[int]()

    @property
    def bytes(self) -> int:
        """Bytes of all own drafts."""
        adapters = sum(self._draft.adapt().bytes[slot] for slot in self._adapted)
        return adapters + sum(head.component.weight_bytes for _, head in self.heads.values())

    @property
    def _draft(self) -> Decoder:
        return cast(Decoder, self.components[DRAFT])

    def read(self, path: Path) -> LoraWeights | OwnHead:
        """From its directory or file. RefusalError or CheckpointError for what does not fit this engine."""
        if (config := path / CONFIG).is_file() and (size := config.stat().st_size) > MAX_LORA_CONFIG_BYTES:
            raise CheckpointError(f"{config} has {size:,} bytes, which is too large for a config; it is damaged.")
        method = method_of(path) if path.is_dir() else None
        if method is not None:
            return self._head(path, method)
        if (path / CONFIG).is_file() and not (path / "adapter_config.json").is_file():
            raise RefusalError(
                f"{path} is a model, but an adapter's own draft is an adapter of the draft model, or a head; give it "
                "as the draft of all (--draft)."
            )
        if not isinstance(self.components.get(DRAFT), Decoder):
            raise RefusalError(
                f"There is no draft model here that {path} could be an adapter of; give its model with --draft."
            )
        return read_lora(path, self._draft.spec, self.max_rank)

    def _head(self, path: Path, method: str) -> OwnHead:
        base, model = self.components.get(method), cast(Decoder, self.components[TARGET])
        if base is None:
            mine = ", ".join(name for name in self.components if name in HEADS.names()) or "none"
            raise RefusalError(
                f"{path} is a {method} head, but heads here are {mine}; an adapter's own head is one of the method of "
                "the head that drafts for all (--draft)."
            )
        if method == PPD:
            raise RefusalError(
                f"The ppd head {path} lends the model embeddings, which is not served for one adapter; give it as the "
                "draft of all (--draft)."
            )
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        if size > HEAD_BYTES_RATIO * base.weight_bytes + MAX_LORA_CONFIG_BYTES:
            raise CheckpointError(
                f"The head {path} has {size:,} bytes, but the head of all takes {base.weight_bytes:,}; it is another "
                "kind of head, or damaged."
            )
        _, head = load_head(path, model.width, model.vocab_size, model.packing, len(model.spec.layers))
        if keeps_rows(base) or keeps_rows(head):
            raise RefusalError(
                f"The {method} head {path} keeps K/V, which is not served for one adapter; give it as the draft of all "
                "(--draft)."
            )
        if head.taps != base.taps or head.max_len < base.max_len:
            raise RefusalError(
                f"The head {path} reads {', '.join(head.taps)} of texts up to {head.max_len:,} tokens, but the head of "
                f"all reads {', '.join(base.taps)} up to {base.max_len:,}; train it alike."
            )
        return OwnHead(method, head, identity_of(head))

    def install(self, slot: int, weights: LoraWeights) -> int:
        """Take the own draft of the adapter in a slot, if it has one; how many bytes it takes."""
        own = weights.own
        if isinstance(own, LoraWeights):
            size = self._draft.adapt().install(slot, own)
            self._adapted.add(slot)
            return size
        if isinstance(own, OwnHead):
            self.heads[slot] = (weights.digest, own)
            self.changed(dict(self.heads.values()))
            return own.component.weight_bytes
        return 0

    def remove(self, slot: int) -> None:
        """Drop that of the adapter in a slot."""
        if slot in self._adapted:
            self._adapted.discard(slot)
            self._draft.adapt().remove(slot)
        if self.heads.pop(slot, None) is not None:
            self.changed(dict(self.heads.values()))


def with_own(weights: LoraWeights, own: LoraWeights | OwnHead) -> LoraWeights:
    """An adapter with its own draft, under the digest of both."""
    both = hashlib.sha256(f"{weights.digest}\0{own.digest}".encode()).hexdigest()[:32]
    return replace(weights, digest=both, own=own)
