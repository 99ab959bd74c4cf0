"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request, Response

from paceline.core.params import SamplingParams
from paceline.engine.outputs import Chunk, Completion
from paceline.serve import logprobs
from paceline.serve.above import PolicyGeneration, policy_of
from paceline.serve.body import JsonRoute, size
from paceline.serve.errors import ApiError
from paceline.serve.generation import Generation
from paceline.serve.other_clients import told_left_out
from paceline.serve.parser import Content, Delta, Reasoning, ToolCall
from paceline.serve.prompts import render, template, template_args
from paceline.serve.protocol import ChatRequest, Tool
from paceline.serve.responses import ERRORS, STREAM_FORM, Chat
from paceline.serve.server import Here, Server
from paceline.serve.sse import event, respond
from paceline.serve.structure import chat_grammar, tool_choice
from paceline.serve.triggered import FALLBACK_MARK, NO_MARKS
from paceline.serve.voices import Voice, manner
from paceline.serve.wishes import sampling_params, seeds

NO_LOGPROBS = "top_logprobs is given without logprobs; set logprobs to true."
router = APIRouter(route_class=JsonRoute)


@router.post("/v1/chat/completions", responses={200: {"model": Chat, **STREAM_FORM}, **ERRORS})
async def chat(body: ChatRequest, request: Request, host: Here) -> Response:
    """Answer a conversation."""
    server = await host.of(body.model)
    server.check_choices(1, body.n or 1)
    server.check_places(body.n or 1)
    generation, readers = await begin(body, server, size(request))
    answer = ChatAnswer(body, server, generation, readers)
    return await respond(request, answer, bool(body.stream), generation.close)


async def begin(body: ChatRequest, server: Server, bulk: int) -> tuple[Generation, list["ChoiceReader"]]:
    """The answer to a conversation in the making, and the reader of each choice. `bulk`: bytes of the request."""
    shaped = bool(body.response_format or body.grammar or body.tools)
    source = tool_template(body, server)
    params = await server.ready(lambda: wishes(body, source, server.tokens.special), bulk, shaped)
    answered = params.grammar is not None and tool_choice(body) != "auto"
    args, how = variables(body, server), manner(body, server, answered, source)
    if how.special:
        params = replace(params, skip_special_tokens=False)
    if stops := [*server.tokens.ids(how.stops)]:
        params = replace(params, stop_token_ids=(*params.stop_token_ids, *stops))
    ids = await render(server, body.messages, args, bare_tools(body, server))
    tail = server.text.decode(ids[-24:])
    if how.opening and not body.continue_final_message:
        ids = [*ids, *server.text.tokenizer.encode(how.opening, add_special_tokens=False)]
    policy = await policy_of(body, server, args)
    if policy is None:
        generation = await Generation.start(server.llm, [ids], [params], whole=not body.stream)
    else:
        generation = await PolicyGeneration.begin(server, ids, params, policy, whole=not body.stream)
    return generation, [ChoiceReader(how.voice(tail)) for _ in generation.requests]


def tool_template(body: ChatRequest, server: Server) -> str:
    """The chat template by whose signs calls are read: the model's, or where that shows no tools, the fall-back's."""
    source = template(server.text)
    return source if tool_choice(body) == "none" or "tools" in source else source + FALLBACK_MARK


def bare_tools(body: ChatRequest, server: Server) -> "Sequence[Tool]":
    """Tools that the model's template would not show, which the system message describes then."""
    wanted = tool_choice(body) != "none" and "tools" not in template(server.text)
    return body.tools or () if wanted else ()


