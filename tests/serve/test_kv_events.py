"""K/V events: `paceline serve --kv-events-config` as a router hears it, with the structures of vLLM's subscriber."""

import json
import os
import socket
import struct
import subprocess
import sys
import tracemalloc
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import zmq

from paceline.cli.serve import publisher
from paceline.core.errors import InputError
from paceline.serve.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventsConfig,
    KvEvents,
    events_config,
    follows,
    number,
)
from paceline.serve.kv_peers import MOST_PEER_BYTES, Connections, foreign
from paceline.serve.kv_repeats import LAST_NUMBER, MOST_PEERS, PEER_MESSAGES
from paceline.serve.settings import Settings
from tests.serve.http import post, send
from tests.serve.process import SERVE, said, spawned

SHARED = "Once upon a time there was a baker who packed six rolls in every bag and sold them all. " * 3
WAIT_MS = 20_000


class Event(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    """As in vLLM's subscriber."""


class Stored(Event, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[tuple[Any, ...] | None] | None = None


class Removed(Event, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None = None


class Cleared(Event, tag="AllBlocksCleared"):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Stored | Removed | Cleared]
    data_parallel_rank: int | None = None


DECODER = msgspec.msgpack.Decoder(Batch)


class NamedEvent(msgspec.Struct, omit_defaults=True, tag=True):
    """As in the subscriber of vLLM 0.26, whose events are maps."""


class NamedStored(NamedEvent, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None


class NamedRemoved(NamedEvent, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class NamedCleared(NamedEvent, tag="AllBlocksCleared"):
    pass


class NamedBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[NamedStored | NamedRemoved | NamedCleared]
    data_parallel_rank: int | None = None


def abstract() -> str:
    """An address that nobody else has: a name of Linux, neither a port nor a file."""
    return f"ipc://@paceline-{uuid.uuid4()}"


class Router:
    """A subscriber that was late: it asks for all batches so far, then knows which blocks there are."""

    def __init__(self, replay: str) -> None:
        self.context = zmq.Context()
        self.request = self.context.socket(zmq.DEALER)
        self.request.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        self.request.connect(replay)

    def batches(self, first: int = 0) -> list[tuple[int, Batch]]:
        self.request.send_multipart([b"", first.to_bytes(8, "big")])
        out = []
        while True:
            _, count, message = self.request.recv_multipart()
            if count == LAST_NUMBER:
                return out
            out.append((int.from_bytes(count, "big"), DECODER.decode(message)))

    def held(self) -> dict[int, tuple[int | None, list[int]]]:
        """{block: the block before it, its tokens}."""
        known: dict[int, tuple[int | None, list[int]]] = {}
        for _, batch in self.batches():
            for event in batch.events:
                if isinstance(event, Cleared):
                    known.clear()
                elif isinstance(event, Removed):
                    for block in event.block_hashes:
                        del known[block]
                else:
                    before, size = event.parent_block_hash, event.block_size
                    for i, block in enumerate(event.block_hashes):
                        assert before is None or before in known
                        known[block] = before, event.token_ids[size * i : size * (i + 1)]
                        before = block
        return known

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Router, "zmq.Socket[bytes]"]]:
    """A server of few blocks that publishes, a router, and a socket that hears its later messages as they come."""
    replay, context = abstract(), zmq.Context()
    live = context.socket(zmq.SUB)
    live.setsockopt(zmq.RCVTIMEO, WAIT_MS)
    live.setsockopt(zmq.SUBSCRIBE, b"kv@")
    port = live.bind_to_random_port("tcp://127.0.0.1")  # so that the server connects
    wish = {"endpoint": f"tcp://127.0.0.1:{port}", "replay_endpoint": replay, "topic": "kv@demo"}
    small = ["40" if value == "600" else value for value in SERVE]
    with spawned(*small, "--kv-events-config", json.dumps(wish), "--max-requests", "2") as (url, _):
        router = Router(replay)
        yield url, router, live
        router.close()
    context.destroy(linger=0)


def ask(url: str, prompt: str) -> dict[str, Any]:
    status, answer = post(f"{url}/v1/completions", {"prompt": prompt, "max_tokens": 4, "temperature": 0})
    assert status == 200, answer
    usage: dict[str, Any] = answer["usage"]
    return usage


def test_a_router_knows_what_a_prompt_will_find(served: tuple[str, Router, "zmq.Socket[bytes]"]) -> None:
    url, router, live = served
    ask(url, SHARED)
    tokens = post(f"{url}/tokenize", {"prompt": SHARED})[1]["tokens"]
    known = router.held()
    walked, before, found = 0, None, dict[tuple[int | None, tuple[int, ...]], int]()
    for block, (parent, ids) in known.items():
        found[parent, tuple(ids)] = block
    size = len(next(iter(known.values()))[1])
    while (block := found.get((before, tuple(tokens[walked : walked + size])))) is not None:
        walked, before = walked + size, block
    assert walked == len(tokens) // size * size > 0
    assert ask(url, SHARED)["prompt_tokens_details"]["cached_tokens"] == (len(tokens) - 1) // size * size
    for i in range(20):  # until the subscription has arrived, and with it a message that came later
        ask(url, f"{i} heard. {SHARED}")
        if live.poll(1000):
            break
    topic, count, message = live.recv_multipart()
    assert topic == b"kv@demo" and (int.from_bytes(count, "big"), DECODER.decode(message)) in router.batches()


def test_removed_blocks_are_told(served: tuple[str, Router, "zmq.Socket[bytes]"]) -> None:
    """More texts than fit: what the events add up to is what the engine has."""
    url, router, _ = served
    for i in range(8):
        ask(url, f"{i} {SHARED}")
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        metrics = answer.read().decode()
    assert 'vllm:cache_config_info{block_size="16"' in metrics and 'num_gpu_blocks="40"' in metrics
    assert len(router.held()) == send(f"{url}/stats")[1]["kv"]["cached"]
    counts = [count for count, _ in router.batches()]
    assert counts == [*range(len(counts))] and router.batches(counts[-1])[0][0] == counts[-1]
    assert any(isinstance(event, Removed) for _, batch in router.batches() for event in batch.events)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", "no JSON object"), ("[]", "no JSON object"), ('{"endpoit": "x"}', "endpoit"), ('{"hwm": -1}', "hwm"),
        ('{"layout": "map"}', "layout"),
        ('{"publisher": "nats"}', "publisher"), ('{"max_queue_size": 0}', "max_queue_size"), ('{"topic": 3}', "topic"),
        ('{"buffer_steps": 1.5}', "buffer_steps"), ('{"buffer_steps": -1}', "buffer_steps"),
        ('{"hwm": 2147483648}', "hwm"), ('{"buffer_steps": 9223372036854775808}', "buffer_steps"),
    ],
)  # fmt: skip
def test_a_wrong_config_is_named(text: str, names: str) -> None:
    with pytest.raises(InputError, match=names):
        events_config(text)


