"""K/V events in vLLM's layout: which blocks of the prefix cache an engine has. Routers that know it send a request to
the engine that holds its prefix (llm-d, Dynamo, smg, AIBrix).

Messages have three frames over ZeroMQ's PUB: topic, sequence number (8 bytes, big-endian), and a batch in msgpack. A
ROUTER socket repeats earlier batches from a number on; the last reply has the number -1.
"""

import logging
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from time import time
from typing import Literal

from paceline.cache.blocks import root_hash
from paceline.core.errors import InputError
from paceline.engine.loop import Engine
from paceline.serve.admission import is_loopback

try:
    import msgspec
    import zmq

    from paceline.serve.kv_peers import HANDSHAKE_MS, PeerGuard
    from paceline.serve.kv_repeats import Repeats
except ImportError as error:
    raise InputError(
        "kv_events_config needs pyzmq and msgspec; install them: pip install 'paceline[events]'."
    ) from error

log = logging.getLogger(__name__)

MEDIUM = "GPU"
"""Where blocks lie, in vLLM's words: on the device that computes, be it a GPU or not."""
BATCH_BLOCKS = 1024
"""Most blocks of one message."""
POLL_S, ANSWERING_S, JOIN_S, LINGER_S = 0.1, 0.002, 2.0, 0.5
"""Seconds between two looks at the ROUTER socket, while no answer goes out and while one does; and that the publisher
has to end, its sockets among them."""
REPEATS_A_TURN = 16
"""Most requests for earlier batches that are answered before new events go out."""
MOST_REQUEST_BYTES = 4096
"""Largest frame that a peer may send, a topic or a number; one that announces more is cut off before it has memory."""
WAITING_REQUESTS = 64
"""Messages of a peer that wait to be read; what is more stays with it."""
MOST_COUNT = 2**31 - 1
"""What ZeroMQ takes as a number."""


class BlockStored(msgspec.Struct, array_like=True, tag=True):
    """Blocks that follow one another have entered the prefix cache."""

    block_hashes: list[int]
    """First 64 bits of their names."""
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: None = None
    medium: str | None = MEDIUM
    lora_name: None = None
    extra_keys: list[list[str] | None] | None = None
    """For each block: what else its name depends on, where texts are kept apart (tenants, adapters)."""


class BlockRemoved(msgspec.Struct, array_like=True, tag=True):
    """Blocks have left the prefix cache."""

    block_hashes: list[int]
    medium: str | None = MEDIUM


class AllBlocksCleared(msgspec.Struct, array_like=True, tag=True):
    """The prefix cache is empty. The first event of an engine, too: what was known of its address holds no longer."""


class EventBatch(msgspec.Struct, array_like=True):
    ts: float
    """Unix time."""
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int = 0


EVENT_ENCODER = msgspec.msgpack.Encoder()


def encoded(batch: EventBatch, maps: bool) -> bytes:
    """In msgpack. `maps`: events name their fields, as vLLM's do since 0.23; the batch stays an array."""
    if not maps:
        return EVENT_ENCODER.encode(batch)
    events = [{"type": type(event).__name__, **msgspec.structs.asdict(event)} for event in batch.events]
    return EVENT_ENCODER.encode([batch.ts, events, batch.data_parallel_rank])


class EventsConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON object of vLLM's --kv-events-config, and `layout`."""

    enable_kv_cache_events: bool = True
    publisher: Literal["zmq", "null"] = "zmq"
    endpoint: str = "tcp://*:5557"
    """Address of the PUB socket: bound with `*`, `::`, `ipc://` or `inproc://` in it, else connected to."""
    replay_endpoint: str | None = None
    """Address of the ROUTER socket, always bound."""
    buffer_steps: int = 10_000
    """Batches that can be repeated, as far as `kv_repeats.REPEATED_BYTES` go."""
    hwm: int = 100_000
    """Messages that wait for a slow subscriber; further ones are lost to it, which the numbers show."""
    max_queue_size: int = 100_000
    """Events that wait for the publisher. One more, and all are replaced by `AllBlocksCleared` and the blocks that are
    cached then, as far as they fill half of this."""
    topic: str = ""
    layout: Literal["arrays", "maps"] = "arrays"
    """Ours alone: how events are written. Routers for vLLM before 0.23 know arrays, some later ones maps alone."""

    @property
    def on(self) -> bool:
        return self.enable_kv_cache_events and self.publisher == "zmq"

    @property
    def open_to_all(self) -> str:
        """The address that other machines may connect to; empty where there is none."""
        bound = [self.endpoint] if binds(self.endpoint) else []
        bound += [self.replay_endpoint] if self.replay_endpoint is not None else []
        return next((each for each in bound if not is_local(each)), "")


