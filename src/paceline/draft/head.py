"""Heads: small networks on a target's hidden states, as components of an engine; which formats there are, and how a
directory becomes one.

**The contract of a format.** A directory holds `config.json`, in the layout of the library `speculators`, and
`model.safetensors`. The registry `HEADS` has one class a method, under the method's name, registered in the method's
own file (`draft/medusa.py`):

    @HEADS.register("medusa", HeadCard("..."))
    class Medusa(Head): ...

The class is that of the component. It has three class methods, which `Head` gives to those that derive from it:

- `claims(config) -> bool`: is this config.json of this method, in any layout that it reads (released ones, too)?
- `facts(config) -> HeadFacts`: what can be said without the weights. CheckpointError for a config that is not usable.
- `load(files, packing) -> Component`: with weights packed as the target's are. CheckpointError for wrong weights.

and, for tests, `sketch(width, vocab, seed) -> Component`: a small random one that needs nothing of its target but the
taps (a head with an output matrix of its own): the lossless matrix runs every method on it.

The name of the format is that of the component, of its K/V group, of its `Need` and of its drafter. `LLM(draft=DIR)`,
`paceline serve --draft DIR` and `paceline info` use nothing but this registry.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from paceline.attend import quickest
from paceline.core.component import Ability, Component, with_files
from paceline.core.errors import CheckpointError, InputError
from paceline.core.forest import MAX_CANDIDATES
from paceline.core.registry import Need, Registry
from paceline.core.rows import Rows
from paceline.draft import released
from paceline.draft.companion import CONFIG, WEIGHTS
from paceline.draft.head_sizes import check_sizes, rates_of, verifier_of
from paceline.draft.int8 import widened
from paceline.draft.layers import DraftLayer, HeadStage, KvPool, PackedLinear, Paged, RMSNorm
from paceline.draft.native_layers import NativeText, kv_numbers
from paceline.model.footprint import Footprint
from paceline.model.linear import Packing
from paceline.model.native import NativeDecoder
from paceline.model.rotary import Rotary

METHOD_KEY = "speculators_model_type"
"""The key of config.json that names the method."""
CONFIG_KEYS = {"width": "hidden_size", "vocab": "vocab_size", "max_len": "max_position_embeddings"}
"""Keys of config.json for fields of `HeadConfig` that have another name there."""
OWN_HEAD_KEYS = frozenset((METHOD_KEY, "architectures", "speculators_config", "training", "model_type"))
"""Keys of config.json, apart from the fields of `HeadConfig`, that say what a head is."""


@dataclass(frozen=True, slots=True)
class HeadCard:
    """A format's card."""

    summary: str


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """Facts about a head that need no weights. `width`, `vocab`: those of the target that it was made for."""

    method: str
    width: int
    vocab: int
    depth: int
    """Tokens that it was trained to draft below the root."""
    kv_numbers: int
    """Numbers that it keeps for each token in a K/V group of its own."""
    taps: tuple[str, ...]
    verifier: str = ""
    """The target that it was made for, as its maker wrote it."""


class HeadFiles:
    """A head's directory. Raises CheckpointError for one that cannot be read."""

    def __init__(self, path: Path, layers: int | None = None) -> None:
        """`layers`: the target's."""
        self.path, self.config, self.layers = path, read_config(path), layers
        self.theirs = released.released(released.read_json(path)) if not (path / WEIGHTS).is_file() else None
        """The method, of a head in its authors' layout."""

    def tensors(self) -> dict[str, Tensor]:
        """All weights by name."""
        if self.theirs is not None:
            return released.renamed(released.read(released.file_of(self.path, self.theirs)), self.theirs)
        return widened(
            {name: part for file in released.files_of(self.path) for name, part in released.read(file).items()}
        )

    def numbers(self) -> int:
        """How many weights there are, from the file's header."""
        from safetensors import SafetensorError, safe_open

        if self.theirs is not None:
            return released.file_of(self.path, self.theirs).stat().st_size // 2
        count = 0
        for part in released.files_of(self.path):
            if part.suffix != ".safetensors":
                count += part.stat().st_size // 2
                continue
            try:
                with safe_open(part, "pt") as file:
                    count += sum(torch.Size(file.get_slice(name).get_shape()).numel() for name in file.keys())  # noqa: SIM118
            except (OSError, SafetensorError) as error:
                raise CheckpointError(
                    f"{part} cannot be read ({error}); train the head again or restore the file."
                ) from None
        return count