def test_a_wrong_address_is_refused_before_a_model_is_loaded() -> None:
    code, _, error = said(*SERVE, "--kv-events-config", '{"endpoint": "tcp://*:nine"}')
    assert code == 2 and "tcp://*:nine cannot be used" in error and "Traceback" not in error


def test_switched_off() -> None:
    assert not events_config('{"enable_kv_cache_events": false}').on and not events_config('{"publisher": "null"}').on
    assert events_config("{}").on


def test_after_too_many_events_the_cache_is_told_anew() -> None:
    """The publisher's thread has not begun: nothing is taken from the queue."""
    events, names = (
        KvEvents(EventsConfig(endpoint="inproc://full", max_queue_size=6)),
        [bytes([i]) * 16 for i in range(9)],
    )
    events.stored(b"root", None, names[0], [0])
    events.stored(b"root", names[0], names[1], [1])
    events.removed(names[0])
    events.stored(b"root", None, names[0], [0])
    events.stored(b"root", None, names[2], [2])
    events.removed(names[2])
    events.stored(b"root", None, names[3], [3])  # the seventh
    cleared, chain, other = events._taken()
    assert isinstance(cleared, AllBlocksCleared) and isinstance(chain, BlockStored) and isinstance(other, BlockStored)
    assert (chain.block_hashes, chain.token_ids) == ([number(names[0]), number(names[1])], [0, 1]), "parents come first"
    assert (other.block_hashes, other.parent_block_hash) == ([number(names[3])], None)
    for i in range(4, 9):
        events.stored(b"root", None, names[i], [i])
    assert len(events._taken()) == 5
    for i in range(7):
        events.stored(b"root", None, bytes([32 + i]) * 16, [i])
    assert len(events._taken()) == 3, "half of the queue at most: three blocks, of which two are one event"
    events.removed(names[8])
    assert events._taken() == [], "of the others nobody has been told"
    events.close()


