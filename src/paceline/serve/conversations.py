"""/v1/conversations: what was said, by an id that `conversation` of /v1/responses names. OpenAI's protocol.

A conversation is kept where answers are (`Store`), within the same bytes: those used longest ago go first.
"""

import time
from typing import Any
from uuid import uuid4

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import Field

from paceline.serve.body import JsonRoute
from paceline.serve.errors import ApiError
from paceline.serve.response_wire import Item, as_items, messages
from paceline.serve.responses import ERRORS
from paceline.serve.sse import json_response
from paceline.serve.store import Store, StoredResponse, caller, of_app
from paceline.serve.wire import Wire

router = APIRouter(route_class=JsonRoute)


class ConversationRequest(Wire):
    items: list[Item] | None = Field(None, max_length=20, description="what was said before, 20 items at most")
    metadata: dict[str, str] | None = Field(None, max_length=16, description="texts by name, which come back")


@router.post("/v1/conversations", responses=ERRORS)
async def create(body: ConversationRequest, request: Request) -> Response:
    """Begin a conversation."""
    items = as_items(body.items or [])
    messages(items, None)  # what is no item is refused here
    id = f"conv_{uuid4().hex}"
    made = {"id": id, "object": "conversation", "created_at": int(time.time()), "metadata": body.metadata or {}}
    if not of_app(request).put(id, caller(), made, items, []):
        raise ApiError(507, "The conversation is larger than response_store_bytes; send its end.", param="items")
    return json_response(made)


@router.get("/v1/conversations/{id}", responses=ERRORS)
async def get(id: str, request: Request) -> Response:
    """A conversation, without its items."""
    return Response(found(of_app(request), id, caller()).response, media_type="application/json")


@router.get("/v1/conversations/{id}/items", responses=ERRORS)
async def items_of(id: str, request: Request) -> Response:
    """What was said, the first item first."""
    data = b'{"object":"list","data":' + found(of_app(request), id, caller()).items + b',"has_more":false}'
    return Response(data, media_type="application/json")


@router.delete("/v1/conversations/{id}", responses=ERRORS)
async def forget(id: str, request: Request) -> Response:
    """Forget a conversation; its answers stay."""
    store, owner = of_app(request), caller()
    found(store, id, owner)
    store.delete(id, owner)
    return json_response({"id": id, "object": "conversation.deleted", "deleted": True})


def found(store: Store, id: str, owner: str) -> StoredResponse:
    """A conversation of this owner; ApiError 404."""
    kept = store.get(id, owner) if id.startswith("conv_") else None
    if kept is None:
        message = f"There is no conversation {id[:80]!r} here (any more); send the conversation itself as input."
        raise ApiError(404, message, param="conversation", code="conversation_not_found")
    return kept


def extend(store: Store, id: str, owner: str, items: list[dict[str, Any]]) -> None:
    """A turn and its answer join a conversation; nothing where it was forgotten meanwhile. One that has become too
    large is forgotten, as a whole: half of it would be another conversation."""
    kept = store.get(id, owner)
    if kept is not None:
        store.put(id, owner, orjson.loads(kept.response), [*orjson.loads(kept.items), *items], [])