class Format(Protocol):
    """See the module. What `load` gives has also `describe() -> str`."""

    @classmethod
    def claims(cls, config: Mapping[str, Any]) -> bool: ...
    @classmethod
    def facts(cls, config: Mapping[str, Any]) -> HeadFacts: ...
    @classmethod
    def load(cls, files: HeadFiles, packing: Packing) -> Component: ...
    @classmethod
    def sketch(cls, width: int, vocab: int, seed: int) -> Component: ...


HEADS: Registry[type[Format]] = Registry("head", "paceline.draft")


def need(name: str) -> Need:
    """That the engine was given a head of this format."""
    return Need(name, f"a {name} head (give draft=HEAD_DIR; `paceline train {name}` makes one)")


def read_config(path: Path) -> dict[str, Any]:
    """config.json, in our layout where it is in its authors' (draft/released.py). Raises CheckpointError."""
    config = released.read_json(path)
    theirs = released.released(config)
    if theirs is None or (path / WEIGHTS).is_file():
        return config if METHOD_KEY in config else released.first_eagle(path, config)
    return released.adapted(path, config, theirs)


def method_of(path: Path) -> str | None:
    """Name of a head directory's format; None for a model, or where there is no such directory. Raises CheckpointError
    for a head that no method reads."""
    if not (path / CONFIG).is_file():
        return None
    config = read_config(path)
    for name in HEADS.names():
        if HEADS.get(name).claims(config):
            return name
    if METHOD_KEY in config:
        raise CheckpointError(
            f"{path} is a head of the method {config[METHOD_KEY]!r}, which is not known; known are "
            f"{', '.join(HEADS.names())}."
        )
    return None


def facts_of(path: Path) -> HeadFacts:
    """Facts of the head in a directory for which `method_of` has a name. Raises CheckpointError for another
    directory."""
    name = method_of(path)
    if name is None:
        raise CheckpointError(f"{path} is not the directory of a head; give one that `paceline train` made.")
    return HEADS.get(name).facts(read_config(path))


def check_fit(path: Path, facts: HeadFacts, width: int, vocab: int) -> None:
    """CheckpointError for a head that was made for another model."""
    for what, own, other in (("hidden states", facts.width, width), ("a vocabulary", facts.vocab, vocab)):
        if own != other:
            of = "numbers" if what == "hidden states" else "entries"
            raise CheckpointError(
                f"The head {path} reads {what} of {own} {of}, but the model has {other}; train one for this model "
                f"(paceline train {facts.method})."
            )


def load_head(path: Path, width: int, vocab: int, packing: Packing, layers: int) -> tuple[str, Component]:
    """The name and the component of a head's directory, for a target of this width, vocabulary and many layers."""
    files, facts = HeadFiles(path, layers), facts_of(path)
    check_fit(path, facts, width, vocab)
    return facts.method, with_files(HEADS.get(facts.method).load(files, packing), path)


def footprint_of(path: Path, packing: Packing) -> Footprint:
    """Memory of a head, for the budget: an upper bound from its headers."""
    files, facts = HeadFiles(path), facts_of(path)
    size, numbers = packing.dtype.itemsize, files.numbers()
    row = 4 * (facts.width * (2 * facts.depth + 16))
    return Footprint(
        weights=numbers * max(size, 2) + numbers // 8, loading=4 * numbers, slot=facts.kv_numbers * size, unit=1,
        vocab=facts.vocab, fixed=1 << 20, row=row, key=16 * bool(facts.kv_numbers), mask=8, pair=32, copy=8,
        pairs=1 << 20,
    )  # fmt: skip


