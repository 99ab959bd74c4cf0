"""Adapters over HTTP, as vLLM has them: load one from below `--lora-root`, and unload it.

    POST /v1/load_lora_adapter      {"lora_name": NAME, "lora_path": DIR, "load_inplace": false, "draft_path": DIR}
    POST /v1/unload_lora_adapter    {"lora_name": NAME}

An adapter that was unloaded or replaced stays until the requests that began with it have ended.
"""

import asyncio
from pathlib import Path

from fastapi import APIRouter, Response
from pydantic import Field

from paceline.serve.body import JsonRoute
from paceline.serve.errors import ApiError
from paceline.serve.responses import ERRORS
from paceline.serve.server import Here, Server
from paceline.serve.wire import Wire

router = APIRouter(route_class=JsonRoute)
LORA_READ_S = 120.0
"""Longest wait for an adapter's file."""
LORA_TURN = asyncio.Semaphore(1)
"""One adapter is loaded at a time: its file is in memory as a whole, and the engine makes no step while it enters."""


class LoadAdapterRequest(Wire):
    lora_name: str = Field(description="the name that requests give as model")
    lora_path: str = Field(description="its directory, below the server's --lora-root")
    load_inplace: bool | None = Field(None, description="replace an adapter of this name")
    draft_path: str | None = Field(None, description="its own draft: an adapter of the draft model, or a head")
    base_model_name: str | None = Field(None, description="its model, where several are served")


class UnloadAdapterRequest(Wire):
    lora_name: str = Field(description="the name of the adapter")
    lora_int_id: int | None = Field(None, description="has no effect")
    base_model_name: str | None = Field(None, description="its model, where several are served")


@router.post("/v1/load_lora_adapter", responses=ERRORS)
async def load_lora_adapter(body: LoadAdapterRequest, host: Here) -> Response:
    """Load an adapter."""
    server = await host.of(body.base_model_name)
    path = allowed(server, body.lora_path)
    draft = None if body.draft_path is None else allowed(server, body.draft_path, "draft_path")
    if body.lora_name in {card["id"] for card in host.cards() if card.get("parent") is None}:
        raise ApiError(400, f"{body.lora_name[:100]!r} is the name of a model; give another.", param="lora_name")
    adapters, replace = server.adapters, bool(body.load_inplace)
    adapters.check_name(body.lora_name, replace)
    try:
        async with LORA_TURN:
            weights = await asyncio.wait_for(asyncio.to_thread(lambda: adapters.read(path, draft)), LORA_READ_S)
            await server.llm.call(lambda: adapters.enter(body.lora_name, path, weights, replace, draft))
    except TimeoutError:
        raise ApiError(503, "The adapter's file does not answer; try again later.", code="disk_busy") from None
    return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.", media_type="text/plain")


@router.post("/v1/unload_lora_adapter", responses=ERRORS)
async def unload_lora_adapter(body: UnloadAdapterRequest, host: Here) -> Response:
    """Serve an adapter no more."""
    server = await host.of(body.base_model_name)
    if server.settings.lora_root is None:
        raise off()
    if body.lora_name not in server.adapters.named:
        raise ApiError(404, f"There is no adapter {body.lora_name[:100]!r} here.", param="lora_name", code="not_found")
    await server.llm.call(lambda: server.adapters.remove(body.lora_name))
    return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.", media_type="text/plain")


def allowed(server: Server, text: str, field: str = "lora_path") -> Path:
    """Where an adapter may lie. ApiError for a path outside the root, and where there is none."""
    root = server.settings.lora_root
    if root is None:
        raise off()
    if "\0" in text:
        raise ApiError(400, f"{field} has a zero byte.", param=field)
    try:
        path = (root / text).resolve()
        path.exists()
    except (OSError, RuntimeError) as error:  # too long a name, or links in a circle
        raise ApiError(400, f"{field} cannot be a path ({str(error)[:80]}).", param=field) from None
    if not path.is_relative_to(root.resolve()):
        raise ApiError(403, f"{field} is outside of the directory {root}; put the adapter there.", param=field)
    return path


def off() -> ApiError:
    return ApiError(403, "Adapters are not loaded over HTTP here; start the server with --lora-root DIR.", code="off")
