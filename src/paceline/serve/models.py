"""The small end points: what is served, and whether it lives."""

from importlib.metadata import version

from fastapi import APIRouter, Response

from paceline.serve.errors import ApiError
from paceline.serve.server import Here, Server
from paceline.serve.sse import json_response

router = APIRouter()


def card(server: Server) -> dict[str, object]:
    return {
        "id": server.model,
        "object": "model",
        "created": server.created,
        "owned_by": "paceline",
        "max_model_len": server.llm.llm.engine.model.max_len,
    }


@router.get("/v1/models")
async def models(server: Here) -> Response:
    """The served model."""
    return json_response({"object": "list", "data": [card(server)]})


@router.get("/v1/models/{name:path}")
async def model(name: str, server: Here) -> Response:
    """One model by name."""
    server.check_model(name)
    return json_response(card(server))


@router.get("/version")
async def paceline_version() -> Response:
    return json_response({"version": version("paceline")})


@router.get("/health")
async def health(server: Here) -> Response:
    """Green while the engine thread lives."""
    if not server.llm.alive:
        raise ApiError(503, "The engine thread died; restart the server.", code="engine_dead")
    return json_response({"status": "ok"})
