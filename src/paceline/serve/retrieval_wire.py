"""What a chat request says under `retrieval` and under `neighbours`."""

from typing import Literal

from pydantic import Field

from paceline.serve.wire import Wire


class RetrievalWish(Wire):
    """Passages while the answer is written, and how they are found; docs/retrieval.md has the meaning of each."""

    retriever: Literal["exact", "hnsw", "bm25"] | None = Field(None, description='"exact", "hnsw" or "bm25"')
    every: int | None = Field(None, ge=1, le=4096, description="a whole number from 1 to 4096, tokens")
    stride: int | None = Field(None, ge=1, le=64, description="a whole number from 1 to 64; null: the optimal one")
    prefetch: int | None = Field(None, ge=1, le=4096, description="a whole number from 1 to 4096, passages")
    overlap: bool | None = Field(None, description="true or false")
    query_tokens: int | None = Field(None, ge=1, le=4096, description="a whole number from 1 to 4096")
    passage_tokens: int | None = Field(None, ge=1, le=65536, description="a whole number from 1 to 65536")
    template: str | None = Field(None, max_length=4096, description="a text with {question} and {passage}")
    cap: float | None = Field(None, ge=0, le=1, description="a number in [0, 1]")
    window: int | None = Field(None, ge=1, le=1000, description="a whole number from 1 to 1000, rounds")
    most: int | None = Field(None, ge=1, le=64, description="a whole number from 1 to 64")


class NeighbourWish(Wire):
    """Neighbours of each token from the server's datastore; docs/retrieval.md has the meaning of each."""

    weight: float | None = Field(None, gt=0, lt=1, description="a number between 0 and 1, the share of the neighbours")
    k: int | None = Field(None, ge=1, le=1024, description="a whole number from 1 to 1024, neighbours of a token")
    temperature: float | None = Field(None, gt=0, description="a positive number")
    stride: int | None = Field(None, ge=1, le=64, description="a whole number from 1 to 64; null: the optimal one")
    following: int | None = Field(None, ge=0, le=1024, description="a whole number from 0 to 1024")
    cap: float | None = Field(None, ge=0, le=1, description="a number in [0, 1]")
    most: int | None = Field(None, ge=1, le=64, description="a whole number from 1 to 64")
