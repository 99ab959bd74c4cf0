"""The small end points: what is served, tokens, and whether it lives."""

import asyncio
from importlib.metadata import version

from fastapi import APIRouter, Response

from paceline.core.errors import InputError
from paceline.serve.body import JsonRoute
from paceline.serve.errors import ApiError
from paceline.serve.prompts import render
from paceline.serve.protocol import DetokenizeRequest, TokenizeRequest
from paceline.serve.responses import ERRORS, Detokenized, Health, Model, Models, Tokenized, Version
from paceline.serve.server import Here, unknown_model
from paceline.serve.sse import json_response

router = APIRouter(route_class=JsonRoute)


@router.get("/v1/models", responses={200: {"model": Models}})
async def models(host: Here) -> Response:
    """The served models."""
    return json_response({"object": "list", "data": host.cards()})


@router.get("/v1/models/{name:path}", responses={200: {"model": Model}, **ERRORS})
async def model(name: str, host: Here) -> Response:
    """One model by name."""
    cards = {card["id"]: card for card in host.cards()}
    if name not in cards:
        raise unknown_model(name, list(cards))
    return json_response(cards[name])


@router.post("/tokenize", responses={200: {"model": Tokenized}, **ERRORS})
async def tokenize(body: TokenizeRequest, host: Here) -> Response:
    """Token ids of a text, or of a conversation by the chat template, up to where the answer begins."""
    server = await host.of(body.model)
    if (body.prompt is None) is (body.messages is None):
        raise ApiError(400, "prompt or messages is expected, one of them; give one.", param="prompt")
    if body.messages is not None:
        if body.add_special_tokens is not None:
            message = "add_special_tokens is given with messages, whose template decides; give it with prompt."
            raise ApiError(400, message, param="add_special_tokens")
        ids = await render(server.text, body.messages, {})
    else:
        special = body.add_special_tokens is not False
        encoded = await asyncio.to_thread(server.text.tokenizer.encode, body.prompt, add_special_tokens=special)
        ids = list(encoded)
    strs = [server.tokens.text(token) for token in ids]
    return json_response({"count": len(ids), "max_model_len": server.max_len, "tokens": ids, "token_strs": strs})


@router.post("/detokenize", responses={200: {"model": Detokenized}, **ERRORS})
async def detokenize(body: DetokenizeRequest, host: Here) -> Response:
    """The text of token ids, special ones included."""
    server = await host.of(body.model)
    size = server.llm.llm.engine.model.vocab_size
    bad = next((t for t in body.tokens if not 0 <= t < size), None)
    if bad is not None:
        raise InputError(f"tokens has the id {bad}, but this model's ids are 0 to {size - 1}.")
    return json_response({"prompt": await asyncio.to_thread(server.text.decode, body.tokens)})


@router.get("/version", responses={200: {"model": Version}})
async def paceline_version() -> Response:
    """Of Paceline."""
    return json_response({"version": version("paceline")})


@router.get("/health", responses={200: {"model": Health}, **ERRORS})
async def health(host: Here) -> Response:
    """Green while the engine thread lives."""
    if not host.alive:
        raise ApiError(503, "The engine thread died; restart the server.", code="engine_dead")
    return json_response({"status": "ok"})
