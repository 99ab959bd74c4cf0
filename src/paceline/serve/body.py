"""How bodies are read: JSON by orjson, which refuses deep nesting, NaN, lone surrogates and what is not UTF-8."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute

from paceline.serve.errors import ApiError


class JsonRequest(Request):
    async def json(self) -> Any:
        try:
            return orjson.loads(await self.body())
        except orjson.JSONDecodeError as error:
            reason = str(error).split(": line ")[0]
            raise ApiError(400, f"The body does not parse as JSON ({reason}, at byte {error.pos}).") from None


class JsonRoute(APIRoute):
    """A route whose body is parsed by `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(JsonRequest(request.scope, request.receive))

        return handle
