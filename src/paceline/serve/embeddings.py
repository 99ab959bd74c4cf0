"""POST /v1/embeddings: vectors of texts from the served decoder, pooled as the server or the request says."""

import base64
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.engine.door import DOOR
from paceline.serve.body import JsonRoute
from paceline.serve.errors import ApiError
from paceline.serve.prompts import Prompt, as_prompts, encode
from paceline.serve.responses import ERRORS
from paceline.serve.server import Here, Server
from paceline.serve.sse import json_unless_gone
from paceline.serve.wire import Ids, Label, Wire

router = APIRouter(route_class=JsonRoute)
DEFAULT_POOLING = "mean"
"""What makes a vector of a text where nobody says it; answers tell it in a header."""
MAX_TEXTS = 2048
"""Texts of one request, as OpenAI has it."""


class EmbeddingRequest(Wire):
    input: str | list[str] | Ids | list[Ids] = Field(
        description=f"a text, a list of texts, a list of token ids, or a list of such lists; {MAX_TEXTS} texts at most"
    )
    model: Label | None = Field(None, description="the name of the served model")
    pooling: Literal["mean", "last"] | None = Field(None, description='"mean" or "last"')
    encoding_format: Literal["float", "base64"] | None = Field(None, description='"float" (the default) or "base64"')
    dimensions: int | None = Field(None, ge=1, description="the model's own number: vectors are not cut")
    user: str | None = Field(None, description="a text (a label)")


class EmbeddingShape(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsShape(BaseModel):
    object: Literal["list"]
    model: str
    data: list[EmbeddingShape]
    usage: EmbeddingsUsage


@router.post("/v1/embeddings", responses={200: {"model": EmbeddingsShape}, **ERRORS})
async def embeddings(body: EmbeddingRequest, request: Request, host: Here) -> Response:
    """One vector of unit length for each text."""
    server = await host.of(body.model)
    server.check_places(1)
    pooling = pooling_of(body.pooling, server)
    size = server.llm.llm.engine.model.spec.hidden  # type: ignore[attr-defined]
    if body.dimensions not in (None, size):
        raise ApiError(400, f"dimensions is {body.dimensions}, but the vectors have {size}.", param="dimensions")
    response = await json_unless_gone(request, answer(body, server, pooling))
    response.headers["x-paceline-pooling"] = pooling
    return response


def pooling_of(wish: str | None, server: Server) -> str:
    return wish or server.settings.pooling or DEFAULT_POOLING


async def answer(body: EmbeddingRequest, server: Server, pooling: str) -> dict[str, Any]:
    """OpenAI's answer."""
    if body.input == []:
        raise ApiError(400, "input is [], but it must hold at least one token or text.", param="input")
    made, count = await vectors(as_prompts(body.input), server, pooling)
    data = [
        {"object": "embedding", "index": i, "embedding": packed(vector) if body.encoding_format == "base64" else vector}
        for i, vector in enumerate(made)
    ]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "model": server.model, "data": data, "usage": usage}


async def vectors(
    texts: Sequence[Prompt], server: Server, pooling: str, name: str = "input"
) -> tuple[list[list[float]], int]:
    """A vector of unit length for each text, and their tokens. It takes one place among the samples of the server while
    it works. `name`: of the parameter that has the texts."""
    door = DOOR.get()
    _, place = ([], None) if door is None else door.admit([([], SamplingParams(max_tokens=1))])
    try:
        if len(texts) > MAX_TEXTS:
            message = f"{name} has {len(texts)} texts, but {MAX_TEXTS} are the most; send several requests."
            raise ApiError(400, message, param=name)
        longest = server.settings.max_prompt_tokens
        ids = await encode(server, texts)
        for each in ids:
            if longest is not None and len(each) > longest:
                raise InputError(f"{name} has a text of {len(each)} tokens, but this server takes at most {longest}.")
        return await server.llm.embed(ids, pooling, adapter=server.adapter), sum(map(len, ids))
    finally:
        if place is not None:
            place.refused()


def packed(vector: list[float]) -> str:
    """Little-endian float32, as OpenAI's clients ask for by themselves."""
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
