"""Admission of requests: keys, a bounded queue, token limits, and a limit on the size of bodies."""

import asyncio
import hashlib
import hmac
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from ipaddress import ip_address
from time import monotonic

from starlette.types import Receive, Scope

from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.engine.door import Trip, Wishes
from paceline.serve.errors import ApiError, brief
from paceline.serve.other_clients import UNLIMITED_TOKENS

MOST_WAIT_S = 60
CLIENT_HEADER = "Paceline-Client"
"""In it a router says for which of its clients it asks."""


class Budget:
    """Limit on a sum that clients share. With `parted`, a client may hold no more than all clients together leave free:
    half if it is alone, a third next to another one. So the next client finds room. For one thread."""

    def __init__(self, most: int, parted: bool = True) -> None:
        self.most, self.parted, self.size = most, parted, 0
        self.held: dict[str, int] = {}

    def fits(self, owner: str, size: int) -> bool:
        own = self.held.get(owner, 0) if self.parted else 0
        return own + size <= self.most - self.size

    def take(self, owner: str, size: int) -> bool:
        """Reserve `size`, if it fits."""
        if not self.fits(owner, size):
            return False
        self.size += size
        self.held[owner] = self.held.get(owner, 0) + size
        return True

    def give(self, owner: str, size: int) -> None:
        self.size -= size
        self.held[owner] = self.held.get(owner, 0) - size
        if self.held[owner] <= 0:
            del self.held[owner]


class Gate:
    """Counts the samples in the engine and refuses what goes beyond. `places` is how many may be there at once: those
    that run and those that wait. For the event loop alone."""

    def __init__(
        self,
        running: int,
        queue_limit: int,
        max_prompt: int | None = None,
        max_output: int | None = None,
        seen: Callable[[Trip], None] = lambda trip: None,
        *,
        max_nodes: int | None = None,
        parted: bool = False,
    ) -> None:
        """`parted`: clients have a share of the places each."""
        self.running, self.places = running, running + queue_limit
        self.budget = Budget(self.places, parted)
        self.max_nodes = max_nodes
        self.max_prompt, self.max_output, self.seen = max_prompt, max_output, seen
        self._leavings: deque[float] = deque(maxlen=64)

    def resize(self, running: int) -> None:
        """Change the number of samples that run at once. Those that are inside stay."""
        self.places += running - self.running
        self.budget.most, self.running = self.places, running

    @property
    def inside(self) -> int:
        return self.budget.size

    def check(self, count: int, owner: str = "") -> None:
        """Raise what `admit` would raise now for `count` samples."""
        if count > self.places:
            raise InputError(f"n makes {count} samples in all, but this server holds {self.places}; ask for fewer.")
        if self.inside + count <= self.places and not self.budget.fits(owner, count):
            wait, mine = self.retry_after(count), self.budget.held.get(owner, 0)
            raise ApiError(
                429,
                f"Your requests hold {mine} of {self.places} places, which is your share; try again in {wait} s.",
                code="queue_full",
                headers={"Retry-After": str(wait)},
            )
        if self.inside + count > self.places:
            wait = self.retry_after(count)
            raise ApiError(
                429,
                f"The queue is full ({self.inside} of {self.places} places taken); try again in {wait} s.",
                code="queue_full",
                headers={"Retry-After": str(wait)},
            )

    def admit(self, batch: Wishes, owner: str = "") -> Wishes:
        """Take places for all samples of `batch`, cut to the output limit where they name none. Raises InputError for
        what can never enter, ApiError 429 for what cannot now."""
        batch = [(ids, self._limited(ids, params)) for ids, params in batch]
        count = sum(params.n for _, params in batch)
        self.check(count, owner)
        self.budget.take(owner, count)
        return batch

    def _limited(self, ids: Sequence[int], params: SamplingParams) -> SamplingParams:
        if self.max_nodes is not None and (params.max_nodes or 0) > self.max_nodes:
            raise InputError(
                f"max_nodes is {params.max_nodes}, but this server drafts at most {self.max_nodes} tokens a step; "
                "lower it."
            )
        if self.max_prompt is not None and len(ids) > self.max_prompt:
            raise InputError(
                f"prompt has {len(ids)} tokens, but this server takes at most {self.max_prompt}; shorten it."
            )
        if self.max_output is None:
            return params
        if params.max_tokens is None or params.max_tokens == UNLIMITED_TOKENS:
            if params.min_tokens > self.max_output:
                raise InputError(
                    f"min_tokens is {params.min_tokens}, but this server gives at most {self.max_output}; lower it."
                )
            return replace(params, max_tokens=self.max_output)
        if params.max_tokens > self.max_output:
            raise InputError(
                f"max_tokens is {params.max_tokens}, but this server gives at most {self.max_output}; lower it."
            )
        return params

    def left(self, count: int, owner: str = "") -> None:
        """Give places back."""
        self.budget.give(owner, count)
        self._leavings.extend([monotonic()] * min(count, 64))

    def retry_after(self, count: int) -> int:
        """Whole seconds until `count` places should be free, estimated from recent throughput."""
        if len(self._leavings) < 2 or (span := monotonic() - self._leavings[0]) <= 0:
            return 1
        wanted = self.inside + count - self.places
        return max(1, min(MOST_WAIT_S, math.ceil(wanted * span / len(self._leavings))))


