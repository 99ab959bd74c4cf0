"""What requests and responses look like. A field's description is what its value must be: errors and docs quote it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(strict=True)]


class Wire(BaseModel):
    """Nothing is coerced, nothing unknown is let through."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Speculation(Wire):
    """The request's wishes; None: the engine's defaults."""

    drafter: str | None = Field(None, description='"auto", "none" or the name of a drafter')
    max_nodes: int | None = Field(None, description="a whole number >= 0")
    verifier: str | None = Field(None, description="the name of a verifier")
    trace: bool = Field(False, description="true or false")


class StreamOptions(Wire):
    include_usage: bool = Field(False, description="true or false")


class Sampling(Wire):
    """Parameters that both completion end points know."""

    model: str | None = Field(None, description="the name of the served model")
    stream: bool = Field(False, description="true or false")
    stream_options: StreamOptions | None = Field(None, description='{"include_usage": true or false}, with stream')
    n: int = Field(1, ge=1, description="a whole number >= 1")
    seed: int | None = Field(None, description="a whole number in [0, 2**64)")
    temperature: float | None = Field(None, description="0 (greedy) or a positive number")
    top_p: float | None = Field(None, description="in (0, 1]")
    top_k: int | None = Field(None, description="a whole number, 0 for all tokens")
    min_p: float | None = Field(None, description="in [0, 1)")
    repetition_penalty: float | None = Field(None, description="above 0")
    presence_penalty: float | None = Field(None, description="in [-2, 2]")
    frequency_penalty: float | None = Field(None, description="in [-2, 2]")
    logit_bias: dict[str, float] | None = Field(None, max_length=1024, description="{token id: number}, 1024 at most")
    allowed_tokens: list[int] | None = Field(None, description="a list of token ids")
    bad_words: Annotated[list[str | list[int]], Field(max_length=256)] | None = Field(
        None, description="a list of texts or of lists of token ids, 256 at most"
    )
    stop: str | Annotated[list[str], Field(max_length=16)] | None = Field(
        None, description="a text or a list of texts, 16 at most"
    )
    stop_token_ids: list[int] | None = Field(None, description="a list of token ids")
    include_stop: bool = Field(False, description="true or false")
    min_tokens: int = Field(0, description="a whole number >= 0")
    max_tokens: int | None = Field(None, description="a whole number >= 1")
    ignore_eos: bool = Field(False, description="true or false")
    skip_special_tokens: bool = Field(True, description="true or false")
    speculation: Speculation | None = Field(
        None, description='{"drafter": NAME, "max_nodes": number, "verifier": NAME, "trace": true or false}'
    )
    user: str | None = Field(None, description="a text (a label; the answer does not depend on it)")


class CompletionRequest(Sampling):
    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="a text, a list of texts, a list of token ids, or a list of such lists"
    )
    echo: bool = Field(False, description="true or false")
    logprobs: int | None = Field(None, ge=0, le=20, description="a whole number from 0 to 20")


class Part(Wire):
    """A piece of a message. Only text is served."""

    type: Literal["text"]
    text: str


class Message(Wire):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None


class ChatRequest(Sampling):
    messages: Annotated[list[Message], Field(min_length=1)] = Field(
        description='a list of {"role": ..., "content": text}, at least one'
    )
    max_completion_tokens: int | None = Field(None, description="a whole number >= 1")
    logprobs: bool = Field(False, description="true or false")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="a whole number from 0 to 20, with logprobs")


REQUESTS: tuple[type[Wire], ...] = (CompletionRequest, ChatRequest)
PARAMETERS = frozenset(name for request in REQUESTS for name in request.model_fields)


def expected(name: str) -> str | None:
    """What a parameter's value must be."""
    fields: list[Any] = [r.model_fields[name] for r in REQUESTS if name in r.model_fields]
    return fields[0].description if fields else None
