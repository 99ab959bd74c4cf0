"""Every failure leaves as one OpenAI error object: {"error": {"message", "type", "param", "code"}}."""

import logging
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from paceline.core.errors import PacelineError

log = logging.getLogger("paceline")

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


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


def error_response(error: ApiError) -> Response:
    body = orjson.dumps(error_body(error.status, error.message, error.param, error.code))
    return Response(body, error.status, error.headers, "application/json")


def as_api_error(error: BaseException) -> ApiError:
    """What the caller is told of any exception. A fault of ours is logged, and not described to them."""
    match error:
        case ApiError():
            return error
        case PacelineError():
            return ApiError(400, str(error), param=blamed(str(error)))
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers)
        case RequestValidationError():
            return validation(error)
        case _:
            log.error("A request failed.", exc_info=error)
            return ApiError(500, "The server failed on this request; its log says why.")


def blamed(message: str) -> str | None:
    """The parameter that an InputError is about: its sentence starts with the name."""
    from paceline.serve.protocol import PARAMETERS

    word = message.split(" ", 1)[0]
    return word if word in PARAMETERS else None


def validation(error: RequestValidationError) -> ApiError:
    """The first fault that pydantic found, as one sentence that starts with the parameter."""
    from paceline.serve.protocol import expected

    fault = error.errors()[0]
    where = [str(part) for part in fault["loc"] if part != "body"]
    if not where:
        return ApiError(400, "The body is no JSON object; send one, with Content-Type: application/json.")
    if fault["type"] == "extra_forbidden":
        name = ".".join(where)
        return ApiError(400, f"Unknown parameter {name!r}; remove it.", param=name, code="unknown_parameter")
    if fault["type"] == "missing":
        return ApiError(400, f"{'.'.join(where)} is missing; give it.", param=where[0])
    if fault["type"] == "value_error":
        return ApiError(400, str(fault["ctx"]["error"]), param=where[0])
    want = expected(where[0])
    return ApiError(
        400, f"{where[0]} is {brief(fault['input'])}, but it must be {want or fault['msg']}.", param=where[0]
    )


def brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


async def answer(request: Request, error: Exception) -> Response:
    return error_response(as_api_error(error))


def install_errors(app: FastAPI) -> None:
    """FastAPI's own error formats never appear."""
    for kind in (ApiError, PacelineError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer)
