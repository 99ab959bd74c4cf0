"""What the front of a cluster and its engines say to each other: plain data, for any transport."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from paceline.core.params import SamplingParams
from paceline.core.request import FinishReason, SpecStats, TokenLogprob
from paceline.engine.packing import Origin
from paceline.engine.totals import Snapshot


class EngineGoneError(Exception):
    """The engine died, or cannot be reached: what it had goes on elsewhere."""


@dataclass(frozen=True, slots=True)
class EngineAdapters:
    """Adapters and fine-tunes that an engine has by its options."""

    digests: dict[str, str] = field(default_factory=dict)
    """{name: digest}"""
    places: dict[str, str] = field(default_factory=dict)
    """{name: path of its files, or the layers that it is made of}"""
    most: int = 0
    """Most adapters in memory at one time."""
    chained: frozenset[str] | None = None
    """Names of fine-tunes and of the model itself in chains; None: chains are not served."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a front must know of an engine."""

    origin: Origin
    path: Path
    """Path of the engine's checkpoint."""
    defaults: dict[str, Any]
    """The checkpoint's sampling parameters."""
    eos: frozenset[int]
    max_len: int
    longest: int
    """Tokens of the longest text that fits the context and the cache."""
    max_requests: int
    blocks: int
    block_size: int
    width: int
    drafter: str
    drafters: tuple[str, ...]
    process: int
    machine: str
    adapters: EngineAdapters = EngineAdapters()


@dataclass(frozen=True, slots=True)
class Submitted:
    """A prompt to be answered by `params.n` samples."""

    prompt: list[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Resumed:
    """Samples that go on, as `engine.packing` writes them."""

    packed: list[bytes]
    clients: list[str]
    """Client of each: the bytes do not say it."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A reservation that becomes a request. `heard`: tokens and characters of its output that are known."""

    reservation: int
    packed: Any
    heard: tuple[int, int]
    client: str


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """What one engine is about to give to another one: `ref` can be awaited where it is wanted."""

    ref: Any


Opening = Submitted | Resumed | Settled


@dataclass(frozen=True, slots=True)
class Opened:
    """The samples of an opening as the engine took them in: their ids there, and for `Submitted` each as bytes."""

    ids: list[int]
    packed: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SampleNews:
    """News of one sample of an opening: what the engine made of it."""

    place: int
    tokens: list[int]
    authors: list[str | None]
    marks: list[int]
    logprobs: list[TokenLogprob]
    text: str
    stats: SpecStats
    waited: float | None
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    """Once, with the first token."""
    finish: FinishReason | None = None
    error: str | None = None


Word = Opened | Exception | list[SampleNews]
"""What a stream of an engine is made of: `Opened` or what the engine raised, then news."""


class EngineLink(Protocol):
    """The way to one engine. Everything raises EngineGoneError once the engine is gone."""

    name: str

    def open(self, key: str, opening: Opening) -> AsyncIterator[Word]:
        """Begin, and follow to the end; `key` names it for `leave`."""
        ...

    def give(self, verb: str, *args: Any) -> PendingAnswer:
        """Begin `EngineHost.ask`; the result can be given to `open` and `ask` of another link."""
        ...

    async def ask(self, verb: str, *args: Any) -> Any:
        """What `EngineHost.ask` returns. Raises the exception that it returned."""
        ...

    async def facts(self) -> EngineFacts:
        """Facts about the engine, once it is ready."""
        ...

    async def snapshot(self) -> Snapshot:
        """The engine as it was a moment ago."""
        ...

    def kill(self) -> None:
        """End the engine's process."""
        ...
