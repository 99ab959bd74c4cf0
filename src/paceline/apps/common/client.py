"""One server of OpenAI's protocol: requests in, replies with usage out.

A server that is busy (429, 503) is asked again when it says so, a connection that broke once more; a request that it
refuses is not repeated. `native` is whether it is a Paceline server, which knows `grammar` and `speculation`.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx2

from .address import without_secret
from .tape import Tape
from .usage import Usage, UsageTally

BUSY = frozenset({429, 503})
ATTEMPTS = 4
LONGEST_WAIT_S = 10.0


class CallError(Exception):
    """A request without a reply. `kind`: "refused" (the request is wrong), "unreachable", "server" or "late"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could have stood here, and its log-probability."""

    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the reply, its log-probability, and the most probable at its place."""

    token: str
    logprob: float
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class AppSample:
    """One of a reply's n answers."""

    text: str
    finish: str | None
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class AppReply:
    """What came back for one request; `seconds` is what the caller waited."""

    samples: tuple[AppSample, ...]
    usage: Usage
    seconds: float


@dataclass(slots=True)
class AppClient:
    """A server and how it is asked. Use as `async with Client(url) as client`.

    `drafter` is sent as `speculation` ("none" decodes plainly); `model` None is the first that the server lists;
    `concurrency` requests at most are under way at once. `tally` counts everything asked.
    """

    url: str = "http://127.0.0.1:8000"
    model: str | None = None
    api_key: str | None = None
    drafter: str | None = None
    server_deadlines: bool = False
    concurrency: int = 16
    timeout_s: float = 600.0
    tape: Tape | None = None
    tally: UsageTally = field(default_factory=UsageTally)
    native: bool = False
    _http: httpx2.AsyncClient | None = None
    _slots: asyncio.Semaphore | None = None

    @property
    def shown(self) -> str:
        """The server's address for messages."""
        return without_secret(self.url)

    async def __aenter__(self) -> "AppClient":
        base = self.url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        self._http = httpx2.AsyncClient(base_url=base, headers=headers, timeout=self.timeout_s)
        self._slots = asyncio.Semaphore(self.concurrency)
        try:
            await self._meet()
        except BaseException:
            await self._http.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None
    ) -> None:
        assert self._http is not None
        await self._http.aclose()

    async def _meet(self) -> None:
        """Find the model's name and whose server this is. Raises CallError."""
        models = (await self._json("GET", "/v1/models", {})).get("data") or []
        if not isinstance(models, list) or not all(
            isinstance(m, dict) and isinstance(m.get("id"), str) for m in models
        ):
            raise CallError("server", f"{self.shown} sent no list of models; is it a server of OpenAI's protocol?")
        if not models and self.model is None:
            raise CallError("server", f"{self.shown} lists no model; give --model.")
        card = next((m for m in models if m.get("id") == self.model), models[0] if models else {})
        self.model = self.model or card["id"]
        self.native = card.get("owned_by") == "paceline"
        if not self.native and self.drafter is not None:
            raise CallError(
                "refused", f"{self.shown} is not a Paceline server, so it takes no drafter; leave --drafter out."
            )

    async def chat(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> AppReply:
        """One request to /v1/chat/completions. Raises CallError."""
        body = {"model": self.model, "messages": list(messages), **{k: v for k, v in fields.items() if v is not None}}
        if self.drafter is not None:
            body["speculation"] = {"drafter": self.drafter}
        began = time.monotonic()
        data = await self._json("POST", "/v1/chat/completions", body)
        try:
            samples = tuple(sample(choice) for choice in data["choices"])
            usage = Usage.of(data.get("usage"))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CallError("server", f"{self.shown} sent no chat completion ({error!r} in its answer).") from error
        if not samples:
            raise CallError("server", f"{self.shown} sent a chat completion without a choice.")
        reply = AppReply(samples, usage, time.monotonic() - began)
        self.tally.add(reply.usage, reply.seconds)
        return reply

    async def stats(self) -> dict[str, Any]:
        """The server's own counters (Paceline's /stats); empty where it has none."""
        try:
            return await self._json("GET", "/stats", {})
        except CallError:
            return {}

    async def _json(self, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.tape is not None and self.tape.replaying:
            return dict(self.tape.recall(path, body))
        assert self._slots is not None
        began = time.monotonic()
        async with self._slots:
            data = await self._ask(method, path, body)
        if self.tape is not None:
            self.tape.call(path, body, data, time.monotonic() - began)
        return data

    async def _ask(self, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        assert self._http is not None
        for attempt in range(ATTEMPTS):
            try:
                response = await self._http.request(method, path, json=body if method == "POST" else None)
            except httpx2.TimeoutException as error:
                raise CallError(
                    "late", f"{self.shown} did not answer in {self.timeout_s:g} s; raise --timeout."
                ) from error
            except httpx2.TransportError as error:
                if attempt:
                    raise CallError(
                        "unreachable", f"{self.shown} cannot be reached ({error}); is it served?"
                    ) from error
                continue
            if response.status_code in BUSY and attempt < ATTEMPTS - 1:
                await asyncio.sleep(wait_s(response.headers.get("retry-after"), attempt))
                continue
            return checked(response)
        raise CallError("server", f"{self.shown} stayed busy over {ATTEMPTS} attempts; lower --concurrency.")


def wait_s(header: str | None, attempt: int) -> float:
    """Seconds to wait before asking again: as the server says, else twice as long each time."""
    try:
        return min(float(header or ""), LONGEST_WAIT_S)
    except ValueError:
        return min(0.5 * float(2**attempt), LONGEST_WAIT_S)


def checked(response: httpx2.Response) -> dict[str, Any]:
    """The body of a good response. Raises CallError."""
    try:
        data = response.json()
    except ValueError:
        data = None
    if response.is_success and isinstance(data, dict):
        return data
    error = data.get("error") if isinstance(data, dict) else None
    said = error.get("message") if isinstance(error, dict) else response.text[:200]
    kind = "late" if response.status_code == 408 else "refused" if response.status_code < 500 else "server"
    raise CallError(kind, f"The server answered {response.status_code}: {said}")


@dataclass(slots=True)
class Nobody(AppClient):
    """The client of a run without a model: each request fails at once, so that stand-ins show what they are worth."""

    url: str = "nobody"

    async def __aenter__(self) -> "Nobody":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None
    ) -> None:
        return None

    async def chat(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> AppReply:
        raise CallError("absent", "This run has no model.")


def sample(choice: Mapping[str, Any]) -> AppSample:
    content = (choice.get("logprobs") or {}).get("content") or ()
    tokens = tuple(
        Token(
            t["token"], t["logprob"], tuple(Alternative(a["token"], a["logprob"]) for a in t.get("top_logprobs") or ())
        )
        for t in content
    )
    return AppSample(choice["message"].get("content") or "", choice.get("finish_reason"), tokens)
