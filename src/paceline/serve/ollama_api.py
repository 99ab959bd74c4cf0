"""Ollama's protocol as a thin door: /api/chat, /api/generate, /api/embed, /api/tags, /api/show, /api/ps, /api/version.
Models have the names of /v1/models; ":latest" behind one is let go."""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from paceline.core.params import SamplingParams
from paceline.engine.outputs import Chunk, Completion
from paceline.serve import logprobs
from paceline.serve.body import JsonRoute, check_type, size
from paceline.serve.chat import NO_LOGPROBS, ChoiceReader, begin
from paceline.serve.embeddings import EmbeddingRequest, source
from paceline.serve.embeddings import answer as embedded
from paceline.serve.errors import ApiError
from paceline.serve.fim import filled, fills, fim_of
from paceline.serve.fleet import Fleet
from paceline.serve.generation import Generation
from paceline.serve.ollama_wire import (
    OllamaChatRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaRequest,
    OllamaShowRequest,
)
from paceline.serve.other_clients import told_left_out
from paceline.serve.parser import Content, Delta, Reasoning, ToolCall
from paceline.serve.prompts import encode, template
from paceline.serve.protocol import CompletionRequest
from paceline.serve.response_wire import validated
from paceline.serve.server import Here, ServedHost, Server
from paceline.serve.sse import EventStream, json_response, json_unless_gone
from paceline.serve.structure import given_grammar
from paceline.serve.voices import Plain
from paceline.serve.wishes import sampling_params, seeds

FORM = "application/x-www-form-urlencoded"


class OllamaRoute(JsonRoute):
    """A route whose body may come without its type, as `curl -d` sends it, but not from a web page: browsers name the
    origin of what they post."""

    def check_type(self, request: Request) -> None:
        given = request.headers
        if given.get("content-type", FORM) != FORM or "origin" in given or "sec-fetch-site" in given:
            check_type(given.get("content-type", ""))


router = APIRouter(route_class=OllamaRoute)
NDJSON = "application/x-ndjson"
LATEST = ":latest"
PROTOCOL = "0.12.11"
"""Version of Ollama whose protocol this is: clients compare it with what they need."""
POSTED = ("chat", "generate", "embed", "embeddings", "show")


async def served(host: ServedHost, name: str) -> Server:
    """The model of a name as Ollama's clients write it."""
    return await host.of(known(host, name))


def known(host: ServedHost, name: str) -> str:
    """Name by which this server knows a model, with or without `:latest`."""
    names = {card["id"] for card in host.cards()}
    return next((each for each in (name, name + LATEST) if each in names), name.removesuffix(LATEST))


@router.post("/api/chat", include_in_schema=False)
async def chat(body: OllamaChatRequest, request: Request, host: Here) -> Response:
    """Answer a conversation."""
    if not body.messages:
        return await without_a_prompt(body, host, {"message": {"role": "assistant", "content": ""}})
    server = await served(host, body.model)
    chat = body.chat()
    generation, (reader,) = await begin(chat, server, size(request))
    return await respond(request, OllamaAnswer(body, server, generation, reader, talk=True, left_out=chat.left_out))


@router.post("/api/generate", include_in_schema=False)
async def generate(body: OllamaGenerateRequest, request: Request, host: Here) -> Response:
    """Go on with a prompt, by the model's chat template where it has one and `raw` is not set."""
    body.check()
    if not body.prompt and not body.suffix:
        return await without_a_prompt(body, host, {"response": ""})
    server = await served(host, body.model)
    if body.suffix or body.raw or not template(server.text):
        fim = fim_of(server, "suffix") if body.suffix else None
        ids = await (filled(server, fim, [body.prompt], body.suffix or "") if fim else encode(server, [body.plain()]))
        grammar = body.grammar()
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, NO_LOGPROBS, param="top_logprobs")
        top = (body.top_logprobs or 0) if body.logprobs else None
        wish = body.made(CompletionRequest, {"prompt": body.prompt, "grammar": grammar, "logprobs": top})

        def make() -> SamplingParams:
            return sampling_params(wish, logprobs=top, grammar=given_grammar(wish), seed=seeds(wish, 1)[0])

        params = await server.ready(make, size(request), grammar is not None)
        if fim is not None:
            params = replace(params, stop_token_ids=(*params.stop_token_ids, *fim.ends))
        generation = await Generation.start(server.llm, ids, [params], whole=body.stream is False)
        reader = ChoiceReader(Plain())
    else:
        generation, (reader,) = await begin(body.chat(), server, size(request))
    return await respond(request, OllamaAnswer(body, server, generation, reader, talk=False))


