"""What requests look like. A field's description is what its value must be: error sentences and docs quote it.

null is the same as not given. Nothing is coerced and nothing unknown is let through.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, field_validator, model_validator

from paceline.serve.other_clients import (
    HARMLESS,
    NO_MEDIA,
    UNKNOWN_PARAMETERS,
    UNSUPPORTED,
    as_text,
    functions_alone,
    renamed,
    without_notes,
)
from paceline.serve.other_forms import formed
from paceline.serve.reasoning_wire import ReasoningWish
from paceline.serve.retrieval_wire import NeighbourWish, RetrievalWish
from paceline.serve.wire import Ids, Label, Shallow, Wire, leniency


class Speculation(Wire):
    """The request's wishes; what is not given is the engine's default."""

    drafter: Label | None = Field(None, description='"auto", "none", NAME, A+B (in one tree) or A|B (choose)')
    max_nodes: int | None = Field(None, ge=0, description="a whole number >= 0")
    verifier: Label | None = Field(None, description="the name of a verifier")
    trace: bool | None = Field(None, description="true: return the source of each piece of the text")


class StreamOptions(Wire):
    include_usage: bool | None = Field(None, description="true: a last chunk with the usage")
    continuous_usage_stats: bool | None = Field(None, description="true: the usage so far in every chunk")
    include_obfuscation: Literal[False] | None = Field(None, description="false: nothing is padded here")


class GrammarSpec(Wire):
    kind: Literal["json_schema", "json_object", "regex", "lark"]
    text: str = ""


class Sampling(Wire):
    """Parameters that both completion end points know."""

    model: Label | None = Field(None, description="the name of the served model")
    stream: bool | None = Field(None, description="true or false")
    stream_options: StreamOptions | None = Field(
        None, description='{"include_usage": true or false, "continuous_usage_stats": true or false}, with stream'
    )
    n: int | None = Field(None, ge=1, description="a whole number >= 1")
    seed: int | None = Field(None, ge=0, lt=2**64, description="a whole number in [0, 2**64)")
    temperature: float | None = Field(None, ge=0, description="0 (greedy) or a positive number")
    top_p: float | None = Field(None, gt=0, le=1, description="in (0, 1]")
    top_k: int | None = Field(None, ge=-1, description="a whole number, 0 or -1 for all tokens")
    min_p: float | None = Field(None, ge=0, lt=1, description="in [0, 1)")
    repetition_penalty: float | None = Field(None, gt=0, description="above 0")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="in [-2, 2]")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="in [-2, 2]")
    logit_bias: Annotated[dict[str, float], Field(max_length=1024)] | None = Field(
        None, description="{token id: number}, 1024 at most"
    )
    allowed_tokens: Ids | None = Field(None, min_length=1, description="a list of token ids, not empty")
    bad_words: list[str | Ids] | None = Field(
        None, max_length=256, description="a list of texts or of lists of token ids, 256 at most"
    )
    stop: str | Annotated[list[str], Field(max_length=16)] | None = Field(
        None, description="a text or a list of texts, 16 at most"
    )
    stop_token_ids: Ids | None = Field(None, max_length=256, description="a list of token ids, 256 at most")
    include_stop: bool | None = Field(None, description="true or false")
    min_tokens: int | None = Field(None, ge=0, description="a whole number >= 0")
    max_tokens: int | None = Field(None, ge=0, description="a whole number >= 1")
    ignore_eos: bool | None = Field(None, description="true or false")
    skip_special_tokens: bool | None = Field(None, description="true or false")
    grammar: GrammarSpec | None = Field(
        None, description='{"kind": "json_schema", "json_object", "regex" or "lark", "text": ...}'
    )
    speculation: Speculation | None = Field(
        None, description='{"drafter": NAME, "max_nodes": number, "verifier": NAME, "trace": true or false}'
    )
    priority: int | None = Field(
        None, ge=-100, le=100, description="a whole number in [-100, 100], lower is served first; needs order priority"
    )
    deadline_ms: float | None = Field(
        None, gt=0, description="a positive number of milliseconds from the arrival; needs order deadline"
    )
    user: Label | None = Field(None, description="a text (a label; the answer does not depend on it)")
    cache_salt: Label | None = Field(
        None, description="a text; cached prefixes are shared among requests of one salt alone"
    )
    prompt_cache_key: str | None = Field(
        None, description="a text (a label: this prompt and its answer come back, which eviction may believe)"
    )
    prompt_cache_retention: str | None = Field(
        None, description='a text, such as "24h": this prompt and its answer come back, as above'
    )

    @model_validator(mode="before")
    @classmethod
    def _no_unsupported(cls, data: Any) -> Any:
        """Name what other servers have and this one has not; given as null it is let go."""
        if not isinstance(data, dict):
            return data
        data = formed(renamed(data))
        theirs = data.keys() & (UNSUPPORTED.keys() | UNKNOWN_PARAMETERS.keys()) - cls.model_fields.keys()
        for name in theirs:
            if data[name] is None or (name in HARMLESS and HARMLESS[name](data[name])):
                continue
            if name in UNSUPPORTED or not leniency.on:
                raise ValueError(f"{name} is not supported: {UNSUPPORTED.get(name) or UNKNOWN_PARAMETERS[name]}.")
            leniency.let_go(name, data[name])
        return {name: value for name, value in data.items() if name not in theirs}

    @property
    def trace(self) -> bool:
        return bool(self.speculation and self.speculation.trace)

    @property
    def counted_always(self) -> bool:
        """Each chunk of the stream has the usage so far."""
        return bool(self.counted and self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def counted(self) -> bool:
        """The stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionRequest(Sampling):
    prompt: str | list[str] | Ids | list[Ids] = Field(
        description="a text, a list of texts, a list of token ids, or a list of such lists"
    )
    suffix: str | None = Field(
        None, description="a text: what stands behind the gap that the answer fills, if the model has tokens for it"
    )
    echo: bool | None = Field(None, description="true or false")
    logprobs: int | None = Field(None, ge=0, le=20, description="a whole number from 0 to 20")


