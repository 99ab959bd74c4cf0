"""What responses look like: for the OpenAPI document and for tests. They are written by orjson, not through these."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class AnswerShape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(AnswerShape):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(AnswerShape):
    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "The request cannot be served as it is; the sentence says why."},
    404: {"model": ErrorBody, "description": "Another model than the served one."},
    "default": {"model": ErrorBody, "description": "Refused or failed."},
}


class SpeculatedAbove(AnswerShape):
    """Figures of speculation above tokens: steps, paragraphs, branches or retrievals proposed and accepted, tokens that
    were kept, and seconds saved by estimate; below 0: lost."""

    policy: str
    proposed: int
    accepted: int
    kept_tokens: int
    saved_seconds: float


class Speculated(AnswerShape):
    """What speculation did: nodes offered and kept, also per depth, and tau, generated tokens per target pass."""

    drafter: str
    drafted: int
    accepted: int
    target_passes: int
    tau: float
    offered: list[int]
    kept: list[int]
    above: SpeculatedAbove | None = None
    """Present in answers to requests with reasoning, retrieval or neighbours."""


class CachedTokens(AnswerShape):
    cached_tokens: int


class UsageShape(AnswerShape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    speculation: Speculated


STREAM_FORM: dict[str, Any] = {"content": {"text/event-stream": {}}}
"""The other form of an answer: events of chunks, then [DONE]."""
Finish = Literal["stop", "length", "tool_calls"]
Piece = tuple[str, str]
"""(text, author): "target" or the drafter's name."""


class CompletionLogprobs(AnswerShape):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(AnswerShape):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish
    seed: int
    pieces: list[Piece] = Field(default_factory=list)


class CompletionShape(AnswerShape):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageShape


class TopLogprob(AnswerShape):
    token: str
    bytes: list[int]
    logprob: float


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(AnswerShape):
    content: list[ChatLogprob]
    refusal: None


class Called(AnswerShape):
    name: str
    arguments: str


class ToolCallShape(AnswerShape):
    id: str
    type: Literal["function"]
    function: Called


class SegmentShape(AnswerShape):
    """A part of an answer that one model wrote."""

    author: str
    text: str
    tokens: int
    step: int | None = None
    score: float | None = None
    why: str | None = None


class Rollback(AnswerShape):
    """What was proposed and not accepted."""

    at: int
    tokens: int
    text: str
    score: float | None = None


class CountedShape(AnswerShape):
    """Counts for one model: tokens given, tokens known from before, tokens found in the cache, tokens written,
    passes."""

    requests: int
    prompt: int
    known: int
    cached: int
    written: int
    passes: int
    seconds: float


class HandOverShape(AnswerShape):
    model: str
    why: str
    at: int
    known: int
    cached: int
    wrote: int
    passes: int
    seconds: float


class Reasoned(AnswerShape):
    """How an answer of two models came about: docs/reasoning.md."""

    policy: Literal["steps", "mentor"]
    ended: str
    proposed: int
    accepted: int
    segments: list[SegmentShape]
    rollbacks: list[Rollback]
    models: dict[str, CountedShape]
    handovers: list[HandOverShape]


class AnswerMessage(AnswerShape):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallShape] = Field(default_factory=list)


class ChatChoice(AnswerShape):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    seed: int
    pieces: list[Piece] = Field(default_factory=list)
    reasoning: Reasoned | None = None


class Chat(AnswerShape):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageShape
    metadata: dict[str, str] | None = None
    """tools_left_out: kinds of the tools that are not served; None: there were none."""


class ModelShape(AnswerShape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None
    """Longest text in tokens; None: the model is not loaded."""
    root: str | None = None
    """Directory of an adapter."""
    parent: str | None = None
    """Model that an adapter is for."""
    state: Literal["unloaded", "loading", "loaded", "unloading", "failed"] | None = None
    """This field and those below are set only if several models are served."""
    loaded: bool | None = None
    loads: int | None = None
    unloads: int | None = None
    error: str | None = None
    """Why the last load failed."""


class Models(AnswerShape):
    object: Literal["list"]
    data: list[ModelShape]


class Tokenized(AnswerShape):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str]


class Detokenized(AnswerShape):
    prompt: str


class Version(AnswerShape):
    version: str


class Health(AnswerShape):
    status: Literal["ok"]