async def without_a_prompt(body: OllamaRequest, host: ServedHost, empty: dict[str, Any]) -> Response:
    """Answer to a request that says nothing: the model is loaded, or with `keep_alive` 0 unloaded if it is one of
    several."""
    if body.unloads and isinstance(host, Fleet):
        await host.unload(known(host, body.model))
        return json_response(loaded(body.model, empty, "unload"))
    await served(host, body.model)
    return json_response(loaded(body.model, empty))


@router.post("/api/embed", include_in_schema=False)
@router.post("/api/embeddings", include_in_schema=False)
async def embed(body: OllamaEmbedRequest, request: Request, host: Here) -> Response:
    """Vectors of texts; with `prompt`, as older clients ask, one vector."""
    server = await source(host, known(host, body.model))
    texts = body.input if body.input is not None else body.prompt
    if texts is None:
        raise ApiError(400, "input is missing; give a text or a list of texts.", param="input")
    wish = validated(EmbeddingRequest, {"input": texts, "dimensions": body.dimensions})

    async def work() -> dict[str, Any]:
        made = await embedded(wish, server, server.pooling(None))
        vectors = [each["embedding"] for each in made["data"]]
        if body.input is None:
            return {"embedding": vectors[0]}
        return {"model": body.model, "embeddings": vectors, "prompt_eval_count": made["usage"]["prompt_tokens"]}

    return await json_unless_gone(request, work())


@router.api_route("/api/tags", methods=["GET", "HEAD"], include_in_schema=False)
async def tags(host: Here) -> Response:
    """The served models."""
    return json_response({"models": [listed(card) for card in host.cards()]})


@router.api_route("/api/ps", methods=["GET", "HEAD"], include_in_schema=False)
async def ps(host: Here) -> Response:
    """The loaded models."""
    cards = [card for card in host.cards() if card.get("loaded", True)]
    never = {"expires_at": "9999-12-31T00:00:00Z", "size_vram": 0}
    return json_response(
        {"models": [{**listed(card), **never, "context_length": card["max_model_len"]} for card in cards]}
    )


@router.post("/api/show", include_in_schema=False)
async def show(body: OllamaShowRequest, host: Here) -> Response:
    """Abilities and chat template of one model."""
    server = await served(host, body.model or body.name or host.model)
    info = {"general.architecture": "paceline", "paceline.context_length": server.max_len}
    can = {"completion", "embedding", "tools"} | ({"insert"} if fills(server) else set())
    return json_response(
        {
            "details": details(),
            "model_info": info,
            "template": template(server.text),
            "parameters": "\n".join(f"{name} {value}" for name, value in server.text.defaults.items()),
            "capabilities": sorted(can),
        }
    )


@router.api_route("/api/version", methods=["GET", "HEAD"], include_in_schema=False)
async def ollama_version() -> Response:
    """The version of the protocol."""
    return json_response({"version": PROTOCOL})


@router.api_route("/api/{name:path}", methods=["GET", "POST", "DELETE"], include_in_schema=False)
async def elsewhere(name: str) -> Response:
    """What Ollama's protocol has and this server has not."""
    if name in POSTED:
        raise ApiError(405, f"/api/{name} takes a POST with a JSON body.", headers={"Allow": "POST"})
    raise ApiError(404, f"/api/{name[:40]} is not served here; paceline pull and paceline serve choose the models.")


def listed(card: dict[str, Any]) -> dict[str, Any]:
    made = datetime.fromtimestamp(card["created"], UTC).isoformat()
    digest = sha256(card["id"].encode()).hexdigest()
    names = {"name": card["id"], "model": card["id"]}
    return {**names, "modified_at": made, "size": 0, "digest": digest, "details": details()}


def details() -> dict[str, Any]:
    unknown = dict.fromkeys(("parent_model", "format", "family", "parameter_size", "quantization_level"), "")
    return {**unknown, "families": []}


