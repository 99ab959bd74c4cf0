"""Batches of K/V events that are sent again to peers that missed some, over ZeroMQ's ROUTER.

Anybody who can connect may ask, and may read nothing of the answer. So little waits for one peer in ZeroMQ, the rest
stays here, once for all, and a peer that takes nothing for a while gets no more. Few peers are answered before the
socket is opened again, which drops all that waits in it; subscribers connect again by themselves.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep

import zmq

log = logging.getLogger(__name__)
REPEATED_BYTES = 64 << 20
"""Most bytes of the batches that can be repeated."""
PEER_MESSAGES = 32
"""Messages of an answer that wait in ZeroMQ for one peer."""
MOST_PEERS = 16
"""Peers that are answered before the socket is opened again."""
REPEAT_PATIENCE_S = 10.0
"""Seconds that a peer may take nothing of its answer, and that a socket stays open after the last message."""
OPEN_S = 0.5
"""Longest wait for an address that is being given back."""
LAST_NUMBER = (-1).to_bytes(8, "big", signed=True)


class RepeatsOwed:
    """Batches that a peer has not been sent yet."""

    def __init__(self, first: int) -> None:
        self.next, self.moved = first, monotonic()


class Repeats:
    """The batches, and who is being sent some. For one thread."""

    def __init__(self, make: Callable[[], "zmq.Socket[bytes]"], address: str, most: int) -> None:
        """`make` a ROUTER socket; `most`: batches that are held. Raises zmq.ZMQError for an address that cannot be
        used."""
        self._make, self.most = make, most
        self.batches: deque[tuple[int, bytes]] = deque()
        self.bytes = 0
        self.answers: dict[bytes, RepeatsOwed] = {}
        self.peers: set[bytes] = set()
        """Peers that have been answered on this socket."""
        self._sent_at = monotonic()
        self.socket: zmq.Socket[bytes] | None = self._opened(address)
        found = self.socket.get(zmq.LAST_ENDPOINT)
        self.address = found.decode().rstrip("\0") if isinstance(found, bytes) else str(found)

    def _opened(self, address: str) -> "zmq.Socket[bytes]":
        made = self._make()
        made.set(zmq.SNDHWM, PEER_MESSAGES)
        made.set(zmq.ROUTER_MANDATORY, 1)  # says that a peer's queue is full, instead of dropping what is more
        made.set(zmq.LINGER, 0)
        made.bind(address)
        return made

    def keep(self, number: int, message: bytes) -> None:
        """Hold a batch for those who ask for it later."""
        self.batches.append((number, message))
        self.bytes += len(message)
        while len(self.batches) > self.most or self.bytes > REPEATED_BYTES:
            self.bytes -= len(self.batches.popleft()[1])

    def asked(self, most: int) -> list[list[bytes]]:
        """Requests that have come."""
        found = list[list[bytes]]()
        if self.socket is None:
            self._reopen()
        while self.socket is not None and len(found) < most and self.socket.poll(0):
            found.append(self.socket.recv_multipart())
        return found

    def take(self, frames: list[bytes]) -> None:
        """A request: identity, an empty frame, the first number that is wanted. One that is none gets no answer, and a
        new one of a peer replaces its last."""
        if len(frames) != 3 or len(frames[2]) != 8:
            log.warning("A request for earlier K/V events is not [empty, 8 bytes of a number]; it is left unanswered.")
            return
        who = frames[0]
        if who not in self.peers and len(self.peers) >= MOST_PEERS:
            if monotonic() - self._sent_at > REPEAT_PATIENCE_S:
                self._reopen()
            log.warning("More than %d peers ask for earlier K/V events; one of them has to ask again.", MOST_PEERS)
            return
        self.peers.add(who)
        self.answers[who] = RepeatsOwed(int.from_bytes(frames[2], "big"))

    def go_on(self) -> None:
        """Send as much of all answers as their peers have room for."""
        for who, answer in list(self.answers.items()):
            if self._sent_all(who, answer) or monotonic() - answer.moved > REPEAT_PATIENCE_S:
                del self.answers[who]
        idle = not self.answers and monotonic() - self._sent_at > REPEAT_PATIENCE_S
        if idle and len(self.peers) > MOST_PEERS // 2:
            self._reopen()

    def _sent_all(self, who: bytes, answer: RepeatsOwed) -> bool:
        if self.socket is None:
            return True
        try:
            if self.batches:
                answer.next = max(answer.next, self.batches[0][0])
                begin = answer.next - self.batches[0][0]
                for at in range(begin, len(self.batches)):
                    number, message = self.batches[at]
                    self._send(who, number.to_bytes(8, "big"), message)
                    answer.next, answer.moved = number + 1, monotonic()
            self._send(who, LAST_NUMBER, b"")
        except zmq.Again:
            return False
        except zmq.ZMQError:  # it has gone
            return True
        return True

    def _send(self, who: bytes, number: bytes, message: bytes) -> None:
        assert self.socket is not None
        self.socket.send_multipart((who, b"", number, message), zmq.DONTWAIT)
        self._sent_at = monotonic()

    def _reopen(self) -> None:
        """Drop what waits in the socket, and its connections."""
        if self.socket is not None:
            with suppress(zmq.ZMQError):
                self.socket.unbind(self.address)
            self.socket.close(linger=0)
        self.socket = None
        self.peers.clear()
        self.answers.clear()
        end = monotonic() + OPEN_S
        while self.socket is None:
            try:
                self.socket = self._opened(self.address)
            except zmq.ZMQError as error:
                if monotonic() > end:
                    log.warning(
                        "Earlier K/V events cannot be asked for now: %s cannot be used (%s).", self.address, error
                    )
                    return
                sleep(0.01)
