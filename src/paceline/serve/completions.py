"""POST /v1/completions."""

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request, Response

from paceline.serve.body import JsonRoute
from paceline.serve.generation import Generation
from paceline.serve.prompts import as_prompts, encode
from paceline.serve.protocol import CompletionRequest
from paceline.serve.server import Here, Server
from paceline.serve.sse import EventStream, event, json_unless_gone
from paceline.serve.wishes import sampling_params, seeds

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/completions")
async def completions(body: CompletionRequest, request: Request, server: Here) -> Response:
    """Continue texts."""
    server.check_model(body.model)
    params = sampling_params(body, max_tokens=16 if body.max_tokens is None else body.max_tokens)
    prompts = as_prompts(body.prompt)
    server.check_choices(len(prompts), body.n)
    ids = await encode(server.llm.llm.text, prompts)
    each = [replace(params, seed=seed) for seed in seeds(body, len(ids))]
    generation = await Generation.start(server.llm, ids, each)
    answer = Answer(body, server, generation)
    if body.stream:
        return EventStream(answer.events(), generation.close)
    try:
        return await json_unless_gone(request, answer.whole())
    finally:
        generation.close()


@dataclass
class Answer:
    """Turns the news of a generation into OpenAI's text completions."""

    body: CompletionRequest
    server: Server
    generation: Generation
    head: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.head = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.server.model,
        }

    async def whole(self) -> dict[str, Any]:
        choices: list[list[dict[str, Any]]] = [[] for _ in self.generation.requests]
        async for chunks in self.generation.news():
            for chunk in chunks:
                choices[chunk.index].append(self.choice(chunk))
        return {**self.head, "choices": [joined(parts) for parts in choices], "usage": self.generation.usage()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        counted = self.body.stream_options is not None and self.body.stream_options.include_usage
        head = {**self.head, "usage": None} if counted else self.head
        async for chunks in self.generation.news():
            yield b"".join(event({**head, "choices": [self.choice(chunk)]}) for chunk in chunks)
        if counted:
            yield event({**self.head, "choices": [], "usage": self.generation.usage()})

    def choice(self, chunk: Any) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": chunk.index,
            "text": chunk.text,
            "logprobs": None,
            "finish_reason": chunk.done.finish_reason if chunk.done else None,
        }
        if self.body.speculation is not None and self.body.speculation.trace:
            choice["pieces"] = self.generation.pieces(chunk)
        return choice


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One choice from its parts."""
    whole = {**parts[-1], "text": "".join(part["text"] for part in parts)}
    if "pieces" in whole:
        whole["pieces"] = [piece for part in parts for piece in part["pieces"]]
    return whole
