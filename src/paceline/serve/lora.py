"""Adapters over HTTP, as vLLM has them: load one from below `--lora-root`, and unload it.

    POST /v1/load_lora_adapter      {"lora_name": NAME, "lora_path": DIR, "load_inplace": false, "draft_path": DIR}
    POST /v1/unload_lora_adapter    {"lora_name": NAME}

An adapter that was unloaded or replaced stays until the requests that began with it have ended. Where API keys are kept
apart, a key replaces and unloads only what it has loaded.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Response
from pydantic import Field, StringConstraints

from paceline.core.errors import PacelineError
from paceline.serve.body import JsonRoute
from paceline.serve.errors import ApiError
from paceline.serve.pools import tenant_now
from paceline.serve.responses import ERRORS
from paceline.serve.server import Here, Server
from paceline.serve.wire import Label, Wire

Weights = TypeVar("Weights")
router = APIRouter(route_class=JsonRoute)
AdapterPath = Annotated[str, StringConstraints(max_length=4096)]
"""As long as a path may be on Linux: each part of one is looked up."""
LORA_READ_S = 120.0
"""Longest wait for an adapter's file, and for those that others load."""


class LoadAdapterRequest(Wire):
    lora_name: Label = Field(description="the name that requests give as model")
    lora_path: AdapterPath = Field(description="its directory, below the server's --lora-root")
    load_inplace: bool | None = Field(None, description="replace an adapter of this name")
    draft_path: AdapterPath | None = Field(None, description="its own draft: an adapter of the draft model, or a head")
    base_model_name: Label | None = Field(None, description="its model, where several are served")


class UnloadAdapterRequest(Wire):
    lora_name: Label = Field(description="the name of the adapter")
    lora_int_id: int | None = Field(None, description="has no effect")
    base_model_name: Label | None = Field(None, description="its model, where several are served")


@router.post("/v1/load_lora_adapter", responses=ERRORS)
async def load_lora_adapter(body: LoadAdapterRequest, host: Here) -> Response:
    """Load an adapter."""
    server = await host.of(body.base_model_name)
    path = await placed(server, body.lora_path, "lora_path")
    draft = None if body.draft_path is None else await placed(server, body.draft_path, "draft_path")
    if body.lora_name in {card["id"] for card in host.cards() if card.get("parent") is None}:
        raise ApiError(400, f"{body.lora_name[:100]!r} is the name of a model; give another.", param="lora_name")
    adapters, replace = server.adapters, bool(body.load_inplace)
    adapters.check_name(body.lora_name, replace)
    check_owner(server, body.lora_name)
    weights = await in_turn(server, lambda: read_below(server, path, draft))
    check_owner(server, body.lora_name)  # another key may have loaded one of this name meanwhile
    await server.enter_adapter(body.lora_name, path, weights, replace, draft)
    server.lora_tenants[body.lora_name] = tenant_now()
    return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.", media_type="text/plain")


@router.post("/v1/unload_lora_adapter", responses=ERRORS)
async def unload_lora_adapter(body: UnloadAdapterRequest, host: Here) -> Response:
    """Serve an adapter no more."""
    server = await host.of(body.base_model_name)
    if server.settings.lora_root is None:
        raise off(server)
    if body.lora_name not in server.adapters.named:
        raise ApiError(404, f"There is no adapter {body.lora_name[:100]!r} here.", param="lora_name", code="not_found")
    check_owner(server, body.lora_name)
    await server.remove_adapter(body.lora_name)
    server.lora_tenants.pop(body.lora_name, None)
    return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.", media_type="text/plain")


def check_owner(server: Server, name: str) -> None:
    """ApiError where this key may not replace or unload the adapter of this name."""
    tenant = tenant_now()
    if tenant and name in server.adapters.named and server.lora_tenants.get(name) != tenant:
        raise ApiError(
            403, f"The adapter {name[:100]!r} was not loaded with this API key, which cannot replace or unload it.",
            param="lora_name", code="forbidden",
        )  # fmt: skip


async def in_turn(server: Server, read: Callable[[], Coroutine[Any, Any, Weights]]) -> Weights:
    """Result of what reads, when its turn has come; the turn ends with it, not with the client."""
    try:
        await asyncio.wait_for(server.lora_turn.acquire(), LORA_READ_S)
        reading = asyncio.create_task(read())
        reading.add_done_callback(lambda done: server.lora_turn.release())
        return await asyncio.wait_for(asyncio.shield(reading), LORA_READ_S)
    except TimeoutError:
        raise ApiError(503, "The adapter's file does not answer; try again later.", code="disk_busy") from None


async def placed(server: Server, text: str, field: str) -> Path:
    """Where an adapter may lie. ApiError for a path outside the root, and where there is none. The disk is asked in a
    thread: it may be a slow one."""
    root = server.settings.lora_root
    if root is None:
        raise off(server)
    if "\0" in text:
        raise ApiError(400, f"{field} has a zero byte.", param=field)
    return await in_turn(server, lambda: asyncio.to_thread(allowed, root, text, field))


def allowed(root: Path, text: str, field: str) -> Path:
    """The path below `root` that a text names. Raises ApiError for one outside."""
    try:
        path = (root / text).resolve()
        path.exists()
    except (OSError, RuntimeError) as error:  # too long a name, or links in a circle
        why = getattr(error, "strerror", None) or "links in a circle"
        raise ApiError(400, f"{field} cannot be a path ({why}).", param=field) from None
    if not path.is_relative_to(root.resolve()):
        raise ApiError(403, f"{field} is outside of the server's --lora-root; put the adapter there.", param=field)
    return path


async def read_below(server: Server, path: Path, draft: Path | None) -> Any:
    """An adapter's weights. Errors name what lies below the root as clients do."""
    try:
        return await server.read_adapter(path, draft)
    except PacelineError as error:
        above = f"{server.settings.lora_root and server.settings.lora_root.resolve()}/"
        raise type(error)(str(error).replace(above, "")) from None


def off(server: Server) -> ApiError:
    return ApiError(403, f"Adapters are not loaded over HTTP here; {server.remedy('--lora-root DIR')}.", code="off")
