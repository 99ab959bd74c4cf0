"""`paceline route`: one address in front of several engines, which plans the calls of workflows."""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import Field, ValidationError
from pydantic_core import PydanticCustomError
from starlette.types import Receive, Scope, Send

from paceline.cluster.control.controller import Controller
from paceline.cluster.control.engines import EngineLost, Reply, StreamingEngine, StreamPieces
from paceline.cluster.workflow.predict import keep
from paceline.cluster.workflow.tasks import CallWork, Instance
from paceline.core.grammar import MOST_DEPTH
from paceline.engine.door import DOOR
from paceline.engine.totals import Snapshot, Totals
from paceline.serve.admission import Budget
from paceline.serve.body import SMALL_BODY_BYTES, check_type
from paceline.serve.calls import HttpCall
from paceline.serve.errors import ApiError, error_response, install_errors, last_event, refused
from paceline.serve.operation import install
from paceline.serve.pools import UNCOLLECTED, Pools
from paceline.serve.server import ModelFigures, Server, unknown_model
from paceline.serve.settings import Settings
from paceline.serve.sse import unless_gone
from paceline.serve.wire import ITEMS, Wire, check_depth

log = logging.getLogger("paceline")
ROUTER_RATE = 0.1
"""How quickly what a step's calls are expected to have follows what they had."""
MOST_CALLS = 1024
"""Calls that are planned as one workflow."""
MOST_EXPECTED_TOKENS = 1 << 15
"""Longest output that a call is planned with, whatever it allows: one that allows very many would fill its engine."""
NO_ENGINE_S, MODELS_S = 10, 5.0
"""How long calls wait while no engine is alive, and a list of models for an engine."""
Step = Annotated[str, Field(min_length=1, max_length=64)]


class Hint(Wire):
    """A request's `workflow`. Without it a request is a workflow of its own."""

    id: Annotated[str, Field(min_length=1, max_length=128)]
    step: Step = "call"
    deadline_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Seconds that the whole workflow has left; 0 or less if it is late."""
    expected: list[Step] = Field(default=[], max_length=64)
    """Steps expected after this one."""
    last: bool = False
    """No further call will come."""


class RoutedHost:
    """A `ServedHost` without a model of its own: what the server's guard, probes and metrics ask for."""

    model, max_len, alive = "route", 1 << 20, True

    def __init__(self, controller: Controller, settings: Settings) -> None:
        self.controller, self.settings = controller, settings
        self.pools = Pools(settings.queue_limit, settings.parted)

    def stuck(self) -> float:
        return 0.0

    @property
    def snapshot(self) -> Snapshot:
        running = sum(len(each.running) for each in self._instances)
        waiting = len(self.controller.dispatcher.ready) + sum(len(each.queue) for each in self._instances)
        return Snapshot(running, waiting, 1, 0, 0, Totals())

    @property
    def max_requests(self) -> int:
        return sum(each.slots for each in self._instances)

    @property
    def _instances(self) -> list[Instance]:
        return list(self.controller.dispatcher.instances.values())

    async def of(self, name: str | None) -> Server:
        raise unknown_model(str(name), [])

    def cards(self) -> list[dict[str, Any]]:
        return []

    def figures(self) -> dict[str, ModelFigures]:
        return {}

    def first(self) -> None:
        return None

    async def warm_up(self) -> None:
        """Nothing: the engines have warmed up themselves."""


