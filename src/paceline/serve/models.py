"""The small end points: what is served, tokens, and whether it lives."""

from importlib.metadata import version

from fastapi import APIRouter, Response

from paceline.core.errors import InputError
from paceline.serve.body import JsonRoute
from paceline.serve.errors import ApiError
from paceline.serve.prompts import check_length, render
from paceline.serve.protocol import DetokenizeRequest, TokenizeRequest
from paceline.serve.responses import ERRORS, Detokenized, Health, Models, ModelShape, Tokenized, Version
from paceline.serve.server import Here, unknown_model
from paceline.serve.sse import json_response

router = APIRouter(route_class=JsonRoute)


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models", responses={200: {"model": Models}})
async def models(host: Here) -> Response:
    """The served models."""
    return json_response({"object": "list", "data": host.cards()})


@router.head("/v1/models/{name:path}", include_in_schema=False)
@router.get("/v1/models/{name:path}", responses={200: {"model": ModelShape}, **ERRORS})
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
        ids, length = await render(server, body.messages, {}), 0
    else:
        prompt, special = body.prompt or "", body.add_special_tokens is not False
        check_length(prompt, server.text_bound)
        ids, length = None, len(prompt)

    def work() -> Response:
        tokens = ids or list(server.text.tokenizer.encode(body.prompt or "", add_special_tokens=special))
        strs = [server.tokens.text(token) for token in tokens]
        return json_response(
            {"count": len(tokens), "max_model_len": server.max_len, "tokens": tokens, "token_strs": strs}
        )

    return await server.pools.texts.run(work, length or 4 * len(ids or ()))


@router.post("/detokenize", responses={200: {"model": Detokenized}, **ERRORS})
async def detokenize(body: DetokenizeRequest, host: Here) -> Response:
    """The text of token ids, special ones included."""
    server = await host.of(body.model)
    size, most = server.llm.llm.engine.model.vocab_size, server.max_len
    if len(body.tokens) > most:
        raise InputError(f"tokens has {len(body.tokens)} ids, but the context holds {most}; send fewer at a time.")

    def work() -> Response:
        bad = next((t for t in body.tokens if not 0 <= t < size), None)
        if bad is not None:
            raise InputError(f"tokens has the id {bad}, but this model's ids are 0 to {size - 1}.")
        return json_response({"prompt": server.text.decode(body.tokens)})

    return await server.pools.texts.run(work, len(body.tokens))


@router.head("/version", include_in_schema=False)
@router.get("/version", responses={200: {"model": Version}})
async def paceline_version() -> Response:
    """Version of Paceline."""
    return json_response({"version": version("paceline")})


@router.head("/health", include_in_schema=False)
@router.get("/health", responses={200: {"model": Health}, **ERRORS})
async def health(host: Here) -> Response:
    """Green while the engine threads live, and step where they have work."""
    if not host.alive:
        raise ApiError(503, "The engine thread died; restart the server.", code="engine_dead")
    if host.settings.stall_timeout and (seconds := host.stuck()) > host.settings.stall_timeout:
        message = f"The engine has work but has not made a step for {seconds:.0f} s; restart the server."
        raise ApiError(503, message, code="engine_stalled")
    return json_response({"status": "ok"})