def binds(address: str) -> bool:
    """Is the PUB socket bound to this, rather than connected?"""
    return any(part in address for part in ("*", "::", "ipc://", "inproc://"))


def is_local(address: str) -> bool:
    """Can this machine alone connect?"""
    kind, _, rest = address.partition("://")
    return kind in ("ipc", "inproc") or is_loopback(rest.rpartition(":")[0].strip("[]"))


def events_config(text: str) -> EventsConfig:
    """The setting `kv_events_config`, parsed. InputError names what is wrong."""
    try:
        found = msgspec.json.decode(text, type=EventsConfig)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InputError(f"kv_events_config is no JSON object as vLLM's: {error}.") from error
    for name, least in (("buffer_steps", 0), ("hwm", 0), ("max_queue_size", 1)):
        if not least <= getattr(found, name) <= MOST_COUNT:
            raise InputError(
                f"kv_events_config has {name} {getattr(found, name)}, but it must be from {least} to {MOST_COUNT}."
            )
    return found


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """Block of the cache that has been announced."""

    root: bytes
    parent: bytes | None
    tokens: "array[int]"
    """8 bytes each, where those of a list are 36: all that the cache holds is here."""


class KvEvents:
    """Watcher of a pool of blocks, and publisher of what it sees, in a thread of its own: the engine never waits."""

    def __init__(self, config: EventsConfig) -> None:
        """Opens the sockets. InputError for an address that cannot be used."""
        self.config = config
        self._events: deque[BlockStored | BlockRemoved | AllBlocksCleared] = deque()
        self._told, self._plain, self._block_size = dict[bytes, CachedBlock](), b"", 0
        self._number = 0
        self._more, self._ended = Event(), Event()
        self._context = zmq.Context()
        self._guard = PeerGuard(self._context)
        self._pub = self._socket(zmq.PUB, config.endpoint)
        self._pub.set(zmq.SNDHWM, config.hwm)
        self._repeats: Repeats | None = None
        address = config.endpoint
        try:
            self._pub.bind(address) if binds(address) else self._pub.connect(address)
            if config.replay_endpoint is not None:
                address = config.replay_endpoint
                self._repeats = Repeats(partial(self._socket, zmq.ROUTER, address), address, config.buffer_steps)
        except zmq.ZMQError as error:
            self._destroy(0)
            raise InputError(f"kv_events_config: {address} cannot be used: {error}.") from error
        if config.open_to_all:
            log.warning(
                "Anyone who can reach %s can read the tokens of all prompts, without a key.", config.open_to_all
            )
        self._thread = Thread(target=self._run, name="paceline-kv-events", daemon=True)

    def _socket(self, kind: int, address: str) -> "zmq.Socket[bytes]":
        made = self._context.socket(kind)
        made.set(zmq.MAXMSGSIZE, MOST_REQUEST_BYTES)
        made.set(zmq.RCVHWM, WAITING_REQUESTS)
        made.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        made.set(zmq.IPV6, int("[" in address))
        self._guard.watch(made)
        return made

    def _destroy(self, linger_s: float) -> None:
        self._guard.close()
        self._context.destroy(linger=round(1000 * linger_s))

    def attach(self, engine: Engine) -> None:
        """Follow the engine's prefix cache from now on. InputError where it has none."""
        pool = engine.cache.pool
        if not pool.prefix:
            raise InputError("kv_events_config tells of the prefix cache, which is off; leave one of the two out.")
        self._plain, self._block_size = root_hash("", engine.cache.identity), pool.block_size
        self.cleared()
        pool.watcher = self
        self._thread.start()

    # -- called by the engine's thread ---------------------------------------------------------------------------------

    def stored(self, root: bytes, parent: bytes | None, name: bytes, tokens: Sequence[int]) -> None:
        self._told.pop(name, None)
        self._told[name] = CachedBlock(root, parent, array("q", tokens))
        self._put(self._event(name))

    def _event(self, name: bytes) -> BlockStored:
        block = self._told[name]
        extra: list[list[str] | None] | None = None if block.root == self._plain else [[block.root.hex()]]
        before = None if block.parent is None else number(block.parent)
        return BlockStored([number(name)], before, [*block.tokens], self._block_size, extra_keys=extra)

    def removed(self, name: bytes) -> None:
        if name in self._told:
            del self._told[name]
            self._put(BlockRemoved([number(name)]))

    def cleared(self) -> None:
        self._told.clear()
        self._put(AllBlocksCleared())

    def _put(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> None:
        if len(self._events) >= self.config.max_queue_size:
            log.warning("K/V events come faster than they are published; subscribers are sent all of it again.")
            self._events.clear()
            names = in_order(self._told)[: self.config.max_queue_size // 2]
            self._told = {name: self._told[name] for name in names}
            self._events.append(AllBlocksCleared())
            self._events.extend(map(self._event, names))
        else:
            self._events.append(event)
        self._more.set()

    # -- its own thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Until `close`. The sockets are this thread's, so it closes them, whatever ends it."""
        try:
            while not self._ended.is_set():
                self._more.wait(ANSWERING_S if self._repeats is not None and self._repeats.answers else POLL_S)
                self._turn()
            self._turn()
        finally:
            self._destroy(LINGER_S)

    def _turn(self) -> None:
        """Publish what has come, then answer who asked before: an answer has all events from before its request."""
        self._more.clear()
        # ZeroMQ takes in subscriptions, and sees that a peer has left, only when it is called.
        self._pub.get(zmq.EVENTS)
        requests = [] if self._repeats is None else self._repeats.asked(REPEATS_A_TURN)
        while events := self._taken():
            message = encoded(EventBatch(time(), events), self.config.layout == "maps")
            self._pub.send_multipart((self.config.topic.encode(), self._number.to_bytes(8, "big"), message))
            if self._repeats is not None:
                self._repeats.keep(self._number, message)
            self._number += 1
        if self._repeats is not None:
            for frames in requests:
                self._repeats.take(frames)
            self._repeats.go_on()

    def _taken(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        """Events of the next message; blocks that follow one another become one event."""
        out: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
        for _ in range(BATCH_BLOCKS):
            try:
                event = self._events.popleft()
            except IndexError:
                break
            last = out[-1] if out else None
            if isinstance(event, BlockRemoved) and isinstance(last, BlockRemoved):
                last.block_hashes += event.block_hashes
            elif isinstance(event, BlockStored) and isinstance(last, BlockStored) and follows(event, last):
                last.block_hashes += event.block_hashes
                last.token_ids += event.token_ids
                if last.extra_keys is not None:
                    last.extra_keys += event.extra_keys or []
            else:
                out.append(event)
        return out

    def close(self) -> None:
        """Publish what is left, and close the sockets."""
        self._ended.set()
        self._more.set()
        if self._thread.ident is None:  # it was never started
            self._destroy(0)
        else:
            self._thread.join(JOIN_S)


def in_order(told: Mapping[bytes, CachedBlock]) -> list[bytes]:
    """Names of blocks, each behind the one that it follows."""
    out = dict[bytes, None]()
    for name in told:
        chain, at = list[bytes](), name
        while at in told and at not in out:
            chain.append(at)
            at = told[at].parent or b""
        out.update(dict.fromkeys(reversed(chain)))
    return [*out]


def number(name: bytes) -> int:
    """The first 64 bits of a block's name."""
    return int.from_bytes(name[:8], "big")


def follows(event: BlockStored, last: BlockStored) -> bool:
    """Does `event` continue the text of `last`?"""
    keys = [each.extra_keys and each.extra_keys[-1] for each in (event, last)]
    return event.parent_block_hash == last.block_hashes[-1] and keys[0] == keys[1]