class Router:
    """Requests to a controller."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self._lengths: dict[str, tuple[float, float]] = {}
        self._salt = secrets.token_bytes(16)
        controller.used = tokens_of
        controller.learns_of_all = False  # else anybody's refusals would teach nonsense

    async def post(self, path: str, data: dict[str, Any], hint: Hint, size: int, call: HttpCall | None = None) -> Reply:
        """A request of `size` bytes, read by `read`. Raises ApiError."""
        streams = bool(data.get("stream"))
        if streams and not all(isinstance(each, StreamingEngine) for each in self.controller.engines.values()):
            raise ApiError(400, "stream is true, but these engines do not stream through a router.", param="stream")
        id = hint.id
        if call is not None and call.tenant:  # the engines know the router's own key alone
            salt = self._named(call.tenant)
            data, id = {**data, "cache_salt": salt + str(data.get("cache_salt") or "")[:256]}, f"{salt}.{id}"
        id = self._part(id)
        given = self.work(hint.step, size, data)
        later = [
            CallWork(step, *self._lengths.get(step, (given.tokens_in, given.tokens_out))) for step in hint.expected
        ]
        deadline = float("inf") if hint.deadline_s is None else hint.deadline_s
        asking = self.controller.call(
            id, given, path, orjson.dumps(data), deadline=deadline, expected=later, stream=streams,
            client=self._named(call.owner) if call is not None else "",
        )  # fmt: skip
        try:
            reply = await self._answered(asyncio.ensure_future(asking))
        except EngineLost as lost:
            message = "The engines that were asked broke off, perhaps over this request; change it, or try later."
            log.warning("A call was given up: %s.", lost)
            raise ApiError(502, message, code="engine_lost") from None
        if reply.stream is None:
            self.learn(hint.step, tokens(reply))
        if hint.last:
            self.controller.end(id)
        return reply

    def _part(self, id: str) -> str:
        """Its name among the dispatcher's workflows: one that goes on for ever is many, each of which ends."""
        name, part = id, 0
        while self.controller.calls(name) >= MOST_CALLS:
            part += 1
            name = f"{id}.{part}"
        return name

    def _named(self, client: str) -> str:
        """A client's name among the engines, which tells neither key nor address."""
        return hashlib.blake2b(client.encode(), key=self._salt, digest_size=16).hexdigest()

    async def _answered(self, asking: "asyncio.Task[Reply]") -> Reply:
        """The reply. ApiError 503 once no engine has answered for a while."""
        alone = 0
        try:
            while not (await asyncio.wait((asking,), timeout=1.0))[0]:
                alone = 0 if any(each.alive for each in self.controller.dispatcher.instances.values()) else alone + 1
                if alone >= NO_ENGINE_S:
                    retry = {"Retry-After": "5"}
                    raise ApiError(503, "No engine answers; try again later.", code="no_engine", headers=retry)
            return asking.result()
        finally:
            asking.cancel()

    def work(self, step: str, size: int, data: Mapping[str, Any]) -> CallWork:
        """What a call is expected to be: its prompt by its size, its output as those of its step were, or half of what
        it allows."""
        most = data.get("max_completion_tokens") or data.get("max_tokens") or 256
        half = 0.5 * min(max(most, 1), MOST_EXPECTED_TOKENS) if isinstance(most, int) else 128.0
        _, output = self._lengths.get(step, (0.0, half))
        return CallWork(step, size / 4.0, output)

    def learn(self, step: str, used: tuple[float, float] | None) -> None:
        if used is not None:
            before = self._lengths.get(step, used)
            prompt, output = (a + ROUTER_RATE * (b - a) for a, b in zip(before, used))
            keep(self._lengths, step, (prompt, output))

    def state(self, now: float) -> dict[str, Any]:
        """For /stats."""
        c = self.controller
        instances = {
            each.name: {
                "kind": each.kind, "alive": each.alive, "running": len(each.running), "queued": len(each.queue),
                "backlog_s": round(each.backlog(now, c.dispatcher.predictor), 3),
                "answered": c.answered.get(each.name, 0),
            }
            for each in c.dispatcher.instances.values()
        }  # fmt: skip
        return {"instances": instances, "workflows": len(c.dispatcher.workflows), "dropped": c.dropped}


