"""Every failure leaves as one OpenAI error object: {"error": {"message", "type", "param", "code"}}."""

import logging
from collections.abc import Mapping, Sequence
from reprlib import Repr
from typing import Any, Protocol, runtime_checkable

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from paceline.core.errors import BusyError, LostError, PacelineError
from paceline.core.grammar import MOST_DEPTH
from paceline.engine.adapters import LostAdapterError, NoAdapterError
from paceline.engine.door import DOOR
from paceline.serve.protocol import PARAMETERS, REQUESTS, Message, Speculation
from paceline.serve.reasoning_wire import ReasoningWish
from paceline.serve.retrieval_wire import NeighbourWish, RetrievalWish
from paceline.serve.wire import Wire

log = logging.getLogger("paceline")

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}

ANTHROPIC = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 408: "timeout_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
MESSAGES, RESPONSES, OLLAMA = "/v1/messages", "/v1/responses", "/api/"


class ApiError(Exception):
    """A request that cannot be served: HTTP status, one sentence, the parameter to blame."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(error: ApiError, path: str = "") -> Response:
    """In the form of the API that `path` belongs to."""
    return Response(orjson.dumps(written_for(error, path)), error.status, error.headers, "application/json")


def written_for(error: ApiError, path: str) -> dict[str, Any]:
    if path.startswith(OLLAMA):
        return {"error": error.message}
    if not path.startswith(MESSAGES):
        return error_body(error.status, error.message, error.param, error.code)
    kind = ANTHROPIC.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def last_event(error: ApiError, path: str) -> bytes:
    """What a stream that has begun ends with, in the form of the API that `path` belongs to."""
    body = written_for(error, path)
    if path.startswith(OLLAMA):
        return orjson.dumps(body) + b"\n"
    if path.startswith(MESSAGES):
        return b"event: error\ndata: " + orjson.dumps(body) + b"\n\n"
    if path.startswith(RESPONSES):
        fault = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return b"event: error\ndata: " + orjson.dumps(fault) + b"\n\n"
    return b"data: " + orjson.dumps(body) + b"\n\ndata: [DONE]\n\n"


def as_api_error(error: BaseException) -> ApiError:
    """Response for any exception. An internal error is logged, and not described to the client."""
    match error:
        case ApiError():
            return error
        case BusyError():
            return ApiError(429, str(error), code="host_busy", headers={"Retry-After": "2"})
        case LostError():
            return ApiError(503, str(error), code="engine_lost", headers={"Retry-After": "5"})
        case NoAdapterError():  # it was unloaded since the request named it
            return ApiError(404, str(error), param="model", code="model_not_found")
        case LostAdapterError():
            return ApiError(503, str(error), param="model", code="adapter_lost")
        case PacelineError():
            return ApiError(400, str(error), param=blamed(str(error)))
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers)
        case RequestValidationError():
            return invalid(error)
        case _:
            log.error("A request failed.", exc_info=error)
            return ApiError(500, "The server failed on this request; its log says why.")


def blamed(message: str) -> str | None:
    """The parameter that an InputError is about: its sentence starts with the name."""
    word = message.removeprefix("Unknown ").split(" ", 1)[0].lower()
    if word in Speculation.model_fields:
        return f"speculation.{word}"
    return word if word in PARAMETERS else None


def invalid(error: RequestValidationError, model: type[BaseModel] | None = None) -> ApiError:
    """The first fault that pydantic found in a body, perhaps known to be a `model`: one sentence that names the
    parameter."""
    return refused(error.errors()[0], model)


def refused(fault: Mapping[str, Any], model: type[BaseModel] | None = None) -> ApiError:
    """Error for one fault that pydantic found."""
    place, kind = [part for part in fault["loc"] if part != "body"], fault["type"]
    if kind == "value_error":
        sentence = str(fault["ctx"]["error"])
        return ApiError(400, sentence, param=written(place) or sentence.split(" ", 1)[0])
    if not place and kind != "unknown_parameter":
        return ApiError(400, "The body is not a JSON object; send one, with Content-Type: application/json.")
    if kind == "unknown_parameter":
        name = ".".join(filter(None, (written(place), fault["ctx"]["name"][:200])))
        return ApiError(400, f"Unknown parameter {brief(name)}; remove it.", param=name, code="unknown_parameter")
    name = written(place)
    if kind == "missing":
        return ApiError(400, f"{name} is missing; give it.", param=name)
    if kind == "too_deep":
        return ApiError(
            400, f"{name} is nested too deeply, more than {MOST_DEPTH} levels; make it flatter.", param=name
        )
    if kind == "too_many":
        most = fault["ctx"]["most"]
        return ApiError(400, f"{name} has too many entries; give at most {most}.", param=name)
    if kind == "string_too_long" and len(place):
        size, most = len(fault["input"]), fault["ctx"]["max_length"]
        message = f"{name} has {size} characters, but it may have at most {most}; shorten it."
        return ApiError(400, message, param=name)
    want = expected(name, model) or WANTED_KINDS.get(kind) or fault["msg"].removeprefix("Input should be ")
    return ApiError(400, f"{name} is {brief(fault['input'])}, but it must be {want}.", param=name)


def written(place: Sequence[str | int]) -> str:
    """`messages[0].content` of a fault's place, up to where pydantic goes on about one branch of a union."""
    name = ""
    for part in place:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part.isidentifier() and part.islower() and part not in ("str", "int", "float", "bool"):
            name += f".{part}" if name else part
        else:
            break
    return name