def test_events_may_name_their_fields() -> None:
    """A subscriber with vLLM's later structures reads them from a socket."""
    context = zmq.Context()
    live = context.socket(zmq.SUB)
    live.setsockopt(zmq.SUBSCRIBE, b"")
    port = live.bind_to_random_port("tcp://127.0.0.1")
    events, (one, two) = (
        KvEvents(EventsConfig(endpoint=f"tcp://127.0.0.1:{port}", layout="maps")),
        (b"a" * 16, b"b" * 16),
    )
    for _ in range(200):  # until the subscription has arrived
        events.cleared()
        events.stored(b"root", None, one, [5])
        events.stored(b"root", one, two, [6])
        events.removed(two)
        events._turn()
        if live.poll(100):
            break
    else:
        pytest.fail("nothing was heard within 20 s")
    batch = msgspec.msgpack.decode(live.recv_multipart()[2], type=NamedBatch)
    cleared, stored, removed = batch.events
    assert isinstance(cleared, NamedCleared) and isinstance(stored, NamedStored) and isinstance(removed, NamedRemoved)
    assert (stored.block_hashes, stored.token_ids) == ([number(one), number(two)], [5, 6])
    assert removed.block_hashes == [number(two)] and removed.medium == stored.medium == "GPU" and batch.ts > 0
    events.close()
    context.destroy(linger=0)


def started(**wish: Any) -> KvEvents:
    """A publisher whose turns are the test's to make."""
    return KvEvents(EventsConfig(endpoint=f"inproc://{uuid.uuid4()}", **wish))


def test_a_long_answer_comes_whole() -> None:
    """ZeroMQ drops what waits beyond 1,000 messages for a peer, unless it is told otherwise."""
    replay = abstract()
    events, router = started(replay_endpoint=replay), Router(replay)
    for i in range(4000):
        events._put(BlockRemoved([i]))
        events._turn()
    router.request.send_multipart([b"", bytes(8)])
    counts = list[int]()
    while len(counts) < 4001:
        events._turn()
        while router.request.poll(1):
            counts.append(int.from_bytes(router.request.recv_multipart()[1], "big", signed=True))
    assert counts == [*range(4000), -1]
    router.close()
    events.close()


def test_what_can_be_repeated_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.serve.kv_repeats.REPEATED_BYTES", 1000)
    events = started(buffer_steps=100, replay_endpoint=abstract())
    repeats = events._repeats
    assert repeats is not None
    for i in range(50):
        events._put(BlockStored([i], None, [7] * 64, 64))
        events._turn()
    assert [number for number, _ in repeats.batches] == [*range(50 - len(repeats.batches), 50)]
    assert 0 < sum(len(message) for _, message in repeats.batches) == repeats.bytes <= 1000
    events.close()


def test_what_is_announced_takes_little_memory() -> None:
    """A cache of a million tokens: their ids, and little more."""
    events, blocks, size = started(), 500, 256
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for i in range(blocks):
        events.stored(b"root", None, i.to_bytes(16, "big"), [1000 + i * size + j for j in range(size)])
        assert isinstance(events._taken()[0], BlockStored)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(events._told) == blocks and taken < 12 * blocks * size
    events.close()


def test_an_address_of_version_six() -> None:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"IPv6: {error}")
    KvEvents(EventsConfig(endpoint="tcp://[::1]:*")).close()


def test_texts_of_tenants_are_not_joined() -> None:
    first = BlockStored([number(b"a" * 16)], None, [1], 1)
    assert follows(BlockStored([2], number(b"a" * 16), [2], 1), first)
    assert not follows(BlockStored([2], number(b"a" * 16), [2], 1, extra_keys=[["salt"]]), first)
    assert not follows(BlockStored([2], None, [2], 1), first)


def by_hand(peer: socket.socket, address: str, role: str) -> None:
    """A connection in ZMTP 3.0, for what no client of ZeroMQ sends. Until the other end is ready, it takes nothing but
    the handshake."""
    peer.settimeout(WAIT_MS / 1000)
    kind, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    peer.connect(rest.replace("@", "\0") if kind == "ipc" else (host, int(port)))
    peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(52, b"\0"))
    ready = b"\x05READY\x0bSocket-Type" + len(role).to_bytes(4, "big") + role.encode()
    peer.sendall(b"\x04" + bytes([len(ready)]) + ready)
    answer = b""
    while b"READY" not in answer:
        if not (part := peer.recv(4096)):
            raise ConnectionError(f"Cut off after {answer!r}")
        answer += part


def ended(peer: socket.socket) -> bool:
    """Waits until the other end has cut the connection off."""
    try:
        while peer.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("kind", ["endpoint", "replay_endpoint"])