# -- heads that are PyTorch modules ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Configuration of a head. Methods add fields, with defaults; all are keys of config.json."""

    width: int
    """Numbers in a hidden state of the target."""
    vocab: int
    max_len: int = 4096
    """Longest text in tokens."""
    depth: int = 4
    """Tokens that are drafted below the root."""
    own_head: bool = False
    """Output matrices of its own, else the target's."""
    draft_vocab: int = 0
    """Tokens that one output matrix knows, for all depths: the target's rows of them, or with `own_head` trained ones;
    0: all of the vocabulary. Over a large vocabulary that matrix is most of what a draft costs."""
    heads: int = 0
    """Attention of the head, if it has any: number of heads, of key/value heads, head dimension, width of the
    feed-forward part, base of the rotary embedding, epsilon of the norms."""
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    theta: float = 10000.0
    eps: float = 1e-6
    accuracy: tuple[tuple[float, ...], ...] = field(default=(), compare=False)
    """Chance of each rank at each depth to be the next token, where the tokens above are right, as measured when it was
    trained: what the first trees are shaped by."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """From config.json. Raises CheckpointError."""
        given: dict[str, Any] = {}
        known = {CONFIG_KEYS.get(f.name, f.name) for f in fields(cls)}
        if unknown := sorted(map(str, {*config} - known - OWN_HEAD_KEYS - released.INERT_KEYS)):
            raise CheckpointError(
                f"The config of the head has the key {unknown[0]!r}, which Paceline does not know; it may change what "
                "the head drafts. Remove it from config.json if it does not."
            )
        kinds: dict[str, Any] = {f.name: int if f.default is MISSING else type(f.default) for f in fields(cls)}
        for f in fields(cls):
            key = CONFIG_KEYS.get(f.name, f.name)
            if key in config:
                given[f.name] = config[key]
            elif f.default is MISSING:
                raise CheckpointError(f"The config of the head has no {key!r}; restore it, or train the head again.")
        for name, value in given.items():
            kind = kinds[name]
            if name == "accuracy":
                given[name] = rates_of(value)
            elif not isinstance(value, (int, float) if kind is float else kind) or (
                value < 0 if kind is int else False
            ):
                raise CheckpointError(
                    f"The config of the head says {CONFIG_KEYS.get(name, name)} = {value!r}, but a {kind.__name__} is "
                    "expected; restore it, or train the head again."
                )
        check_sizes(given)
        return cls(**given)

    def written(self) -> dict[str, Any]:
        """As keys of config.json."""
        return {CONFIG_KEYS.get(name, name): value for name, value in asdict(self).items()}


class Head(nn.Module):
    """A head as a module: what `paceline train` trains and what an engine runs are one object.

    It drafts in rounds, over any number of rows at once, all of one depth:

        state = begin(context [N, H], embedding of the root [N, H])
        out   = draft(state, 0)           what `logits` turns into the distribution of the token below the root
        state = extend(state, embedding of a drafted token [N, H], 0);  out = draft(state, 1);  ...

    `context` is the target's hidden state (`taps[0]`) of the row before the root, or what `enrich` makes of the hidden
    states of the whole text, for a head with K/V of its own (`kv_layers`).
    """

    method: ClassVar[str]
    config_type: ClassVar[type[HeadConfig]] = HeadConfig
    taps: tuple[str, ...] = ("post_norm",)
    compute = torch.float32
    d2t: Tensor
    """Offsets int64 of a draft vocabulary: token id minus its index in the draft vocabulary."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.width, self.vocab_size, self.max_len = config.width, config.vocab, config.max_len
        self.kv_dtype = torch.float32
        self.kv_bytes_per_token = self.weight_bytes = 0
        self.native_text: NativeText | None = None
        """`text_layers`, where the native library has them."""
        if config.draft_vocab:
            self.output = nn.ModuleList([nn.Linear(config.width, config.draft_vocab)])
            self.register_buffer("d2t", torch.zeros(config.draft_vocab, dtype=torch.int64))
        elif config.own_head:
            self.output = nn.ModuleList(nn.Linear(config.width, config.vocab) for _ in range(self.outputs))

    # -- what a method says ----------------------------------------------------------------------------------------

    @property
    def outputs(self) -> int:
        """Number of output matrices, if the head has its own."""
        return self.config.depth

    @property
    def kv_layers(self) -> int:
        """Layers with attention over the text."""
        return 0

    def enrich(self, hidden: Tensor, following: Tensor, attend: Any) -> Tensor:
        """Contexts [T, H] from hidden states [T, H] and the embeddings [T, H] of the tokens behind them; `attend` is
        that of draft/layers.py, over the text's rows."""
        return hidden

    def begin(self, context: Tensor, root: Tensor) -> Tensor:
        raise NotImplementedError

    def extend(self, state: Tensor, token: Tensor, depth: int) -> Tensor:
        """The state of a node from that of its parent, which has this depth (the root: 0)."""
        raise NotImplementedError

    def draft(self, state: Tensor, depth: int) -> Tensor:
        """[N, H] for `logits`, at nodes of this depth."""
        raise NotImplementedError

    def stage(self, depth: int) -> "HeadStage | None":
        """What `draft` computes at this depth; None: no `HeadStage`, so the head does not draft within runs."""
        return None

    def text_layers(self) -> "tuple[Sequence[DraftLayer], RMSNorm] | None":
        """The layers over the text's hidden states and the norm behind them that `enrich` is; None: it is something
        else."""
        return None

    @property
    def abilities(self) -> frozenset[Ability]:
        able = self.stage(0) is not None and (not self.kv_layers or self.text_layers() is not None)
        return frozenset({"run"}) if able else frozenset()

    @torch.inference_mode()
    def contexts(self, rows: Rows, hidden: Tensor, following: Tensor) -> Tensor:
        """Apply `enrich` to rows of texts; their K/V go to the pool."""
        if self.native_text is not None:
            return self.native_text.contexts(rows, hidden)
        return self.enrich(hidden, following, Paged(self.attend, self.rotary, rows))

    @property
    def words(self) -> Tensor | None:
        """Ids of the draft vocabulary, ascending; None: it is the target's."""
        return torch.arange(self.config.draft_vocab) + self.d2t if self.config.draft_vocab else None

    def logits(self, out: Tensor, depth: int, head: Callable[[Tensor], Tensor]) -> Tensor:
        """[N, V], or [N, draft vocabulary]; `head`: the target's (`Embeds.head`)."""
        if not (self.config.own_head or self.config.draft_vocab):
            return head(out)
        made: Tensor = self.output[min(depth, len(self.output) - 1)](out)
        return made

    # -- as a format -----------------------------------------------------------------------------------------------

    @classmethod
    def claims(cls, config: Mapping[str, Any]) -> bool:
        return config.get(METHOD_KEY) == cls.method

    @classmethod
    def facts(cls, config: Mapping[str, Any]) -> HeadFacts:
        own = cls.config_type.read(config)
        with torch.device("meta"):
            layers = cls(own).kv_layers
        numbers, verifier = kv_numbers(own, layers), verifier_of(config)
        return HeadFacts(cls.method, own.width, own.vocab, own.depth, numbers, cls.taps, verifier)

    @classmethod
    def load(cls, files: HeadFiles, packing: Packing) -> Component:
        head = cls.restored(files)
        head.pack(packing)
        return head.settle()

    @classmethod
    def restored(cls, files: HeadFiles) -> Self:
        """The module in float32, for training or a look. Raises CheckpointError."""
        head, weights = cls(cls.config_type.read(files.config)), cls.renamed(files.tensors())
        expected = {name: tuple(part.shape) for name, part in head.state_dict().items()}
        found = {name: tuple(part.shape) for name, part in weights.items()}
        for name in sorted({*expected, *found}):
            if expected.get(name) != found.get(name):
                raise CheckpointError(
                    f"Weight {name} of the head {files.path} has the shape {found.get(name)}, but "
                    f"{expected.get(name)} is expected; config and weights are of different heads."
                )
        head.load_state_dict({name: part.float() for name, part in weights.items()})
        return head

    @classmethod
    def renamed(cls, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights of a layout that it reads, by its own names."""
        return weights

    @classmethod
    def sketch(cls, width: int, vocab: int, seed: int) -> Self:
        """Small and random."""
        config = cls.config_type(width=width, vocab=vocab, own_head=True, **cls.small())
        head, stream = cls(config), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _, weight in sorted(head.named_parameters()):
                weight.copy_(torch.randn(weight.shape, generator=stream))
            for output in head.output if not head.kv_layers else ():
                output.weight.mul_(0.01)  # type: ignore[operator]  # the toy's states are large
        head.taps = ("post_norm",)  # which every target has
        return head.settle()

    @classmethod
    def small(cls) -> dict[str, Any]:
        """What the config of a sketch says."""
        return {"depth": 3, "heads": 2, "kv_heads": 1, "head_dim": 4, "ffn": 8, "max_len": 512}

    def save(self, path: Path, **more: Any) -> None:
        """Write config and weights; `more`: further keys of config.json."""
        from safetensors.torch import save_file

        path.mkdir(parents=True, exist_ok=True)
        config = {
            "architectures": [f"{type(self).__name__}Speculator"], METHOD_KEY: self.method,
            "speculators_version": "0.1.0", "dtype": "float32", **self.config.written(), **more,
        }  # fmt: skip
        save_file({name: part.contiguous() for name, part in self.state_dict().items()}, path / WEIGHTS)
        (path / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    # -- as a component --------------------------------------------------------------------------------------------

    def settle(self) -> Self:
        """Prepare for serving, as a component without gradients."""
        parts = (part.bytes for part in self.modules() if isinstance(part, PackedLinear))
        self.weight_bytes = sum(parts) + sum(part.nbytes for part in self.parameters())
        numbers = 2 * self.kv_layers * self.config.kv_heads * self.config.head_dim
        self.kv_bytes_per_token = numbers * self.kv_dtype.itemsize
        if self.native_text is not None:
            self.weight_bytes += self.native_text.bytes
            self.kv_bytes_per_token = self.native_text.decoder.kv_bytes_per_token
        return self.eval().requires_grad_(False)

    def describe(self) -> str:
        where = ", native" if self.native_text is not None else ""
        return f"{self.method} head of depth {self.config.depth}{where}"

    def pack(self, packing: Packing) -> None:
        """Lay the matrices as the target's lie."""
        text = self.text_layers()
        if text is not None and packing.native:
            self.native_text = NativeText(self.config, *text, packing)
            for layer in text[0]:
                for name, _ in list(layer.named_children()):
                    setattr(layer, name, nn.Identity())
        for module in list(self.modules()):
            for name, child in list(module.named_children()):
                if type(child) is nn.Linear:
                    setattr(module, name, PackedLinear(child, packing))
        self.compute, self.kv_dtype = packing.compute, packing.dtype

    def allocate(self, blocks: int, block_size: int) -> None:
        if not self.kv_layers:
            return
        c, cpu = self.config, torch.device("cpu")
        if self.native_text is not None:
            self.pool: KvPool | NativeDecoder = self.native_text.decoder
            self.native_text.decoder.allocate(blocks, block_size)
            return
        self.pool = KvPool(self.kv_layers, c.kv_heads, c.head_dim, self.kv_dtype)
        make = quickest(cpu, self.kv_dtype)
        self.attend = make(
            self.pool.allocate(blocks, block_size), [None] * self.kv_layers, c.heads, c.head_dim**-0.5, None
        )
        self.rotary = Rotary(DraftLayer.rope(c.head_dim, c.theta), cpu, torch.float32, c.max_len + MAX_CANDIDATES)

    def move(self, source: list[int], target: list[int]) -> None:
        if self.kv_layers:
            self.pool.move(source, target)

    def read(self, slots: list[int]) -> bytes:
        return self.pool.read(slots) if self.kv_layers else b""

    def write(self, slots: list[int], packed: bytes) -> None:
        if self.kv_layers:
            self.pool.write(slots, packed)
        elif packed:
            raise InputError(f"The packed K/V has {len(packed)} bytes, but none are expected: it is another head's.")
