"""POST /v1/rerank and /v1/score: how near texts are to a query, as cosines of the vectors of /v1/embeddings. Of a
cross-encoder, which reads both texts at once, what it says of the pair."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal
from uuid import uuid4

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from paceline.serve.body import JsonRoute
from paceline.serve.embeddings import MAX_TEXTS, EmbeddingsUsage, VectorSource, placed, pooling_of, source, vectors
from paceline.serve.encoders import EncoderHost
from paceline.serve.errors import ApiError
from paceline.serve.responses import ERRORS
from paceline.serve.server import Here
from paceline.serve.sse import json_unless_gone
from paceline.serve.wire import Label, Wire

router = APIRouter(route_class=JsonRoute)
Texts = str | Annotated[list[str], Field(max_length=MAX_TEXTS)]
TEXTS_MEANING = f"a text or a list of texts, {MAX_TEXTS} at most"


class RankedText(Wire):
    text: str


class RankRequest(Wire):
    query: str = Field(description="a text")
    documents: list[str | RankedText] = Field(
        min_length=1, max_length=MAX_TEXTS - 1,
        description=f'a list of texts or of {{"text": ...}}, from 1 to {MAX_TEXTS - 1}',
    )  # fmt: skip
    model: Label | None = Field(None, description="the name of the served model")
    top_n: int | None = Field(None, ge=0, description="a whole number >= 0; 0, as left out, means all documents")
    return_documents: bool | None = Field(None, description="true (the default) or false")
    pooling: Literal["mean", "last"] | None = Field(None, description='"mean" or "last"')
    user: str | None = Field(None, description="a text (a label)")


class ScoreRequest(Wire):
    """One of its two pairs: text_1 and text_2, or queries and documents."""

    text_1: Texts | None = Field(None, description=TEXTS_MEANING)
    text_2: Texts | None = Field(None, description=TEXTS_MEANING)
    queries: Texts | None = Field(None, description=TEXTS_MEANING)
    documents: Texts | None = Field(None, description=TEXTS_MEANING)
    model: Label | None = Field(None, description="the name of the served model")
    pooling: Literal["mean", "last"] | None = Field(None, description='"mean" or "last"')
    user: str | None = Field(None, description="a text (a label)")

    def pair(self) -> tuple[list[str], list[str], str]:
        """Texts of the two sides, as many on both, and what the second is called. Raises ApiError."""
        texts, lists = (self.text_1, self.text_2), (self.queries, self.documents)
        if (texts == (None, None)) == (lists == (None, None)):
            message = "text_1 and text_2 are expected, or queries and documents; give one pair."
            raise ApiError(400, message, param="text_1")
        one, two = ("text_1", "text_2") if lists == (None, None) else ("queries", "documents")
        left, right = texts if lists == (None, None) else lists
        for name, side in ((one, left), (two, right)):
            if side is None or side == []:
                raise ApiError(400, f"{name} is missing or empty; give {TEXTS_MEANING}.", param=name)
        lefts, rights = ([side] if isinstance(side, str) else list(side or ()) for side in (left, right))
        if len(lefts) not in (1, len(rights)):
            message = f"{one} has {len(lefts)} texts and {two} {len(rights)}; give one for all, or as many."
            raise ApiError(400, message, param=one)
        return lefts, rights, two


class RankedDocument(BaseModel):
    text: str


class RankResult(BaseModel):
    index: int
    relevance_score: float
    document: RankedDocument | None = None


class RankShape(BaseModel):
    id: str
    model: str
    results: list[RankResult]
    usage: EmbeddingsUsage


class PairScore(BaseModel):
    object: Literal["score"]
    index: int
    score: float


class ScoreShape(BaseModel):
    id: str
    object: Literal["list"]
    model: str
    data: list[PairScore]
    usage: EmbeddingsUsage


@router.post("/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)
@router.post("/v1/rerank", responses={200: {"model": RankShape}, **ERRORS})
async def rerank(body: RankRequest, request: Request, host: Here) -> Response:
    """Documents by how near they are to a query: the cosines of their vectors, or a cross-encoder's scores, the nearest
    first."""
    server = await source(host, body.model)
    server.check_places(1)
    pooling = pooling_of(body.pooling, server)
    texts = [each if isinstance(each, str) else each.text for each in body.documents]

    async def work() -> dict[str, Any]:
        scores, usage = await compared([body.query], texts, server, pooling, "documents")
        order = sorted(range(len(texts)), key=lambda i: -scores[i])[: body.top_n or None]
        results = [
            {"index": i, "relevance_score": scores[i]}
            | ({} if body.return_documents is False else {"document": {"text": texts[i]}})
            for i in order
        ]
        return {"id": f"rerank-{uuid4().hex}", "model": server.model, "results": results, "usage": usage}

    return await told(request, work(), pooling)


@router.post("/score", include_in_schema=False)
@router.post("/v1/score", responses={200: {"model": ScoreShape}, **ERRORS})
async def score(body: ScoreRequest, request: Request, host: Here) -> Response:
    """How near the texts of pairs are: the cosines of their vectors, or a cross-encoder's scores."""
    server = await source(host, body.model)
    server.check_places(1)
    pooling = pooling_of(body.pooling, server)
    lefts, rights, name = body.pair()

    async def work() -> dict[str, Any]:
        scores, usage = await compared(lefts, rights, server, pooling, name)
        data = [{"object": "score", "index": i, "score": each} for i, each in enumerate(scores)]
        return {"id": f"score-{uuid4().hex}", "object": "list", "model": server.model, "data": data, "usage": usage}

    return await told(request, work(), pooling)


async def compared(
    lefts: Sequence[str], rights: Sequence[str], server: VectorSource, pooling: str, name: str
) -> tuple[list[float], dict[str, int]]:
    """The score of each pair, a cosine where the server makes vectors, and the usage. One text on the left goes with
    all on the right."""
    if pooling:
        made, count = await vectors([*lefts, *rights], server, pooling, name)
        left, right = np.asarray(made[: len(lefts)]), np.asarray(made[len(lefts) :])
        return (left * right).sum(1).tolist(), {"prompt_tokens": count, "total_tokens": count}
    assert isinstance(server, EncoderHost)
    ones = [*lefts] * (len(rights) if len(lefts) == 1 else 1)
    scores, count = await placed(server.scores([*zip(ones, rights)], name))
    return scores, {"prompt_tokens": count, "total_tokens": count}


async def told(request: Request, work: Any, pooling: str) -> Response:
    """The answer, with the pooling in a header as /v1/embeddings has it."""
    response = await json_unless_gone(request, work)
    if pooling:
        response.headers["x-paceline-pooling"] = pooling
    return response