def read(body: bytes) -> tuple[dict[str, Any], Hint]:
    """A request without its `workflow`, and that. Raises ApiError."""
    try:
        with UNCOLLECTED if len(body) > SMALL_BODY_BYTES else nullcontext():
            data = orjson.loads(body)
            if not isinstance(data, dict):
                raise ValueError
            check_depth(data)
    except PydanticCustomError as error:
        deep = f"is nested too deeply, more than {MOST_DEPTH} levels; make it flatter."
        wide = f"has more than {ITEMS} values; send fewer."
        raise ApiError(400, f"The body {deep if error.type == 'too_deep' else wide}") from None
    except ValueError:
        raise ApiError(400, "The body is not a JSON object; send one.") from None
    given = data.pop("workflow", None)
    try:
        return data, Hint(id=uuid4().hex, last=True) if given is None else Hint.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fault = refused({**first, "loc": ("workflow", *first["loc"])}, Hint)
        raise ApiError(400, fault.message, param="workflow") from None


def tokens(reply: Reply) -> tuple[float, float] | None:
    """(prompt, output) by a reply's `usage`; of a stream by that of its end."""
    data = reply.body
    if reply.stream is not None:
        events = [event.removeprefix(b"data: ") for event in data.split(b"\n\n")]
        data = next((event for event in reversed(events) if b'"usage":{' in event), b"")
    try:
        usage = orjson.loads(data)["usage"]
        return float(usage["prompt_tokens"]), float(usage["completion_tokens"])
    except (ValueError, KeyError, TypeError):
        return None


def tokens_of(reply: Reply, work: CallWork) -> tuple[float, float] | None:
    """As `tokens`; of a stream without usage its number of events, for nearly each has the tokens of one step."""
    if (used := tokens(reply)) is not None or reply.stream is None or not reply.stream.events:
        return used
    return work.tokens_in, float(reply.stream.events)


class RelayedStream(Response):
    """Hands a stream on, and tells its source when the client goes."""

    media_type = "text/event-stream"

    def __init__(self, pieces: StreamPieces) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send, scope.get("path", "")))
        finally:
            self.pieces.left()

    async def _send(self, send: Send, path: str) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for piece in self.pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except EngineLost:
            fault = ApiError(502, "The engine broke off; send the request again.", code="engine_lost")
            await send({"type": "http.response.body", "body": last_event(fault, path), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def create(controller: Controller, settings: Settings | None = None) -> FastAPI:
    """The application: the server's own guard with these engines behind it."""
    settings = settings or Settings()
    app, router = FastAPI(title="Paceline router", docs_url=None, redoc_url=None), Router(controller)
    host = RoutedHost(controller, settings)
    app.state.host = host
    places = Budget(host.max_requests + settings.queue_limit, settings.parted)
    install_errors(app)

    async def post(request: Request) -> Response:
        body, door = await request.body(), DOOR.get()
        call = door if isinstance(door, HttpCall) else None
        check_type(request.headers.get("content-type", ""))
        owner = "" if call is None else call.owner
        if not places.take(owner, 1):
            retry = {"Retry-After": "2"}
            raise ApiError(429, "The router's queue is full, or your share of it; try again in 2 s.", headers=retry)
        try:
            large = len(body) > SMALL_BODY_BYTES
            data, hint = await host.pools.bodies.run(partial(read, body), len(body)) if large else read(body)
            asked = router.post(request.url.path.removeprefix("/v1"), data, hint, len(body), call)
            reply = await unless_gone(request.receive, asked)
        finally:
            places.give(owner, 1)
        if reply is None:
            return Response(status_code=499)
        if reply.stream is not None:
            return RelayedStream(reply.stream)
        return Response(reply.body, reply.status, media_type="application/json")

    for path in ("/v1/chat/completions", "/v1/completions"):
        app.post(path)(post)

    @app.get("/v1/models")
    async def models() -> Response:
        for name, engine in controller.engines.items():
            if not controller.dispatcher.instances[name].alive:
                continue
            try:
                reply = await asyncio.wait_for(engine.ask("/models", None), MODELS_S)
            except (EngineLost, TimeoutError):
                continue
            return Response(reply.body, reply.status, media_type="application/json")
        return error_response(ApiError(503, "No engine answers; start one."))

    @app.get("/stats")
    async def stats() -> dict[str, Any]:
        return router.state(controller.clock())

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    install(app, host, settings)
    return app
