"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request, Response

from paceline.engine.outputs import Chunk
from paceline.serve.body import JsonRoute
from paceline.serve.generation import Generation
from paceline.serve.prompts import render
from paceline.serve.protocol import ChatRequest, Message
from paceline.serve.server import Here, Server
from paceline.serve.sse import EventStream, event, json_unless_gone
from paceline.serve.wishes import sampling_params, seeds

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/chat/completions")
async def chat(body: ChatRequest, request: Request, server: Here) -> Response:
    """Answer a conversation."""
    server.check_model(body.model)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    params = sampling_params(body, max_tokens=limit, seed=seeds(body, 1)[0])
    server.check_choices(1, body.n)
    ids = await render(server.llm.llm.text, [plain(m) for m in body.messages], {})
    generation = await Generation.start(server.llm, [ids], [params])
    answer = Answer(body, server, generation)
    if body.stream:
        return EventStream(answer.events(), generation.close)
    try:
        return await json_unless_gone(request, answer.whole())
    finally:
        generation.close()


def plain(message: Message) -> dict[str, Any]:
    """A message as chat templates want it: text parts joined."""
    content = message.content
    if isinstance(content, list):
        content = "\n".join(part.text for part in content)
    return {"role": message.role, "content": content or ""}


@dataclass
class Answer:
    """Turns the news of a generation into OpenAI's chat completions."""

    body: ChatRequest
    server: Server
    generation: Generation
    head: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.head = {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion.chunk" if self.body.stream else "chat.completion",
            "created": int(time.time()),
            "model": self.server.model,
        }

    @property
    def traced(self) -> bool:
        return self.body.speculation is not None and self.body.speculation.trace

    async def whole(self) -> dict[str, Any]:
        parts: list[list[Chunk]] = [[] for _ in self.generation.requests]
        async for chunks in self.generation.news():
            for chunk in chunks:
                parts[chunk.index].append(chunk)
        choices = []
        for index, mine in enumerate(parts):
            done = mine[-1].done
            assert done is not None
            message = {"role": "assistant", "content": done.text}
            choice = {"index": index, "message": message, "logprobs": None, "finish_reason": done.finish_reason}
            if self.traced:
                choice["pieces"] = [piece for chunk in mine for piece in self.generation.pieces(chunk)]
            choices.append(choice)
        return {**self.head, "choices": choices, "usage": self.generation.usage()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        counted = self.body.stream_options is not None and self.body.stream_options.include_usage
        head = {**self.head, "usage": None} if counted else self.head
        for index in range(len(self.generation.requests)):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            yield event({**head, "choices": [choice]})
        async for chunks in self.generation.news():
            yield b"".join(event({**head, "choices": [self.choice(chunk)]}) for chunk in chunks)
        if counted:
            yield event({**self.head, "choices": [], "usage": self.generation.usage()})

    def choice(self, chunk: Chunk) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": chunk.index,
            "delta": {"content": chunk.text} if chunk.text else {},
            "logprobs": None,
            "finish_reason": chunk.done.finish_reason if chunk.done else None,
        }
        if self.traced:
            choice["pieces"] = self.generation.pieces(chunk)
        return choice
