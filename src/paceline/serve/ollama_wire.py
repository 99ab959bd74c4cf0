"""Requests of Ollama's protocol, and what they are as chat requests."""

import re
from typing import Annotated, Any, Literal, TypeVar

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, Field, field_validator

from paceline.serve.errors import ApiError, invalid
from paceline.serve.other_clients import NO_MEDIA
from paceline.serve.protocol import ChatRequest
from paceline.serve.response_wire import validated
from paceline.serve.wire import Label, Loose, Shallow, Wire

OPTIONS = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "seed": "seed", "stop": "stop",
    "repeat_penalty": "repetition_penalty", "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty", "num_predict": "max_tokens",
}  # fmt: skip
"""Ollama's names of sampling options, and this server's."""
OF_THE_MACHINE = {
    "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "use_mmap", "use_mlock", "numa",
    "low_vram",
    "f16_kv", "vocab_only", "logits_all", "embedding_only", "repeat_last_n", "penalize_newline", "mirostat_tau",
    "mirostat_eta",
}  # fmt: skip
"""Options that are settings of this server, or say nothing by themselves: they are let go."""
PLAIN_OPTIONS = {"mirostat": 0, "typical_p": 1, "tfs_z": 1}
"""Ways of sampling that are not served, each with the value that switches it off."""
THEIR_NAMES = {ours: theirs for theirs, ours in OPTIONS.items()}
NUMBER = r"(?:\d++(?:\.\d*+)?+|\.\d++)"
DURATION = re.compile(rf"[-+]?(?:(?:{NUMBER}(?:ns|us|µs|ms|s|m|h))++|{NUMBER})")
"""Duration as Go writes it, or a number of seconds; possessive, so that a long text takes no longer than it is long."""
Wished = TypeVar("Wished", bound=BaseModel)


def check_duration(given: str | int | float) -> str | int | float:
    if isinstance(given, str) and not DURATION.fullmatch(given):
        raise ValueError(f'keep_alive is {given[:40]!r}, but it must be seconds, or a duration such as "5m".')
    return given


KeepAlive = Annotated[Label | int | float, AfterValidator(check_duration)]


class OllamaMessage(Wire):
    role: str
    content: str = ""
    thinking: str | None = None
    images: list[Loose] | None = None
    tool_calls: list[Shallow] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    @field_validator("images")
    @classmethod
    def _none(cls, images: list[Loose] | None) -> list[Any] | None:
        if images:
            raise ValueError(f"images cannot be served: {NO_MEDIA}; leave them out.")
        return images


class OllamaRequest(Wire):
    """What both ways to write a text know."""

    model: Label = Field(description="the name of the served model")
    stream: bool | None = Field(None, description="true (the default) or false")
    format: str | Shallow | None = Field(None, description='"json" or a JSON schema')
    options: Shallow | None = Field(None, description="an object of sampling options")
    keep_alive: KeepAlive | None = Field(None, description='a number of seconds, or a duration such as "5m"')
    think: bool | Literal["low", "medium", "high", "max"] | None = Field(
        None, description='true, false, "low", "medium", "high" or "max"; read by chat templates that know it'
    )
    logprobs: bool | None = Field(None, description="true or false")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="a whole number from 0 to 20, with logprobs")
    truncate: bool | None = Field(None, description="true or false (a prompt that is too long is refused)")
    shift: bool | None = Field(None, description="true or false (a text ends where the context does)")

    @property
    def unloads(self) -> bool:
        """Whether the model is to be unloaded at once."""
        given = self.keep_alive
        return given is not None and (given == 0 or (isinstance(given, str) and not given.strip("+-0.nuµmsh")))

    def sampling(self) -> dict[str, Any]:
        """The options by this server's names. Raises ApiError for those that are not served."""
        made: dict[str, Any] = {}
        for name, value in (self.options or {}).items():
            if name in OPTIONS:
                unlimited = name == "num_predict" and type(value) is int and value <= 0
                if value is not None and not unlimited and not (name == "seed" and value == -1):
                    made[OPTIONS[name]] = value
            elif name in PLAIN_OPTIONS:
                if value not in (None, PLAIN_OPTIONS[name]):
                    message = f"options.{name} is not served; give temperature, top_p and min_p."
                    raise ApiError(400, message, param=f"options.{name}")
            elif name not in OF_THE_MACHINE:
                message = f"options has the unknown name {name[:60]!r}; known are {', '.join(OPTIONS)}."
                raise ApiError(400, message, param="options")
        return made

    def form(self) -> dict[str, Any] | None:
        """`response_format` of the chat API."""
        if self.format in (None, ""):
            return None
        if self.format == "json":
            return {"type": "json_object"}
        if isinstance(self.format, str):
            raise ApiError(400, 'format must be "json" or a JSON schema.', param="format")
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": self.format}}

    def made(self, model: type[Wished], values: dict[str, Any]) -> Wished:
        """A request of this server with these values and the options; a fault has the name that the client
        gave."""
        try:
            return validated(model, {**self.sampling(), **values})
        except RequestValidationError as error:
            fault = invalid(error)
            theirs = THEIR_NAMES.get(fault.param or "")
            if theirs is None:
                raise
            said = fault.message.replace(str(fault.param), f"options.{theirs}", 1)
            raise ApiError(400, said, param=f"options.{theirs}") from None

    def grammar(self) -> dict[str, Any] | None:
        """`grammar` of the completions API, which has no `response_format`."""
        form = self.form()
        if form is None or "json_schema" not in form:
            return None if form is None else {"kind": "json_object"}
        return {"kind": "json_schema", "text": orjson.dumps(form["json_schema"]["schema"]).decode()}


