"""How bodies are read: JSON by orjson, which refuses deep nesting, NaN, lone surrogates and what is not UTF-8."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException


class JsonRequest(Request):
    async def json(self) -> Any:
        try:
            return orjson.loads(await self.body())
        except orjson.JSONDecodeError as error:
            reason = str(error).split(": line ")[0]
            message = f"The body is not JSON: {reason}, at character {error.pos}; mend it."
            raise HTTPException(400, message) from None  # the one kind that FastAPI lets through here


class JsonRoute(APIRoute):
    """A route whose body is parsed by `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(JsonRequest(request.scope, request.receive))

        return handle