def test_a_peer_that_announces_a_huge_frame_is_cut_off(kind: str) -> None:
    """As no client announces a frame without having it."""
    at = {"endpoint": abstract(), "replay_endpoint": abstract()}
    publisher = KvEvents(EventsConfig(endpoint=at["endpoint"], replay_endpoint=at["replay_endpoint"]))
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            by_hand(peer, at[kind], {"endpoint": "SUB"}.get(kind, "DEALER"))
            peer.sendall(b"\x02" + (3 << 30).to_bytes(8, "big"))
            assert ended(peer)
    finally:
        publisher.close()


HOSTILE = {
    "frames of a subscriber": ("SUB", b"\x03" + (4000).to_bytes(8, "big") + b"\x02" * 4000),
    "frames of a request": ("DEALER", b"\x01\x08" + bytes(8)),
    "topics": ("SUB", b"\x00\x28\x01" + b"t" * 39),
}
"""What a peer sends again and again: frames of a message that does not end, topics."""


@pytest.mark.parametrize("what", HOSTILE)
def test_a_peer_that_sends_without_end_is_cut_off(what: str) -> None:
    role, frame = HOSTILE[what]
    publisher = KvEvents(EventsConfig(endpoint="tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*"))
    events = publisher._pub.get(zmq.LAST_ENDPOINT)
    assert isinstance(events, bytes) and publisher._repeats is not None
    address = publisher._repeats.address if role == "DEALER" else events.decode().rstrip("\0")
    context = zmq.Context()
    good = context.socket(zmq.SUB)
    good.setsockopt(zmq.SUBSCRIBE, b"")
    good.connect(events.decode().rstrip("\0"))
    try:
        with socket.socket() as peer:
            by_hand(peer, address, role)
            sent = 0
            with suppress(ConnectionError, TimeoutError):  # in time a buffer is full, or nobody is there
                while sent < 64 << 20:
                    peer.settimeout(3 if sent > MOST_PEER_BYTES else 60)
                    sent += peer.send(frame * 100)
            assert sent > MOST_PEER_BYTES
            peer.settimeout(WAIT_MS / 1000)
            assert ended(peer)
        while not good.poll(10):  # another is served as before
            publisher.cleared()
            publisher._turn()
    finally:
        context.destroy(linger=0)
        publisher.close()


def test_a_peer_that_has_left_is_let_go_without_news() -> None:
    """ZeroMQ reads no further, and so sees no end, where topics wait for a publisher that has nothing to publish."""
    publisher = KvEvents(EventsConfig(endpoint="tcp://127.0.0.1:*"))
    events = publisher._pub.get(zmq.LAST_ENDPOINT)
    assert isinstance(events, bytes)
    try:
        with socket.socket() as peer:
            by_hand(peer, events.decode().rstrip("\0"), "SUB")
            peer.sendall(b"\x00\x05\x01abcd" * 1000)
            peer.shutdown(socket.SHUT_WR)
            peer.settimeout(0.05)
            for _ in range(200):
                publisher._turn()
                with suppress(TimeoutError):
                    if ended(peer):
                        break
            else:
                pytest.fail("its connection stayed")
    finally:
        publisher.close()


@pytest.mark.skipif(sys.platform != "linux", reason="All of 127.0.0.0/8 is this machine on Linux alone")
def test_peers_of_one_address_keep_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.serve.kv_peers.MOST_CONNECTIONS", 4)
    publisher = KvEvents(EventsConfig(endpoint="tcp://127.0.0.1:*"))
    events = publisher._pub.get(zmq.LAST_ENDPOINT)
    assert isinstance(events, bytes)
    address = events.decode().rstrip("\0")
    with ExitStack() as stack:
        stack.callback(publisher.close)

        def connected(of: str) -> socket.socket:
            peer = stack.enter_context(socket.socket())
            peer.bind((of, 0))
            with suppress(ConnectionError):
                by_hand(peer, address, "SUB")
            return peer

        good = connected("127.0.0.1")
        others = [connected("127.0.0.2") for _ in range(9)]
        assert all(map(ended, others[:-2])), "two of one address stay"
        late = [connected("127.0.0.1"), connected("127.0.0.3")]
        assert ended(others[-2]), "the address that has most makes room"
        for peer in (good, *late, others[-1]):
            peer.settimeout(0.2)
            with pytest.raises(TimeoutError):
                ended(peer)


def test_a_process_of_another_user_is_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = socket.socketpair()
    with one, two:
        assert not foreign(one)
        found = struct.pack("iII", 7, 65534, 65534)
        other = cast("socket.socket", SimpleNamespace(getsockopt=lambda *asked: found))
        assert foreign(other)
        monkeypatch.setattr(os, "getuid", lambda: 65534)
        assert not foreign(other) and not foreign(one), "root may"