class OllamaChatRequest(OllamaRequest):
    messages: list[OllamaMessage] = Field(description="a list of messages")
    tools: list[Shallow] | None = Field(None, max_length=128, description="a list of functions, 128 at most")

    def chat(self) -> ChatRequest:
        """A chat request with the same wishes."""
        messages = [of_message(message) for message in self.messages]
        return as_chat(self, messages, [{"type": "function", **each} for each in self.tools or ()])


class OllamaGenerateRequest(OllamaRequest):
    prompt: str = Field("", description="a text")
    system: str | None = Field(None, description="a text: the system message")
    raw: bool | None = Field(None, description="true: the prompt goes to the model as it is")
    template: str | None = Field(None, description="left out: start the server with --chat-template")
    suffix: str | None = Field(None, description="a text: what stands behind the gap that the answer fills")
    context: list[int] | None = Field(None, description="left out: send the conversation to /api/chat")
    images: list[Loose] | None = Field(None, description=f"left out: {NO_MEDIA}")

    def check(self) -> None:
        """Raise ApiError for what the protocol has and this server has not."""
        reasons = {
            "images": f"{NO_MEDIA}; leave them out",
            "template": "start the server with --chat-template",
            "context": "send the conversation to /api/chat",
        }
        for name, reason in reasons.items():
            if getattr(self, name):
                raise ApiError(400, f"{name} cannot be served: {reason}.", param=name)
        for name in ("raw", "suffix"):
            if self.system and getattr(self, name):
                raise ApiError(400, f"system is given with {name}, which goes to the model as it is; leave one out.",
                               param="system")  # fmt: skip

    def plain(self) -> str:
        """The prompt for a model that has no chat template, or is not to use it."""
        return f"{self.system}\n\n{self.prompt}" if self.system else self.prompt

    def chat(self) -> ChatRequest:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return as_chat(self, [*system, {"role": "user", "content": self.prompt}], None)


class OllamaEmbedRequest(Wire):
    model: Label
    input: str | list[str] | None = Field(None, description="a text or a list of texts")
    prompt: str | None = Field(None, description="a text, for /api/embeddings")
    truncate: bool | None = Field(None, description="true or false (a text that is too long is refused)")
    dimensions: int | None = None
    options: Shallow | None = None
    keep_alive: KeepAlive | None = None


class OllamaShowRequest(Wire):
    model: Label | None = None
    name: Label | None = None
    verbose: bool | None = None


def as_chat(body: OllamaRequest, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> ChatRequest:
    effort = body.think if isinstance(body.think, str) else None
    kwargs = {"enable_thinking": body.think} if isinstance(body.think, bool) else None
    return body.made(
        ChatRequest,
        {
            "stream": body.stream is not False,
            "messages": messages,
            "tools": tools or None,
            "response_format": body.form(),
            "reasoning_effort": effort,
            "chat_template_kwargs": kwargs,
            "logprobs": body.logprobs,
            "top_logprobs": body.top_logprobs,
        },
    )


def of_message(message: OllamaMessage) -> dict[str, Any]:
    """A message of Ollama's as one of the chat API: arguments of calls are objects there and texts here."""
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.thinking:
        made["reasoning_content"] = message.thinking
    if message.role == "tool":
        made["tool_call_id"] = message.tool_call_id or message.tool_name or "call"
    if message.tool_calls:
        made["tool_calls"] = [
            {"id": f"call_{at}", "type": "function", "function": called(call.get("function") or {})}
            for at, call in enumerate(message.tool_calls)
        ]
    return made


def called(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
    return {"name": str(function.get("name")), "arguments": text}
