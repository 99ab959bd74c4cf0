"""POST /v1/messages: Anthropic's API, over the same answers as /v1/chat/completions, so that coding agents connect."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import uuid4

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from paceline.engine.outputs import Chunk
from paceline.serve.body import JsonRoute, size
from paceline.serve.chat import ChoiceReader, bare_tools, begin, variables
from paceline.serve.errors import MESSAGES
from paceline.serve.generation import Generation
from paceline.serve.message_wire import CountRequest, MessagesRequest, as_chat
from paceline.serve.other_clients import told_left_out
from paceline.serve.parser import Content, Delta, Reasoning, ToolCall
from paceline.serve.prompts import render, template
from paceline.serve.responses import STREAM_FORM
from paceline.serve.returning import heed
from paceline.serve.server import Here, Server
from paceline.serve.sse import json_response, named, respond

router = APIRouter(route_class=JsonRoute)
STREAMS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""Per kind of block: the type of its deltas, and where they have their text."""


class MessageShape(BaseModel):
    """For the OpenAPI document; the fields are Anthropic's."""

    model_config = ConfigDict(extra="allow")
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class CountShape(BaseModel):
    input_tokens: int


class FaultDetail(BaseModel):
    type: str
    message: str


class FaultShape(BaseModel):
    type: Literal["error"]
    error: FaultDetail


FAULTS: dict[int | str, dict[str, Any]] = {
    400: {"model": FaultShape, "description": "The request cannot be served as it is; the sentence says why."},
    "default": {"model": FaultShape, "description": "Refused or failed."},
}


@router.post(MESSAGES, responses={200: {"model": MessageShape, **STREAM_FORM}, **FAULTS})
async def messages(body: MessagesRequest, request: Request, host: Here) -> Response:
    """Answer a conversation."""
    server = await host.of(body.model)
    server.check_places(1)
    bulk = size(request)
    chat = await server.pools.texts.run(lambda: as_chat(body, template(server.text)), bulk)
    await heed(body, chat, server)
    generation, (reader,) = await begin(chat, server, bulk)
    answer = MessageAnswer(body, server, generation, reader, chat.left_out)
    return await respond(request, answer, bool(body.stream), generation.close, done=b"")


@router.post(f"{MESSAGES}/count_tokens", responses={200: {"model": CountShape}, **FAULTS})
async def count_tokens(body: CountRequest, request: Request, host: Here) -> Response:
    """How many tokens a conversation has, tools and template included."""
    server = await host.of(body.model)
    chat = await server.pools.texts.run(lambda: as_chat(body, template(server.text)), size(request))
    ids = await render(server, chat.messages, variables(chat, server), bare_tools(chat, server))
    return json_response({"input_tokens": len(ids)})


@dataclass
class MessageAnswer:
    """Turns the news of a generation into Anthropic's message, or its events."""

    body: MessagesRequest
    server: Server
    generation: Generation
    reader: ChoiceReader
    left_out: str = ""
    """Kinds of the tools that are not served."""
    id: str = field(default_factory=lambda: f"msg_{uuid4().hex}")
    blocks: list[dict[str, Any]] = field(default_factory=list)
    """In the order in which they begin; the last one may be open. The input of a tool is a text until the end."""
    open: bool = False
    stop: str = "end_turn"
    sequence: str | None = None
    """The stop sequence that ended it."""

    async def whole(self) -> dict[str, Any]:
        async for chunks in self.generation.news():
            for chunk in chunks:
                for _ in self.read(chunk):
                    pass
        return self.message([whole(block) for block in self.blocks], self.usage())

    async def events(self) -> AsyncGenerator[bytes, None]:
        usage = {**self.usage_of(self.generation.counts(0)), "output_tokens": 0}
        start = {**self.message([], usage), "stop_reason": None, "stop_sequence": None}
        yield named("message_start", {"message": start}) + named("ping", {})
        async for chunks in self.generation.news():
            said = b"".join(named(*event) for chunk in chunks for event in self.read(chunk))
            if said:
                yield said
        ended = {"stop_reason": self.stop, "stop_sequence": self.sequence}
        last = [
            *(named(*event) for event in self.close()),
            named("message_delta", {"delta": ended, "usage": self.usage()}),
        ]
        yield b"".join((*last, named("message_stop", {})))

    def read(self, chunk: Chunk) -> Iterator[tuple[str, dict[str, Any]]]:
        """Events of a chunk."""
        chunk = self.cut(chunk)
        for delta in self.reader.read(chunk):
            yield from self.add(delta)
        if chunk.done is None:
            return
        if self.reader.called and chunk.done.finish_reason == "stop":
            self.stop = "tool_use"
        elif chunk.done.finish_reason == "length":
            self.stop = "max_tokens"
        elif self.sequence is not None:
            self.stop = "stop_sequence"

    def cut(self, chunk: Chunk) -> Chunk:
        """Without the stop sequence that it ends with. It comes in one piece: what may be the beginning of one is held
        back until that is known."""
        if chunk.done is None or chunk.done.finish_reason != "stop":
            return chunk
        ends = [stop for stop in self.body.stop_sequences or () if chunk.text.endswith(stop)]
        if not ends:
            return chunk
        self.sequence = max(ends, key=len)
        return replace(chunk, text=chunk.text.removesuffix(self.sequence))

    def add(self, delta: Delta) -> Iterator[tuple[str, dict[str, Any]]]:
        match delta:
            case Content(text):
                yield from self.say("text", text, {"type": "text", "text": ""})
            case Reasoning(text):
                yield from self.say("thinking", text, {"type": "thinking", "thinking": "", "signature": ""})
            case ToolCall(_, id, name, arguments):
                if id is not None:
                    yield from self.close()
                    yield from self.start({"type": "tool_use", "id": id, "name": name, "input": ""})
                if arguments:
                    yield from self.say("tool_use", arguments, {})

    def say(self, kind: str, text: str, new: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        if not self.open or self.blocks[-1]["type"] != kind:
            yield from self.close()
            yield from self.start(new)
        name, key = STREAMS[kind]
        self.blocks[-1]["input" if kind == "tool_use" else key] += text
        yield "content_block_delta", {"index": len(self.blocks) - 1, "delta": {"type": name, key: text}}

    def start(self, block: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        self.blocks.append(block)
        self.open = True
        shown = {**block, "input": {}} if block["type"] == "tool_use" else block
        yield "content_block_start", {"index": len(self.blocks) - 1, "content_block": shown}

    def close(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """End the block that is open, if one is."""
        if self.open:
            self.open = False
            yield "content_block_stop", {"index": len(self.blocks) - 1}

    def message(self, content: Sequence[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.server.model,
            "content": content,
            "stop_reason": self.stop,
            "stop_sequence": self.sequence,
            "usage": usage,
            **told_left_out(self.left_out),
        }

    def usage(self) -> dict[str, Any]:
        usage = self.generation.usage()
        return {**self.usage_of(usage), "speculation": usage["speculation"]}

    def usage_of(self, counts: dict[str, Any]) -> dict[str, Any]:
        """Anthropic counts what was read from the cache apart from the rest of the prompt."""
        cached = counts.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        return {
            "input_tokens": counts["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": counts["completion_tokens"],
        }


def whole(block: dict[str, Any]) -> dict[str, Any]:
    """A block of a complete message. Arguments that a limit cut short are no object: they are shown as text."""
    if block["type"] != "tool_use":
        return block
    try:
        return {**block, "input": orjson.loads(block["input"] or "{}")}
    except orjson.JSONDecodeError:
        return {"type": "text", "text": block["input"]}
