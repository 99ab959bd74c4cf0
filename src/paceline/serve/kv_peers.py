"""Peers that are connected to the sockets of K/V events. ZeroMQ bounds neither the topics of a subscriber nor the
frames of a message that does not end, so a peer that sends more than routers ever do is cut off: what it sent is freed
with it. Where there are too many peers, the address with most of them loses its eldest, so that nobody keeps another
out. Over `ipc://`, where nothing counts bytes, peers of other users of this machine are cut off.

ZeroMQ gives the file of each connection, and Linux counts the bytes that have come on it. A duplicate of the file is
held, so that its number is not given to another connection.
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from threading import Event, Thread

import zmq
from zmq.utils.monitor import recv_monitor_message

from paceline.serve.admission import address_of
from paceline.serve.connections import Ends
from paceline.serve.places import Places

MOST_PEER_BYTES = 64 << 10
"""Most that a peer may send on one connection: its topics, or its requests and signs of life. A topic takes some fifty
times its length in ZeroMQ. A peer that is cut off connects again by itself."""
MOST_CONNECTIONS = 64
"""Most peers of one socket; half of them may be of one address."""
HANDSHAKE_MS = 5000
"""Time until a peer has said what it is."""
PEER_LOOK_S, PEER_REST_S = 0.02, 0.2
"""Seconds between two looks at the connections, with some and without any."""
PEER_ENDS = Ends()
RECEIVED_AT = 128
"""Where tcp_info (linux/tcp.h) has tcpi_bytes_received, of 8 bytes."""


def received(peer: socket.socket) -> int:
    """Bytes that have come on a connection; 0 where the system does not say."""
    with suppress(OSError, AttributeError):
        info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RECEIVED_AT + 8)
        return int.from_bytes(info[RECEIVED_AT : RECEIVED_AT + 8], "little")
    return 0


def duplicate(file: int) -> socket.socket | None:
    """The connection with this number, under another one; None if there is none."""
    try:
        other = os.dup(file)
    except OSError:
        return None
    try:
        return socket.socket(fileno=other)
    except OSError:
        os.close(other)
        return None


def foreign(peer: socket.socket) -> bool:
    """Is the other end of a connection within this machine a process of another user, other than root?"""
    if not hasattr(socket, "SO_PEERCRED"):
        return False
    _, user, _ = struct.unpack("iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user not in (0, os.getuid())


class Connections:
    """Connections of one socket of ZeroMQ, by the numbers of their files; used by one thread."""

    def __init__(self, events: "zmq.Socket[bytes]") -> None:
        self.events = events
        self.peers: dict[int, socket.socket] = {}
        self.places = Places[int](MOST_CONNECTIONS, (MOST_CONNECTIONS + 1) // 2)

    def look(self) -> bool:
        """Cut off who sent too much; False once the socket has been closed."""
        while self.events.poll(0):
            event = recv_monitor_message(self.events)
            if event["event"] == zmq.Event.MONITOR_STOPPED:
                return False
            self._forget(event["value"])
            if event["event"] == zmq.Event.ACCEPTED:
                self._accepted(event["value"], event["endpoint"])
        for peer in self.peers.values():
            if received(peer) > MOST_PEER_BYTES:
                cut(peer, "a peer of K/V events has sent too much")
        return True

    def _accepted(self, file: int, address: bytes) -> None:
        """A peer has connected to `address`; by now it may have gone, and its number may be of anything else."""
        if (peer := duplicate(file)) is None:
            return
        if peer.family in (socket.AF_INET, socket.AF_INET6):
            if peer.getsockname()[1] == int(address.rpartition(b":")[2] or 0):
                self._placed(file, peer)
                return
        elif peer.family == socket.AF_UNIX and foreign(peer):
            cut(peer, "a peer of K/V events is a process of another user")
        peer.close()

    def _placed(self, file: int, peer: socket.socket) -> None:
        try:
            address = address_of({"client": peer.getpeername()})
        except OSError:  # it has gone
            peer.close()
            return
        self.peers[file] = peer
        self.places.enter(address, file)
        if (last := self.places.too_many(file)) is not None:
            cut(self.peers[last], "too many peers of K/V events")
            self._forget(last)

    def _forget(self, file: int) -> None:
        self.places.leave(file)
        if (gone := self.peers.pop(file, None)) is not None:
            gone.close()

    def close(self) -> None:
        for file in list(self.peers):
            self._forget(file)
        self.events.close(linger=0)


def cut(peer: socket.socket, why: str) -> None:
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
        PEER_ENDS.count(why)


class PeerGuard:
    """Looks at the connections of all sockets that are handed to it, in a thread of its own: reading what a peer sent
    may hold up the thread that publishes."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self._context = context
        self._numbers: Iterator[int] = count()
        self._new: SimpleQueue[zmq.Socket[bytes]] = SimpleQueue()
        self._ended = Event()
        self._thread = Thread(target=self._run, name="paceline-kv-peers", daemon=True)
        self._thread.start()

    def watch(self, made: "zmq.Socket[bytes]") -> None:
        """Follow a socket from now on, before it is bound. To be called by the socket's thread."""
        address = f"inproc://peers-{next(self._numbers)}"
        events_of_peers = zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED | zmq.Event.CLOSED | zmq.Event.MONITOR_STOPPED
        made.monitor(address, events_of_peers)
        events = self._context.socket(zmq.PAIR)
        events.connect(address)
        self._new.put(events)

    def _run(self) -> None:
        watched, poller = list[Connections](), zmq.Poller()
        while not self._ended.is_set():
            with suppress(Empty):
                while True:
                    watched.append(Connections(self._new.get_nowait()))
                    poller.register(watched[-1].events, zmq.POLLIN)
            for each in watched:
                if not each.look():
                    poller.unregister(each.events)
                    each.close()
            watched = [each for each in watched if not each.events.closed]
            if watched:
                poller.poll(round(1000 * (PEER_LOOK_S if any(each.peers for each in watched) else PEER_REST_S)))
            else:
                self._ended.wait(PEER_LOOK_S)
        for each in watched:
            each.close()

    def close(self) -> None:
        """To be called before the context is destroyed."""
        self._ended.set()
        self._thread.join()