class ApiKeys:
    """The API keys, hashed so that a comparison takes the same time for any guess."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def which(self, authorization: str) -> int | None:
        """The place of the one that the header `Bearer KEY`, decoded as Latin-1, carries."""
        scheme, _, key = authorization.partition(" ")
        given = hashlib.sha256(key.strip().encode("latin-1", "replace")).digest()
        equal = [hmac.compare_digest(given, digest) for digest in self._digests]
        return equal.index(True) if scheme.lower() == "bearer" and any(equal) else None


class BodyShare:
    """What one request holds of the bytes of all bodies."""

    def __init__(self, bodies: "Bodies", owner: str) -> None:
        self.bodies, self.owner, self.size = bodies, owner, 0

    def add(self, size: int) -> None:
        """Reserve more bytes. Raises ApiError 429 if there is no room."""
        if not self.bodies.take(self.owner, size):
            raise ApiError(
                429,
                f"The bodies of requests take all room, or your share of it ({self.bodies.most} bytes in all); try "
                "again in 2 s.",
                code="host_busy",
                headers={"Retry-After": "2"},
            )
        self.size += size


class Bodies(Budget):
    """Bytes of the bodies that are held, of all requests together."""

    @contextmanager
    def share(self, owner: str = "") -> Iterator[BodyShare]:
        """A request's part, given back at its end."""
        share = BodyShare(self, owner)
        try:
            yield share
        finally:
            self.give(owner, share.size)


class LoopTurns:
    """Requests that begin: in each turn of the event loop one of each client. What answers a request at once (figures,
    a list of models, a refusal) keeps the loop for milliseconds, and on hundreds of connections seconds would pass
    before it came to another client. For the event loop alone."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def wait(self, owner: str) -> None:
        """Return when this client may begin a request; at once where it began none in this turn."""
        loop = asyncio.get_running_loop()
        if (others := self._waiting.get(owner)) is None:
            self._waiting[owner] = deque()
            loop.call_soon(self._next, owner)
            return
        others.append(turn := loop.create_future())
        await turn

    def _next(self, owner: str) -> None:
        waiting = self._waiting[owner]
        while waiting and waiting[0].done():  # it was cancelled
            waiting.popleft()
        if not waiting:
            del self._waiting[owner]
            return
        waiting.popleft().set_result(None)
        asyncio.get_running_loop().call_soon(self._next, owner)


class Hosts:
    """Which Host headers are answered. A web page may give its own name the address of this machine (DNS rebinding) and
    then read what a server that needs no key says to it; so on loopback only loopback's names are, and elsewhere, where
    some are named, those and loopback's."""

    def __init__(self, host: str, keyed: bool, allowed: Sequence[str]) -> None:
        self.any = keyed or "*" in allowed or not (allowed or is_loopback(host))
        self.allowed = {name.strip().lower().strip("[]") for name in allowed} | {host.lower()}

    def check(self, header: str) -> None:
        """Raise ApiError 403 for another name. A request without one comes from no browser."""
        if self.any or not header:
            return
        name = header.strip().lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        if not (name in self.allowed or is_loopback(name)):
            raise ApiError(
                403,
                f"Host is {name[:100]!r}, but this server answers to loopback names and those it was given; start it "
                "with --allowed-host NAME, or with keys.",
                code="host_not_allowed",
            )


class Origins:
    """Which web pages may ask for more than to read, where no key tells who asks. A browser says where a page is from
    (Sec-Fetch-Site, Origin), and other clients say nothing. A page of this server's own is answered, and one of an
    origin that was allowed."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self.any = "*" in allowed
        self.allowed = {origin.strip().lower().rstrip("/") for origin in allowed}

    def check(self, origin: str, site: str, host: str) -> None:
        """Raise ApiError 403 for another page; the headers are Origin, Sec-Fetch-Site and Host."""
        origin, site = origin.strip().lower(), site.strip().lower()
        if self.any or origin in self.allowed:
            return
        if site in ("same-origin", "none"):
            return
        if not site and (not origin or origin.partition("://")[2] == host.strip().lower()):
            return
        raise ApiError(
            403,
            f"The request comes from a web page of {origin[:100] or 'another origin'!r}, which this server does not "
            "answer; start it with --cors-origin ORIGIN.",
            code="origin_not_allowed",
        )


def address_of(scope: Scope) -> str:
    """Owner of a connection if there are no keys: an IPv4 address, or the first 64 bits of an IPv6 address."""
    client = scope.get("client")
    return owner_at(str(client[0])) if client else ""


@lru_cache(maxsize=1024)
def owner_at(host: str) -> str:
    """Owner of a connection from this host; kept, since a flood of connections asks for few."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if address.version == 6 and (mapped := address.ipv4_mapped) is not None:
        address = mapped
    return str(address) if address.version == 4 else ":".join(address.exploded.split(":")[:4])


def is_loopback(name: str) -> bool:
    if name.rstrip(".") in ("localhost",) or name.rstrip(".").endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


async def read_body(
    scope: Scope, receive: Receive, limit: int, take: Callable[[int], None] = lambda size: None
) -> bytes | None:
    """The whole body, however it is framed; None when the client left. ApiError 413 as soon as it is too large, 415
    for one that is compressed. `take` is called with the bytes as they come."""
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    coded = codings(scope)
    if declared.isdigit() and int(declared) > limit:
        raise too_large(limit)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if coded and parts[-1]:
            said = f"The body's Content-Encoding is {brief(coded)}, but nothing is unpacked here; send it plain."
            raise ApiError(415, said, code="unsupported_encoding")
        size += len(parts[-1])
        take(len(parts[-1]))
        more = message.get("more_body", False)
        if size > limit:
            raise too_large(limit)
    return b"".join(parts)


def codings(scope: Scope) -> str:
    """What the header says that was done to the body; empty where nothing was."""
    values = b",".join(value for name, value in scope["headers"] if name == b"content-encoding").decode("latin-1")
    return ", ".join(it for it in map(str.strip, values.lower().split(",")) if it not in ("", "identity"))


def too_large(limit: int) -> ApiError:
    return ApiError(
        413, f"The body is larger than {limit} bytes, which this server takes; send less.", code="too_large"
    )