def wishes(body: ChatRequest, source: str = "", marks: Mapping[str, int] = NO_MARKS) -> SamplingParams:
    """The body's parameters with its one grammar. `source`: the chat template by whose signs calls are read; `marks`:
    ids of the model's special tokens by their texts."""
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if None is not body.max_tokens != limit:
        raise ApiError(400, "max_tokens and max_completion_tokens differ; give one.", param="max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, NO_LOGPROBS, param="top_logprobs")
    top = (body.top_logprobs or 0) if body.logprobs else None
    grammar = chat_grammar(body, source, marks)
    return sampling_params(body, max_tokens=limit, logprobs=top, seed=seeds(body, 1)[0], grammar=grammar)


def variables(body: ChatRequest, server: Server) -> dict[str, Any]:
    """Values that the chat template reads in addition to the messages. Raises ApiError for tools that it would not
    show."""
    args = {**template_args(server.text, body.chat_template_kwargs), **opening(body)}
    if body.reasoning_effort is not None and "reasoning_effort" in template(server.text):
        args = {**args, "reasoning_effort": body.reasoning_effort}
    elif body.reasoning_effort is not None and "enable_thinking" in template(server.text):
        args = {"enable_thinking": body.reasoning_effort != "none", **args}
    if tool_choice(body) == "none":
        return args
    if "tools" not in template(server.text):
        return args
    assert body.tools is not None
    return {**args, "tools": [tool.model_dump(exclude_none=True) for tool in body.tools]}


def opening(body: ChatRequest) -> dict[str, Any]:
    """How the rendered conversation ends: where an answer begins, or within the last message (`prefill`)."""
    if not body.continue_final_message:
        return {} if body.add_generation_prompt is not False else {"add_generation_prompt": False}
    last = body.messages[-1]
    if body.add_generation_prompt:
        message = "add_generation_prompt and continue_final_message exclude each other; give one."
        raise ApiError(400, message, param="continue_final_message")
    if last.role != "assistant" or not last.content or last.tool_calls:
        message = "continue_final_message needs a last message of role assistant with a text to continue."
        raise ApiError(400, message, param="continue_final_message")
    return {"add_generation_prompt": False, "continue_final_message": True}


@dataclass
class ChoiceReader:
    """One choice as it is read: its voice, and what it has said."""

    voice: Voice
    called: bool = False

    def read(self, chunk: Chunk) -> list[Delta]:
        deltas = self.voice.feed(chunk.text)
        if chunk.done is not None:
            deltas = [*deltas, *self.voice.finish()]
        self.called |= any(isinstance(delta, ToolCall) for delta in deltas)
        return deltas

    def finish(self, done: Completion | None) -> str | None:
        """`finish_reason`."""
        if done is None:
            return None
        whole = not getattr(self.voice, "cut", False)
        return "tool_calls" if self.called and whole and done.finish_reason == "stop" else done.finish_reason


@dataclass
class ChatAnswer:
    """Turns the news of a generation into OpenAI's chat completions."""

    body: ChatRequest
    server: Server
    generation: Generation
    readers: list[ChoiceReader]
    """Per choice."""
    head: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.head = {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion.chunk" if self.body.stream else "chat.completion",
            "created": int(time.time()),
            "model": self.server.model,
            **told_left_out(self.body.left_out),
        }

    async def whole(self) -> dict[str, Any]:
        parts: list[list[dict[str, Any]]] = [[] for _ in self.readers]
        deltas: list[list[Delta]] = [[] for _ in self.readers]
        async for chunks in self.generation.news():
            for chunk in chunks:
                news = self.readers[chunk.index].read(chunk)
                deltas[chunk.index].extend(news)
                parts[chunk.index].append(self.part(chunk))
        choices = [{**joined(mine), "message": message(said)} for mine, said in zip(parts, deltas)]
        return {**self.head, "choices": choices, "usage": self.generation.usage()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        head = {**self.head, "usage": None} if self.body.counted else self.head
        for index in range(len(self.readers)):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            yield event({**head, "choices": [choice]})
        async for chunks in self.generation.news():
            if self.body.counted_always:
                head["usage"] = self.generation.counts(self.generation.made)
            choices = [self.choice(chunk) for chunk in chunks]
            if pieces := b"".join(event({**head, "choices": [choice]}) for choice in choices if self.says(choice)):
                yield pieces
        if self.body.counted:
            yield event({**self.head, "choices": [], "usage": self.generation.usage()})

    def says(self, choice: dict[str, Any]) -> bool:
        """Is anything new in it? What a reader holds back until it knows what it is makes no delta yet."""
        news = choice["delta"] or choice["finish_reason"] or choice["logprobs"] or choice.get("pieces")
        return bool(news or self.body.counted_always)

    def choice(self, chunk: Chunk) -> dict[str, Any]:
        """A chunk as a choice of the stream."""
        delta = said(self.readers[chunk.index].read(chunk))
        return {**self.part(chunk), "delta": delta}

    def part(self, chunk: Chunk) -> dict[str, Any]:
        """What of a choice does not depend on how its text is read; the chunk has been."""
        part: dict[str, Any] = {
            "index": chunk.index,
            "logprobs": logprobs.of_chat(self.server.tokens, chunk.logprobs),
            "finish_reason": self.readers[chunk.index].finish(chunk.done),
        }
        if chunk.done:
            part.update(seed=chunk.done.seed, **self.generation.report())
        if self.body.trace or self.body.extended:
            part["pieces"] = self.generation.pieces(chunk)
        return part


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One choice from its parts, without its message."""
    whole = {**parts[-1], "logprobs": logprobs.joined([part["logprobs"] for part in parts])}
    if "pieces" in whole:
        whole["pieces"] = [piece for part in parts for piece in part["pieces"]]
    return whole


def said(deltas: Sequence[Delta]) -> dict[str, Any]:
    """Deltas as the `delta` of one chunk."""
    delta: dict[str, Any] = {}
    texts: dict[str, list[str]] = {}
    for each in deltas:
        match each:
            case Content(text):
                texts.setdefault("content", []).append(text)
            case Reasoning(text):
                texts.setdefault("reasoning_content", []).append(text)
            case ToolCall(index, id, name, arguments):
                call: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
                if id is not None:
                    call.update(id=id, type="function", function={"name": name, "arguments": arguments})
                delta.setdefault("tool_calls", []).append(call)
    return {**{name: "".join(pieces) for name, pieces in texts.items()}, **delta}


def message(deltas: Sequence[Delta]) -> dict[str, Any]:
    """Deltas as the whole message."""
    parts = said(deltas)
    calls: list[dict[str, Any]] = []
    pieces: list[list[str]] = []
    for part in parts.get("tool_calls", ()):
        if "id" in part:
            calls.append({"id": part["id"], "type": "function", "function": dict(part["function"])})
            pieces.append([])
        pieces[part["index"]].append(part["function"]["arguments"])
    for call, arguments in zip(calls, pieces):
        call["function"]["arguments"] = "".join(arguments)
    whole: dict[str, Any] = {"role": "assistant", "content": parts.get("content", None if calls else "")}
    if "reasoning_content" in parts:
        whole["reasoning_content"] = parts["reasoning_content"]
    if calls:
        whole["tool_calls"] = calls
    return whole
