"""POST /v1/embeddings: vectors of texts from the served model, pooled as it, the server or the request says."""

import base64
from collections.abc import Awaitable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.engine.door import DOOR
from paceline.serve.body import JsonRoute
from paceline.serve.encoders import EncoderHost
from paceline.serve.errors import ApiError
from paceline.serve.prompts import Prompt, as_prompts, encode
from paceline.serve.responses import ERRORS
from paceline.serve.server import Here, ServedHost, Server
from paceline.serve.sse import json_unless_gone
from paceline.serve.wire import Ids, Label, Wire

router = APIRouter(route_class=JsonRoute)
Awaited = TypeVar("Awaited")
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
    server = await source(host, body.model)
    server.check_places(1)
    pooling = pooling_of(body.pooling, server)
    response = await json_unless_gone(request, answer(body, server, pooling))
    response.headers["x-paceline-pooling"] = pooling
    return response


class DecoderVectors:
    """Vectors from a decoder that also writes."""

    def __init__(self, server: Server) -> None:
        self.server, self.model, self.settings = server, server.model, server.settings
        self.check_places = server.check_places

    @property
    def width(self) -> int:
        size: int = self.server.llm.llm.engine.model.spec.hidden  # type: ignore[attr-defined]
        return size

    def pooling(self, wish: str | None) -> str:
        return wish or self.settings.pooling or DEFAULT_POOLING

    async def vectors(self, texts: Sequence[Prompt], pooling: str, name: str) -> tuple[list[list[float]], int]:
        server, longest = self.server, self.settings.max_prompt_tokens
        ids = await encode(server, texts)
        for each in ids:
            if longest is not None and len(each) > longest:
                raise InputError(f"{name} has a text of {len(each)} tokens, but this server takes at most {longest}.")
        return await server.llm.embed(ids, pooling, adapter=server.adapter), sum(map(len, ids))


VectorSource = DecoderVectors | EncoderHost


async def source(host: ServedHost, name: str | None) -> VectorSource:
    """What makes the vectors of a request. Raises ApiError 404 for a name that is not served."""
    if isinstance(host, EncoderHost):
        host.check_model(name)
        return host
    return DecoderVectors(await host.of(name))


def pooling_of(wish: str | None, server: VectorSource) -> str:
    return server.pooling(wish)


async def answer(body: EmbeddingRequest, server: VectorSource, pooling: str) -> dict[str, Any]:
    """OpenAI's answer."""
    if body.dimensions not in (None, server.width):
        message = f"dimensions is {body.dimensions}, but the vectors have {server.width}."
        raise ApiError(400, message, param="dimensions")
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
    texts: Sequence[Prompt], server: VectorSource, pooling: str, name: str = "input"
) -> tuple[list[list[float]], int]:
    """A vector of unit length for each text, and their tokens. `name`: of the parameter that has the texts."""
    if len(texts) > MAX_TEXTS:
        message = f"{name} has {len(texts)} texts, but {MAX_TEXTS} are the most; send several requests."
        raise ApiError(400, message, param=name)
    return await placed(server.vectors(texts, pooling, name))


async def placed(work: Awaitable[Awaited]) -> Awaited:
    """What `work` makes. It takes one place among the samples of the server meanwhile."""
    door = DOOR.get()
    _, place = ([], None) if door is None else door.admit([([], SamplingParams(max_tokens=1))])
    try:
        return await work
    finally:
        if place is not None:
            place.refused()


def packed(vector: list[float]) -> str:
    """Little-endian float32, as OpenAI's clients ask for by themselves."""
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