WANTED_KINDS = {
    "string_type": "a text", "list_type": "a list", "dict_type": "an object", "model_type": "an object",
    "int_type": "a whole number", "float_type": "a number", "bool_type": "true or false", "too_short": "not empty",
    "string_too_short": "not empty",
}  # fmt: skip
"""What pydantic wants by the kind of a fault, where a field has no description."""


def expected(name: str, model: type[BaseModel] | None = None) -> str | None:
    """What the value of a parameter, or of a field within one, must be: by its own description."""
    inner = name.rsplit(".", 1)[-1]
    above = POLICY_WISHES.get(name.split(".", 1)[0])
    if inner == name and model is not None and inner in model.model_fields:
        return model.model_fields[inner].description
    models = REQUESTS if inner == name else (Message, Speculation) if above is None else (above,)
    return next((model.model_fields[inner].description for model in models if inner in model.model_fields), None)


POLICY_WISHES: dict[str, type[Wire]] = {
    "reasoning": ReasoningWish, "retrieval": RetrievalWish, "neighbours": NeighbourWish,
}  # fmt: skip
"""What is within a field that names a policy above tokens."""


def brief(value: object) -> str:
    """A value's beginning, in a time that does not depend on its size."""
    if isinstance(value, str | bytes):
        value = value[:80]
    text = repr(value) if isinstance(value, str | bytes | float | bool) else SHORT_REPR.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


SHORT_REPR = Repr()
SHORT_REPR.maxstring = SHORT_REPR.maxother = SHORT_REPR.maxlong = 60


@runtime_checkable
class Faulty(Protocol):
    """A call, which remembers the error that its client received."""

    fault: ApiError | None


async def answer(request: Request, error: Exception) -> Response:
    fault = as_api_error(error)
    door = DOOR.get()
    if isinstance(door, Faulty):
        door.fault = ApiError(fault.status, fault.message, param=fault.param, code=fault.code)
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        fault.message = f"There is no {request.method} {request.url.path[:100]} here; see /openapi.json."
        if request.headers.get("upgrade", "").lower() == "websocket":
            fault.message = "WebSockets are not served here; send a POST, with stream: true for an answer in pieces."
    return error_response(fault, request.url.path)


def install_errors(app: FastAPI) -> None:
    """FastAPI's own error formats never appear."""
    for kind in (ApiError, PacelineError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer)