class MessagePart(Wire):
    """A piece of a message."""

    type: Literal["text"]
    text: str
    cache_control: Shallow | None = None
    """Anthropic's mark of a prefix: prefixes are shared by themselves."""


Parts = list[MessagePart]


class CalledFunction(Wire):
    name: str
    arguments: str = ""


class PriorToolCall(Wire):
    """A tool call that an earlier answer made."""

    id: str | None = None
    index: int | None = None
    """Index from a stream; clients that assemble the pieces often keep it."""
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Wire):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[MessagePart] | None = Field(
        None, description='a text or a list of {"type": "text", "text": ...}'
    )
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[PriorToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    """What other servers call reasoning_content."""
    reasoning_details: list[Shallow] | None = None
    thinking_blocks: list[Shallow] | None = None
    provider_specific_fields: Shallow | None = None
    cache_control: Shallow | None = None
    annotations: list[Shallow] | None = None
    """Other servers' notes on an answer: nothing reads them."""

    @model_validator(mode="before")
    @classmethod
    def _without_notes(cls, data: Any) -> Any:
        return without_notes(data)

    @field_validator("content", mode="before")
    @classmethod
    def _only_text(cls, content: Any) -> Any:
        """A refusal of an earlier answer is text."""
        if not isinstance(content, list):
            return content
        parts = [as_text(part) for part in content]
        for part in parts:
            if isinstance(part, dict) and part.get("type") not in ("text", None):
                raise ValueError(f"Content of type {part['type']!r} is not supported: {NO_MEDIA}.")
        return parts

    @model_validator(mode="after")
    def _has_content(self) -> "Message":
        if self.reasoning is not None and self.reasoning_content is None:
            self.reasoning_content = self.reasoning
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError(f"A message of role {self.role} has tool_calls, but only an assistant calls tools.")
        if self.content is None and not self.tool_calls and self.refusal is None and self.reasoning_content is None:
            raise ValueError(f"A message of role {self.role} has no content; give it, be it empty.")
        return self


Messages = list[Message]


class Function(Wire):
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    parameters: Shallow | None = None
    strict: bool | None = None
    defer_loading: Literal[False] | None = Field(None, exclude=True)
    """False says that the model sees it from the beginning, as it does."""


class Tool(Wire):
    type: Literal["function"]
    function: Function


class FunctionName(Wire):
    name: str


class NamedChoice(Wire):
    type: Literal["function"]
    function: FunctionName


class SchemaFormat(Wire):
    name: str | None = None
    description: str | None = None
    schema_: Shallow = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Wire):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class ChatRequest(Sampling):
    messages: Messages = Field(min_length=1, description='a list of {"role": ..., "content": text}, at least one')
    max_completion_tokens: int | None = Field(None, ge=1, description="a whole number >= 1")
    logprobs: bool | None = Field(None, description="true or false")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="a whole number from 0 to 20, with logprobs")
    response_format: ResponseFormat | None = Field(
        None, description='{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": ...}'
    )
    tools: list[Tool] | None = Field(
        None, max_length=128, description='a list of {"type": "function", "function": ...}, 128 at most'
    )
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = Field(
        None, description='"none", "auto", "required" or {"type": "function", "function": {"name": NAME}}'
    )
    parallel_tool_calls: bool | None = Field(None, description="true or false")
    reasoning_effort: Label | None = Field(None, description="a text, if the model's chat template reads it")
    chat_template_kwargs: Shallow | None = Field(None, description="variables of the model's chat template")
    add_generation_prompt: bool | None = Field(None, description="true (the default) or false")
    continue_final_message: bool | None = Field(
        None, description="true: continue the last message, of role assistant; or false"
    )
    reasoning: ReasoningWish | None = Field(None, description='{"policy": "steps", "mentor" or "parallel", ...}')
    retrieval: RetrievalWish | None = Field(None, description='{"every": 4, "stride": null, ...}, all optional')
    neighbours: NeighbourWish | None = Field(None, description='{"weight": 0.25, "k": 16, ...}, all optional')
    _left_out: str = PrivateAttr("")

    @model_validator(mode="wrap")
    @classmethod
    def _functions_alone(cls, data: Any, handler: ModelWrapValidatorHandler["ChatRequest"]) -> "ChatRequest":
        data, kinds = functions_alone(data)
        made = handler(data)
        made._left_out = kinds or made._left_out  # one that is validated already comes by again
        return made

    @property
    def left_out(self) -> str:
        """Kinds of the tools that are not served and that the model is not shown."""
        return self._left_out

    @property
    def extended(self) -> tuple[str, ...]:
        """The policies above tokens that it asks for, by the names of their fields."""
        return tuple(name for name in POLICY_FIELDS if getattr(self, name) is not None)


POLICY_FIELDS = ("reasoning", "retrieval", "neighbours")
"""Fields of a chat request that name a policy above tokens (serve/above.py)."""


class TokenizeRequest(Wire):
    """One of prompt and messages."""

    model: Label | None = Field(None, description="the name of the served model")
    prompt: str | None = Field(None, description="a text")
    messages: Messages | None = Field(None, min_length=1, description="a list of messages, at least one")
    add_special_tokens: bool | None = Field(None, description="true (the default) or false, with prompt")


class DetokenizeRequest(Wire):
    model: Label | None = Field(None, description="the name of the served model")
    tokens: Ids = Field(description="a list of token ids")


REQUESTS: tuple[type[Wire], ...] = (CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest)
PARAMETERS = frozenset(name for request in REQUESTS for name in request.model_fields)
