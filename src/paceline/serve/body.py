"""How bodies are read: JSON by orjson, which refuses deep nesting, NaN, lone surrogates and what is not UTF-8; then
pydantic. A large one is read in a thread, outside the event loop. While a request is prepared, its client is watched:
when it goes, what waits for it is given up."""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from paceline.serve.errors import ApiError, brief, invalid
from paceline.serve.pools import UNCOLLECTED
from paceline.serve.sse import unless_gone

if TYPE_CHECKING:
    from paceline.serve.server import ServedHost

LEAST_PARTS = 1024
SMALL_BODY_BYTES = 1 << 16
"""Bytes up to which a body is read at once."""
NO_OBJECT = "The body is not a JSON object; send one, with Content-Type: application/json."


class JsonRequest(Request):
    """A request whose `json` is the body as its route's model."""

    checked: Any = None
    size = 0

    async def json(self) -> Any:
        return self.checked


def size(request: Request) -> int:
    """Bytes of the body of a request that a `JsonRoute` has read."""
    return request.size if isinstance(request, JsonRequest) else 0


def check_counts(data: Mapping[str, Any], most: int) -> None:
    """Raise ApiError for more objects in a list, or in the lists of those, than a context has tokens: no prompt has
    that many, and they would be parsed one by one."""
    for name, value in data.items():
        if not isinstance(value, list) or not value or not isinstance(value[0], dict):
            continue
        inner = (each for it in value[: most + 1] if isinstance(it, dict) for each in it.values())
        size = max(len(value), sum(len(each) for each in inner if isinstance(each, list)))
        if size > most:
            message = f"{name} has {size} parts, but the context holds {most} tokens; send fewer."
            raise ApiError(400, message, param=name)


def parse(raw: bytes, model: type[BaseModel], most: int = 1 << 20) -> BaseModel:
    """A body as `model`; `most`: tokens of a context. Raises ApiError for the first thing that is wrong with it."""
    with UNCOLLECTED if len(raw) > SMALL_BODY_BYTES else nullcontext():
        made, fault = _parsed(raw, model, most)
    if made is None:
        raise fault or ApiError(400, NO_OBJECT)  # here, where no exception holds the body
    return made


def _parsed(raw: bytes, model: type[BaseModel], most: int) -> tuple[BaseModel | None, ApiError | None]:
    """The model, or what is wrong."""
    try:
        data = orjson.loads(raw)
        if not isinstance(data, dict):
            return None, None
        check_counts(data, most)
        return model.model_validate(data), None
    except ApiError as error:
        return None, ApiError(error.status, error.message, param=error.param)
    except orjson.JSONDecodeError as error:
        reason = str(error).split(": line ")[0]
        return None, ApiError(400, f"The body is not JSON: {reason}, at character {error.pos}; mend it.")
    except ValidationError as error:
        return None, invalid(RequestValidationError(error.errors(include_url=False)), model)


def check_type(given: str) -> None:
    """Raise ApiError for a body that is not called JSON: a web page of another origin may send any other type without
    asking."""
    kind = given.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    said = f"Content-Type is {brief(kind)}" if kind else "Content-Type is missing"
    message = f"{said}, but the body must be sent as JSON; add the header Content-Type: application/json."
    raise ApiError(400, message, param=None)


def called_json(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of a body whose type the route has taken: FastAPI reads by this one."""
    return [*(each for each in headers if each[0] != b"content-type"), (b"content-type", b"application/json")]


class JsonRoute(APIRoute):
    """A route whose body is read by `parse`."""

    def check_type(self, request: Request) -> None:
        """Raise ApiError for a body that is not called what the route takes."""
        check_type(request.headers.get("content-type", ""))

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        model: Any = None if self.body_field is None else self.body_field.field_info.annotation

        async def handle(request: Request) -> Response:
            if model is None:
                return await handler(request)
            own = JsonRequest({**request.scope, "headers": called_json(request.scope["headers"])}, request.receive)
            raw = await own.body()
            own.size = len(raw)
            if raw:
                self.check_type(request)
            else:
                raise ApiError(400, NO_OBJECT)
            answer = await unless_gone(own.receive, answered(own, raw))
            return Response(status_code=499) if answer is None else answer

        async def answered(own: JsonRequest, raw: bytes) -> Response:
            host: ServedHost = own.app.state.host
            work = partial(parse, raw, model, max(host.max_len, LEAST_PARTS))
            own.checked = work() if len(raw) <= SMALL_BODY_BYTES else await host.pools.bodies.run(work, len(raw))
            return await handler(own)

        return handle
