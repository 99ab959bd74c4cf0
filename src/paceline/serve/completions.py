"""POST /v1/completions."""

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request, Response

from paceline.core.params import SamplingParams
from paceline.engine.detokenize import Detokenizer
from paceline.engine.outputs import Chunk
from paceline.serve import logprobs
from paceline.serve.body import JsonRoute, size
from paceline.serve.errors import ApiError
from paceline.serve.fim import filled, fim_of
from paceline.serve.generation import Generation
from paceline.serve.prompts import Prompt, as_prompts, encode
from paceline.serve.protocol import CompletionRequest
from paceline.serve.responses import ERRORS, STREAM_FORM, CompletionShape
from paceline.serve.server import Here, Server
from paceline.serve.sse import event, respond
from paceline.serve.structure import given_grammar
from paceline.serve.wishes import sampling_params, seeds

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/completions", responses={200: {"model": CompletionShape, **STREAM_FORM}, **ERRORS})
async def completions(body: CompletionRequest, request: Request, host: Here) -> Response:
    """Continue texts."""
    server = await host.of(body.model)
    prompts = as_prompts(body.prompt)
    server.check_choices(len(prompts), body.n or 1)
    server.check_places(len(prompts) * (body.n or 1))
    params = await server.ready(lambda: wishes(body), size(request), body.grammar is not None)
    if body.suffix:
        if body.echo:
            raise ApiError(400, "echo is given with suffix, which stands behind the answer; give one.", param="echo")
        fim = fim_of(server, "suffix")
        ids = await filled(server, fim, prompts, body.suffix)
        params = replace(params, stop_token_ids=(*params.stop_token_ids, *fim.ends))
    else:
        ids = await encode(server, prompts)
    check_logprobs(body, params, ids)
    each = [replace(params, seed=seed) for seed in seeds(body, len(ids))]
    generation = await Generation.start(server.llm, ids, each, whole=not body.stream)
    answer = CompletionAnswer(body, server, generation, prompts)
    return await respond(request, answer, bool(body.stream), generation.close)


def wishes(body: CompletionRequest) -> SamplingParams:
    """The body's parameters. 16 tokens unless it says more, as OpenAI; none at all means one that is not shown."""
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens is 0, but it must be a whole number >= 1, or 0 with echo.", param="max_tokens")
    more: dict[str, Any] = {"max_tokens": 16 if body.max_tokens is None else max(body.max_tokens, 1)}
    if body.logprobs is not None:
        more["logprobs"] = body.logprobs
        more["prompt_logprobs"] = body.logprobs if body.echo else None
    return sampling_params(body, grammar=given_grammar(body), **more)


MOST_LOGPROBS = 1 << 18
"""Entries of log-probabilities in one answer."""
FEW_LOGPROBS = 1 << 12
"""Entries that are serialized in the event loop; more are serialized in a thread."""


def check_logprobs(body: CompletionRequest, params: SamplingParams, ids: Sequence[Sequence[int]]) -> None:
    """Raise ApiError for more entries than an answer may have. Those of an echoed prompt are computed first."""
    if body.logprobs is None:
        return
    most = params.max_tokens or 1
    tokens = sum((len(prompt) if body.echo else 0) + most for prompt in ids) * params.n
    if (count := tokens * (body.logprobs + 1)) > MOST_LOGPROBS:
        message = f"logprobs makes {count} entries, but an answer has {MOST_LOGPROBS} at most; ask for fewer."
        raise ApiError(400, message, param="logprobs")


@dataclass
class CompletionAnswer:
    """Turns the news of a generation into OpenAI's text completions."""

    body: CompletionRequest
    server: Server
    generation: Generation
    prompts: Sequence[Prompt]
    head: dict[str, Any] = field(init=False)
    offsets: dict[int, logprobs.Offsets] = field(default_factory=dict)
    """Per choice, from its first chunk on."""

    def __post_init__(self) -> None:
        self.head = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.server.model,
        }

    @property
    def usage(self) -> dict[str, Any]:
        return self.generation.usage(hidden=self.body.max_tokens == 0)

    async def whole(self) -> dict[str, Any]:
        choices: list[list[dict[str, Any]]] = [[] for _ in self.generation.requests]
        async for chunks in self.generation.news():
            for chunk in chunks:
                choices[chunk.index].append(await self.made(chunk))
        return {**self.head, "choices": [joined(parts) for parts in choices], "usage": self.usage}

    async def events(self) -> AsyncGenerator[bytes, None]:
        head = {**self.head, "usage": None} if self.body.counted else self.head
        async for chunks in self.generation.news():
            if self.body.counted_always:
                head["usage"] = self.generation.counts(self.generation.made)
            yield b"".join([event({**head, "choices": [await self.made(chunk)]}) for chunk in chunks])
        if self.body.counted:
            yield event({**self.head, "choices": [], "usage": self.usage})

    async def made(self, chunk: Chunk) -> dict[str, Any]:
        """`choice`, serialized in a thread if it is large."""
        asked = 0 if self.body.logprobs is None else self.body.logprobs + 1
        request = self.generation.requests[chunk.index]
        size = asked * (len(request.prompt) * bool(self.body.echo) + len(chunk.token_ids))
        if size <= FEW_LOGPROBS:
            return self.choice(chunk)
        return await self.server.pools.answers.run(partial(self.choice, chunk), size)

    def choice(self, chunk: Chunk) -> dict[str, Any]:
        """The part of a choice that a chunk makes; the first has the echo."""
        if self.body.max_tokens == 0:
            chunk = replace(chunk, text="", token_ids=[], pieces=[], logprobs=())
        first = chunk.index not in self.offsets
        echo = self.echo(chunk.index) if first and self.body.echo else ""
        if first:
            before = self.generation.requests[chunk.index].prompt
            self.offsets[chunk.index] = logprobs.Offsets(self.detokenizer(before), len(echo))
        choice: dict[str, Any] = {
            "index": chunk.index,
            "text": echo + chunk.text,
            "logprobs": self.logprobs(chunk, echoed=first and bool(self.body.echo)),
            "finish_reason": chunk.done.finish_reason if chunk.done else None,
        }
        if chunk.done:
            choice["seed"] = chunk.done.seed
        if self.body.trace:
            choice["pieces"] = self.generation.pieces(chunk)
        return choice

    def echo(self, index: int) -> str:
        prompt = self.prompts[index // self.generation.n]
        return prompt if isinstance(prompt, str) else self.server.text.decode(prompt)

    def logprobs(self, chunk: Chunk, echoed: bool) -> dict[str, Any] | None:
        if self.body.logprobs is None:
            return None
        tokens, parts = self.server.tokens, []
        if echoed:
            request = self.generation.requests[chunk.index]
            entries = request.prompt_logprobs or [None]
            offsets = logprobs.EchoOffsets(self.server.text.tokenizer, request.prompt, self.echo(chunk.index))
            parts.append(logprobs.of_completion(tokens, request.prompt, entries, offsets))
        parts.append(logprobs.of_completion(tokens, chunk.token_ids, chunk.logprobs, self.offsets[chunk.index]))
        return logprobs.joined(parts)

    def detokenizer(self, before: Sequence[int] = ()) -> Detokenizer:
        return Detokenizer(self.server.text.tokenizer, self.body.skip_special_tokens is not False, before)


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One choice from its parts."""
    whole = {**parts[-1], "text": "".join(part["text"] for part in parts)}
    whole["logprobs"] = logprobs.joined([part["logprobs"] for part in parts])
    if "pieces" in whole:
        whole["pieces"] = [piece for part in parts for piece in part["pieces"]]
    return whole