def loaded(model: str, more: dict[str, Any], reason: str = "load") -> dict[str, Any]:
    """The answer to a request without a prompt, by which clients have a model loaded."""
    return {"model": model, "created_at": now(), **more, "done": True, "done_reason": reason}


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class NdjsonStream(EventStream):
    """A JSON object a line."""

    media_type = NDJSON


async def respond(request: Request, answer: "OllamaAnswer") -> Response:
    if answer.body.stream is not False:
        return NdjsonStream(answer.lines(), answer.generation.close, b"")
    try:
        return await json_unless_gone(request, answer.whole())
    finally:
        answer.generation.close()


@dataclass
class OllamaAnswer:
    """Turns the news of a generation into Ollama's lines."""

    body: OllamaRequest
    server: Server
    generation: Generation
    reader: ChoiceReader
    talk: bool
    """/api/chat; else /api/generate."""
    left_out: str = ""
    """Kinds of the tools that are not served."""
    calls: list[dict[str, str]] = field(default_factory=list)
    rated: list[dict[str, Any]] = field(default_factory=list)
    """Tokens with their log-probabilities, for the next line."""

    async def lines(self) -> AsyncGenerator[bytes, None]:
        async for chunks in self.generation.news():
            for chunk in chunks:
                text, thought = self.split(self.read(chunk))
                if text or thought:
                    yield self.line(self.said(text, thought))
                if chunk.done is not None:
                    if self.calls:
                        yield self.line(self.said("", ""))
                    yield self.line({**self.said("", "", False), **self.end(chunk.done)})

    def read(self, chunk: Chunk) -> list[Delta]:
        if self.body.logprobs and (listed := logprobs.of_chat(self.server.tokens, chunk.logprobs)):
            self.rated += listed["content"]
        return self.reader.read(chunk)

    async def whole(self) -> dict[str, Any]:
        text = thought = ""
        last: dict[str, Any] = {}
        async for chunks in self.generation.news():
            for chunk in chunks:
                more, inner = self.split(self.read(chunk))
                text, thought = text + more, thought + inner
                if chunk.done is not None:
                    last = self.end(chunk.done)
        return {"model": self.body.model, "created_at": now(), **self.said(text, thought), **last}

    def split(self, deltas: list[Delta]) -> tuple[str, str]:
        """The text and the reasoning of deltas; calls are kept until the end, as Ollama sends them whole."""
        text = thought = ""
        for each in deltas:
            match each:
                case Content(more):
                    text += more
                case Reasoning(more):
                    thought += more
                case ToolCall(_, id, name, arguments):
                    if id is not None:
                        self.calls.append({"name": name or "", "arguments": ""})
                    self.calls[-1]["arguments"] += arguments
        return text, thought

    def said(self, text: str, thought: str, calls: bool = True) -> dict[str, Any]:
        inner: dict[str, Any] = {"thinking": thought} if thought else {}
        rated: dict[str, Any] = {"logprobs": self.rated} if self.rated else {}
        self.rated = []
        if not self.talk:
            return {"response": text, **inner, **rated, "done": False}
        if calls and self.calls:
            made = [{"name": call["name"], "arguments": read(call["arguments"])} for call in self.calls]
            inner["tool_calls"] = [{"function": function} for function in made]
        return {"message": {"role": "assistant", "content": text, **inner}, **rated, "done": False}

    def end(self, done: Completion) -> dict[str, Any]:
        usage, trip, ended = self.generation.usage(), self.generation.subscription.trips[0], time.monotonic()
        first = trip.first or ended
        return {
            "done": True,
            "done_reason": "length" if done.finish_reason == "length" else "stop",
            "total_duration": nanoseconds(ended - trip.arrived),
            "load_duration": 0,
            "prompt_eval_count": usage["prompt_tokens"],
            "prompt_eval_duration": nanoseconds(first - trip.arrived),
            "eval_count": usage["completion_tokens"],
            "eval_duration": nanoseconds(ended - first),
            **told_left_out(self.left_out),
        }

    def line(self, data: dict[str, Any]) -> bytes:
        return orjson.dumps({"model": self.body.model, "created_at": now(), **data}) + b"\n"


def nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def read(text: str) -> Any:
    """Arguments as an object; a text that was cut stays in one field."""
    try:
        return orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {"unfinished": text}
