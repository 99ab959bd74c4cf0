"""What an engine holds by name: the target, a draft model, heads, judges. `Model` is the one that computes tokens."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from paceline.core.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from paceline.core.proposer import Continuation, Proposer
    from paceline.core.rows import Out, Rows

TARGET, DRAFT = "target", "draft"
"""Names of the components that an engine has always, and of a small model of the same vocabulary."""
Ability = Literal["run", "chain", "program", "exit", "embed", "lend", "keys", "join", "state", "narrow", "rules"]


class Component(Protocol):
    """A part of an engine with weights. Its name in the engine is also that of its K/V group, if it keeps rows.

    It may have `identity: str`, a digest of its weights, dtypes and positions, or `weight_files`, paths that give one
    (engine/identity.py). K/V of a component without either is never used beyond its engine."""

    kv_bytes_per_token: int
    """Bytes that it keeps for each token, in a K/V group of its own; 0: nothing."""
    weight_bytes: int
    max_len: int
    """Longest text in tokens."""
    vocab_size: int
    width: int
    """Numbers in a hidden state: its own, or of a component with taps those that it reads."""
    taps: tuple[str, ...]
    """Hidden states of the target that it reads (`Rows.taps`)."""

    @property
    def abilities(self) -> frozenset[Ability]:
        """What it can do in addition to the protocol: `run` (`Runs`), `chain` (whole drafts in one call),
        `program` (`Rows.program`: sets of layers, early exits), `exit` (it was trained for them), `embed` (`Embeds`),
        `lend` (`Lends`), `keys` (`KeySource`), `join` (rows whose position is not their place, and that do not see all
        before them), `state` (`Keeps`), `narrow` (`Narrows`), `rules` (runs and chains of texts whose logits
        `core.warp.LogitRules` change)."""

    def allocate(self, blocks: int, block_size: int) -> None:
        """Make the K/V pool; called once, before anything is computed."""

    def move(self, source: list[int], target: list[int]) -> None:
        """Copy pool slots source[i] -> target[i], all read before any is written."""

    def read(self, slots: list[int]) -> bytes:
        """Bytes that the component keeps in these slots. Only a component with the same weights, dtype and layout can
        `write` them."""

    def write(self, slots: list[int], packed: bytes) -> None:
        """Put what `read` gave into these slots. Raises InputError if the number of bytes does not match the slots."""


def with_files(component: Component, path: Path) -> Component:
    """The component, which now has `weight_files`: what in this folder its weights and their shape come from, or the
    one file that holds both."""
    suffixes = (".safetensors", ".bin", ".pt", ".json")
    files = sorted(file for file in path.iterdir() if file.suffix in suffixes) if path.is_dir() else [path]
    component.__dict__["weight_files"] = tuple(files)
    return component


def keeps_rows(component: Component) -> bool:
    """Does it keep anything for the rows of a text, and so need a group in the cache?"""
    return component.kv_bytes_per_token > 0 or "state" in component.abilities


class Rowless:
    """A component that keeps nothing for the rows of a text."""

    kv_bytes_per_token: int = 0

    def allocate(self, blocks: int, block_size: int) -> None:
        pass

    def move(self, source: list[int], target: list[int]) -> None:
        pass

    def read(self, slots: list[int]) -> bytes:
        return b""

    def write(self, slots: list[int], packed: bytes) -> None:
        if packed:
            raise InputError(f"The packed K/V has {len(packed)} bytes, but this component keeps none.")


class Model(Component, Protocol):
    """What computes tokens: a decoder, or a table in tests."""

    device: "torch.device"
    places: frozenset[str]
    """Hidden states that it can give (`Rows.taps`)."""

    def forward(self, rows: "Rows") -> "Out":
        """Write the rows' K/V to their slots, attend, return what `rows` asks for."""


class Runs(Model, Protocol):
    """A model with the ability `run`."""

    def run(self, rows: "Rows", passes: int, texts: "list[Continuation]", proposer: "Proposer | None" = None) -> "Out":
        """Up to `passes` passes in one call, over texts with one row each. What is drawn from a row, as the engine
        would, is its text's next token, -1 where none can be; if that is one that was drafted, it is kept, and its row
        counts, too. The last token has a row, in the next slot, in the next pass."""


class Embeds(Protocol):
    """What heads share with their target."""

    def embed(self, token: "Tensor") -> "Tensor":
        """Hidden states [T, H] of token ids [T], as they enter the first layer."""

    def head(self, hidden: "Tensor") -> "Tensor":
        """Logits [T, V] of hidden states [T, H] that have passed the final norm (the tap `post_norm`)."""


class Lends(Protocol):
    """A model that takes probes which are no tokens of its vocabulary: rows of an embedding of their own."""

    lent: int
    """How many such rows it has taken so far: their ids follow those of the vocabulary."""

    def lend(self, table: "Tensor") -> int:
        """Take the rows of `table` [m, H], which enter the first layer as they are; the id of the first. The same
        table is taken once. Only probes may have these ids (`Forest.check`)."""


class Keeps(Component, Protocol):
    """A component with recurrent layers: in addition to K/V, it keeps a state for all rows up to one, under the slot of
    that row. There is one behind each full block, or behind those that a budget of states keeps, behind the latest row
    of each text, and behind the candidates of the pass at work."""

    state_bytes: int
    """Bytes of the state of one text."""

    def keep(self, slots: "list[int]", ends: "list[int] | None" = None) -> None:
        """Drop every state but those behind the rows in these slots, and behind the rows in `ends`, where passes leave
        one from now on; None: behind the last row of each block. With `ends`, `read` and `write` carry K/V alone."""

    def blank(self, slots: "list[int]") -> None:
        """Put states of zeros behind the rows in these slots, which were not computed."""


class Narrows(Model, Protocol):
    """A model that computes logits of some tokens alone, for drafts."""

    def narrow(self, words: "Tensor", drafts: bool) -> None:
        """Take these ids [N], ascending, for the draft vocabulary from now on; never within a step. `drafts`: every
        pass has logits of them alone, else those whose `Program.narrow` says so. Logits of other tokens are -inf there.
        RefusalError where the head cannot be taken apart."""


class KeySource(Protocol):
    """A model whose last layer's keys and values others may read."""

    def last_keys(self, slots: "Tensor") -> "tuple[Tensor, Tensor]":
        """Keys, rotated, and values [N, kv_heads, head_dim] of its last layer in these slots of the pool, int64 [N],
        as float32."""