@pytest.mark.skipif(sys.platform != "linux", reason="files are counted in /proc")
def test_a_number_that_is_of_another_file_by_now_is_let_alone(tmp_path: Path) -> None:
    """A peer that ends at once may be told of when its number is a log's or a client's."""
    context = zmq.Context()
    events = context.socket(zmq.PAIR)
    guarded = Connections(events)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        (tmp_path / "log").open("w") as log,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        before = len(os.listdir("/proc/self/fd"))
        own = b"tcp://127.0.0.1:%d" % server.getsockname()[1]
        for file, address in ((log.fileno(), own), (accepted.fileno(), b"tcp://127.0.0.1:1"), (10**6, own)):
            guarded._accepted(file, address)
            assert not guarded.peers and len(os.listdir("/proc/self/fd")) == before
        guarded._accepted(accepted.fileno(), own)
        assert [*guarded.peers] == [accepted.fileno()]
        client.sendall(b"x")
        assert accepted.recv(1) == b"x", "nothing was cut off"
        guarded.close()
        assert len(os.listdir("/proc/self/fd")) <= before
    context.destroy(linger=0)


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root becomes another user")
def test_another_user_of_this_machine_is_cut_off() -> None:
    address = abstract()
    publisher = KvEvents(EventsConfig(endpoint=address))
    code = (
        "import os, socket, sys; os.setuid(65534); peer = socket.socket(socket.AF_UNIX); peer.settimeout(20);"
        "peer.connect('\\0' + sys.argv[1])\n"
        "try:\n while peer.recv(4096): pass\nexcept ConnectionError: pass\nprint('ended')"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, address.rpartition("@")[2]], capture_output=True, text=True, check=False
        )
        assert done.stdout == "ended\n", done.stderr
        with socket.socket(socket.AF_UNIX) as own:
            by_hand(own, address, "SUB")
            own.settimeout(0.2)
            with pytest.raises(TimeoutError):
                ended(own)
    finally:
        publisher.close()


def test_peers_that_read_nothing_hold_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all batches few wait for each peer, for few peers; who takes nothing for long makes room for the next."""
    replay = abstract()
    events, context = started(replay_endpoint=replay), zmq.Context()
    repeats = events._repeats
    assert repeats is not None
    for i in range(200):
        events._put(BlockStored([i], None, [70_000] * 16_000, 16_000))
        events._turn()
    peers = [context.socket(zmq.DEALER) for _ in range(MOST_PEERS + 1)]
    for peer in peers:
        peer.set(zmq.RCVHWM, 1)
        peer.connect(replay)
        peer.send_multipart([b"", bytes(8)])
    for _ in range(200):
        events._turn()
        if len(repeats.peers) == MOST_PEERS:
            break
        peers[0].poll(10, zmq.POLLERR)
    for _ in range(20):
        events._turn()
    assert len(repeats.peers) == len(repeats.answers) == MOST_PEERS, "the last one is left unanswered"
    assert max(answer.next for answer in repeats.answers.values()) <= 2 * PEER_MESSAGES
    monkeypatch.setattr("paceline.serve.kv_repeats.REPEAT_PATIENCE_S", -1.0)
    events._turn()
    assert not repeats.answers, "they took nothing"
    monkeypatch.setattr("paceline.serve.kv_repeats.REPEAT_PATIENCE_S", 10.0)
    events._turn()
    router, counts = Router(replay), list[int]()
    router.request.send_multipart([b"", bytes(8)])
    while not counts or counts[-1] >= 0:
        events._turn()
        while router.request.poll(1):
            counts.append(int.from_bytes(router.request.recv_multipart()[1], "big", signed=True))
    assert counts == [*range(200), -1]
    router.close()
    context.destroy(linger=0)
    events.close()


@pytest.mark.parametrize(
    ("wish", "reached"),
    [
        ({}, "tcp://*:5557"),
        ({"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://10.0.0.1:5558"}, "tcp://10.0.0.1:5558"),
        ({"endpoint": "tcp://router:5557", "replay_endpoint": "tcp://[::1]:5558"}, ""),
        ({"endpoint": "ipc:///tmp/events"}, ""),
        ({"endpoint": "tcp://[::]:5557"}, "tcp://[::]:5557"),
    ],
)
def test_prompts_of_several_keys_are_not_told_to_other_machines(wish: dict[str, str], reached: str) -> None:
    assert EventsConfig(**wish).open_to_all == reached  # type: ignore[arg-type]
    settings = Settings(api_keys=("key-one-01", "key-two-02"), kv_events_config=json.dumps(wish))
    if reached:
        with pytest.raises(InputError, match="several keys are kept apart; bind it to loopback"):
            publisher(settings)
