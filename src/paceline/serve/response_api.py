"""POST /v1/responses: OpenAI's newer API, over the same answers as /v1/chat/completions."""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from paceline.engine.outputs import Chunk
from paceline.serve import conversations, logprobs
from paceline.serve.body import JsonRoute, size
from paceline.serve.chat import ChoiceReader, begin
from paceline.serve.errors import ApiError, as_api_error
from paceline.serve.generation import Generation
from paceline.serve.parser import Reasoning
from paceline.serve.prompts import template
from paceline.serve.protocol import ChatRequest
from paceline.serve.response_output import Output
from paceline.serve.response_wire import Item, ResponsesRequest, as_chat, as_items, conversation_id, left_out
from paceline.serve.responses import ERRORS, STREAM_FORM
from paceline.serve.server import Here, Server
from paceline.serve.sse import json_response, named, respond
from paceline.serve.store import Store, StoredResponse, caller, of_app

router = APIRouter(route_class=JsonRoute)
ECHOED = ("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "temperature", "top_p", "user")
"""Fields of an answer that are those of the request."""


class ResponseShape(BaseModel):
    """For the OpenAPI document; the fields are OpenAI's."""

    model_config = ConfigDict(extra="allow")
    id: str
    object: Literal["response"]
    status: Literal["completed", "incomplete", "in_progress", "failed"]
    output: list[dict[str, Any]]


@router.post("/v1/responses", responses={200: {"model": ResponseShape, **STREAM_FORM}, **ERRORS})
async def responses(body: ResponsesRequest, request: Request, host: Here) -> Response:
    """Answer a turn of a conversation; `previous_response_id` goes on with one that was stored."""
    server, store, owner = await host.of(body.model), of_app(request), caller()
    earlier, talk = b"[]", conversation_id(body)
    if body.previous_response_id is not None:
        earlier = found(store, body.previous_response_id, owner).items
    elif talk is not None:
        earlier = conversations.found(store, talk, owner).items
    server.check_places(1)
    bulk, most = size(request) + len(earlier), server.settings.max_body_bytes
    if bulk > most:
        message = f"The conversation has {bulk} bytes with this turn, but at most {most} are kept; begin a new one."
        raise ApiError(400, message, param="previous_response_id" if talk is None else "conversation")

    def read() -> tuple[list[Item], list[Item], ChatRequest]:
        before, given = orjson.loads(earlier), as_items(body.input)
        return before, given, as_chat(body, [*before, *given], template(server.text))

    before, given, chat = await server.pools.texts.run(read, bulk)
    generation, (reader,) = await begin(chat, server, bulk)
    answer = ResponseAnswer(body, server, generation, reader, bool(chat.logprobs))

    def keep() -> None:
        if body.store is not False:
            items = [*before, *given, *answer.output.items]
            store.put(answer.id, owner, answer.response(), items, given)
        if talk is not None:
            conversations.extend(store, talk, owner, [*given, *answer.output.items])

    answer.keep = keep
    return await respond(request, answer, bool(body.stream), generation.close, done=b"")


@router.get("/v1/responses/{id}", responses={200: {"model": ResponseShape}, **ERRORS})
async def stored(id: str, request: Request) -> Response:
    """An answer that was stored."""
    return Response(found(of_app(request), id, caller()).response, media_type="application/json")


@router.get("/v1/responses/{id}/input_items", responses=ERRORS)
async def input_items(id: str, request: Request) -> Response:
    """What a stored answer was the answer to, without earlier turns."""
    data = b'{"object":"list","data":' + found(of_app(request), id, caller()).given + b"}"
    return Response(data, media_type="application/json")


@router.delete("/v1/responses/{id}", responses=ERRORS)
async def delete(id: str, request: Request) -> Response:
    """Forget a stored answer."""
    if not of_app(request).delete(id, caller()):
        raise unknown(id)
    return json_response({"id": id, "object": "response", "deleted": True})


def found(store: Store, id: str, owner: str) -> StoredResponse:
    kept = store.get(id, owner) if id.startswith("resp_") else None
    if kept is None:
        raise unknown(id)
    return kept


def unknown(id: str) -> ApiError:
    message = f"There is no response {id[:80]!r} here (any more); send the conversation itself as input."
    return ApiError(404, message, param="previous_response_id", code="response_not_found")


@dataclass
class ResponseAnswer:
    """Turns the news of a generation into OpenAI's response object, or its events."""

    body: ResponsesRequest
    server: Server
    generation: Generation
    reader: ChoiceReader
    logprobs: bool
    keep: Any = None
    """Called once, when the answer is complete."""
    id: str = field(default_factory=lambda: f"resp_{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    status: str = "in_progress"
    reason: str | None = None
    error: dict[str, Any] | None = None
    thought: int = 0
    """Tokens of reasoning."""
    _count: int = 0

    def __post_init__(self) -> None:
        self.output = Output()

    async def whole(self) -> dict[str, Any]:
        async for chunks in self.generation.news():
            for chunk in chunks:
                for _ in self.read(chunk):
                    pass
        for _ in self.end():
            pass
        return self.response()

    async def events(self) -> AsyncGenerator[bytes, None]:
        for name in ("response.created", "response.in_progress"):
            yield self.event(name, {"response": self.response()})
        try:
            async for chunks in self.generation.news():
                said = b"".join(self.event(*each) for chunk in chunks for each in self.read(chunk))
                if said:
                    yield said
        except Exception as error:
            fault = as_api_error(error)
            self.status, self.error = "failed", {"code": fault.code or "server_error", "message": fault.message}
            yield self.event("response.failed", {"response": self.response()})
            return
        yield b"".join(self.event(*each) for each in self.end())
        yield self.event(f"response.{self.status}", {"response": self.response()})

    def read(self, chunk: Chunk) -> Any:
        """Events of a chunk."""
        deltas = self.reader.read(chunk)
        if deltas and isinstance(deltas[-1], Reasoning):
            self.thought += len(chunk.token_ids)
        known = logprobs.of_chat(self.server.tokens, chunk.logprobs) if self.logprobs else None
        yield from self.output.read(deltas, known["content"] if known else ())
        if chunk.done is not None and chunk.done.finish_reason == "length":
            self.reason = "max_output_tokens"

    def end(self) -> Any:
        """Events of the last item's end; then the answer is complete, and kept."""
        self.status = "completed" if self.reason is None else "incomplete"
        yield from self.output.close(self.status)
        if self.keep is not None:
            self.keep()

    def event(self, name: str, fields: dict[str, Any]) -> bytes:
        self._count += 1
        return named(name, {**fields, "sequence_number": self._count - 1})

    def response(self) -> dict[str, Any]:
        """The response object as of now."""
        body, tools = self.body, self.body.tools or []
        text = (
            {"format": {"type": "text"}}
            if body.text is None
            else body.text.model_dump(exclude_none=True, by_alias=True)
        )
        reasoning = {"effort": body.reasoning and body.reasoning.effort, "summary": None}
        ended = self.status in ("completed", "incomplete")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": self.status,
            "background": False,
            "error": self.error,
            "incomplete_details": None if self.reason is None else {"reason": self.reason},
            "model": self.server.model,
            "output": self.output.items,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "reasoning": reasoning,
            "service_tier": "default",
            "store": body.store is not False,
            "text": text,
            "tool_choice": body.tool_choice or "auto",
            "tools": tools,
            "top_logprobs": body.top_logprobs or 0,
            "truncation": "disabled",
            "metadata": {**(body.metadata or {}), **({"tools_left_out": kinds} if (kinds := left_out(body)) else {})},
            "conversation": None if (talk := conversation_id(body)) is None else {"id": talk},
            **{name: getattr(body, name) for name in ECHOED},
            "usage": self.usage() if ended else None,
        }

    def usage(self) -> dict[str, Any]:
        usage = self.generation.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self.thought},
            "total_tokens": usage["total_tokens"],
            "speculation": usage["speculation"],
        }
