"""`paceline route`: one address in front of several engines, which plans the calls of workflows."""

import logging
from collections.abc import Mapping
from typing import Annotated, Any
from uuid import uuid4

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paceline.cluster.control.controller import Controller
from paceline.cluster.control.engines import EngineLost, Reply
from paceline.cluster.workflow.tasks import CallWork
from paceline.serve.errors import ApiError, error_response, install_errors

log = logging.getLogger("paceline")
ROUTER_RATE = 0.1
"""How quickly what a step's calls are expected to have follows what they had."""
Step = Annotated[str, Field(min_length=1, max_length=64)]


class Hint(BaseModel):
    """A request's `workflow`. Without it a request is a workflow of its own."""

    model_config = ConfigDict(extra="forbid")
    id: Annotated[str, Field(min_length=1, max_length=128)]
    step: Step = "call"
    deadline_s: float | None = None
    """Seconds that the whole workflow has left; 0 or less if it is late."""
    expected: list[Step] = Field(default=[], max_length=64)
    """Steps expected after this one."""
    last: bool = False
    """No further call will come."""


class Router:
    """Requests to a controller."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self._lengths: dict[str, tuple[float, float]] = {}
        controller.used = tokens

    async def post(self, path: str, body: bytes) -> Reply:
        """Raises ApiError."""
        data, hint = read(body)
        given = self.work(hint.step, len(body), data)
        later = [
            CallWork(step, *self._lengths.get(step, (given.tokens_in, given.tokens_out))) for step in hint.expected
        ]
        deadline = float("inf") if hint.deadline_s is None else hint.deadline_s
        reply = await self.controller.call(
            hint.id, given, path, orjson.dumps(data), deadline=deadline, expected=later
        )  # fmt: skip
        self.learn(hint.step, tokens(reply))
        if hint.last:
            self.controller.end(hint.id)
        return reply

    def work(self, step: str, size: int, data: Mapping[str, Any]) -> CallWork:
        """What a call is expected to be: its prompt by its size, its output as those of its step were, or half of what
        it allows."""
        most = data.get("max_completion_tokens") or data.get("max_tokens") or 256
        half = 0.5 * most if isinstance(most, int) else 128.0
        _, output = self._lengths.get(step, (0.0, half))
        return CallWork(step, size / 4.0, output)

    def learn(self, step: str, used: tuple[float, float] | None) -> None:
        if used is not None:
            before = self._lengths.get(step, used)
            self._lengths[step] = tuple(a + ROUTER_RATE * (b - a) for a, b in zip(before, used))  # type: ignore[assignment]

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
        data = orjson.loads(body)
        if not isinstance(data, dict):
            raise ValueError
    except ValueError:
        raise ApiError(400, "The body is no JSON object; send one.") from None
    if data.get("stream"):
        raise ApiError(400, "stream and a router cannot be combined; ask an engine itself to stream.", param="stream")
    given = data.pop("workflow", None)
    try:
        return data, Hint(id=uuid4().hex, last=True) if given is None else Hint.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, ("workflow", *first["loc"])))
        raise ApiError(400, f"{where}: {first['msg']}.", param="workflow") from None


def tokens(reply: Reply) -> tuple[float, float] | None:
    """(prompt, output) by a reply's `usage`."""
    try:
        usage = orjson.loads(reply.body)["usage"]
        return float(usage["prompt_tokens"]), float(usage["completion_tokens"])
    except (ValueError, KeyError, TypeError):
        return None


def create(controller: Controller) -> FastAPI:
    """The application."""
    app, router = FastAPI(title="Paceline router", docs_url=None, redoc_url=None), Router(controller)
    install_errors(app)

    async def post(request: Request) -> Response:
        reply = await router.post(request.url.path.removeprefix("/v1"), await request.body())
        return Response(reply.body, reply.status, media_type="application/json")

    for path in ("/v1/chat/completions", "/v1/completions"):
        app.post(path)(post)

    @app.get("/v1/models")
    async def models() -> Response:
        for engine in controller.engines.values():
            try:
                reply = await engine.ask("/models", None)
            except EngineLost:
                continue
            return Response(reply.body, reply.status, media_type="application/json")
        return error_response(ApiError(503, "No engine answers; start one."))

    @app.get("/stats")
    def stats() -> dict[str, Any]:
        return router.state(controller.clock())

    return app
