"""Requests of Ollama's protocol, and what they are as chat requests."""

from typing import Any

import orjson
from pydantic import Field, field_validator

from paceline.serve.errors import ApiError
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
    "f16_kv", "vocab_only", "logits_all", "embedding_only", "repeat_last_n", "penalize_newline", "typical_p", "tfs_z",
}  # fmt: skip
"""Options that are settings of this server, or have no counterpart that changes a text: they are let go."""


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
    keep_alive: str | int | float | None = Field(None, description="a duration (without effect)")
    think: bool | str | None = Field(None, description="true or false; read by chat templates that know it")

    def sampling(self) -> dict[str, Any]:
        """The options by this server's names. Raises ApiError for those that are not served."""
        made: dict[str, Any] = {}
        for name, value in (self.options or {}).items():
            if name in OPTIONS:
                unlimited = name == "num_predict" and isinstance(value, int) and value < 0
                if value is not None and not unlimited and not (name == "seed" and value == -1):
                    made[OPTIONS[name]] = value
            elif name == "mirostat" and value:
                raise ApiError(400, "options.mirostat is not served; give temperature and top_p.", param="options")
            elif name not in OF_THE_MACHINE and not name.startswith("mirostat"):
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

    def grammar(self) -> dict[str, Any] | None:
        """`grammar` of the completions API, which has no `response_format`."""
        form = self.form()
        if form is None or "json_schema" not in form:
            return None if form is None else {"kind": "json_object"}
        return {"kind": "json_schema", "text": orjson.dumps(form["json_schema"]["schema"]).decode()}


class OllamaChatRequest(OllamaRequest):
    messages: list[OllamaMessage] = Field(description="a list of messages")
    tools: list[Shallow] | None = Field(None, max_length=128, description="a list of functions")

    def chat(self) -> ChatRequest:
        """A chat request with the same wishes."""
        messages = [of_message(message) for message in self.messages]
        return as_chat(self, messages, self.tools)


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
    keep_alive: str | int | float | None = None


class OllamaShowRequest(Wire):
    model: Label | None = None
    name: Label | None = None
    verbose: bool | None = None


def as_chat(body: OllamaRequest, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> ChatRequest:
    kwargs = None if body.think is None else {"enable_thinking": body.think not in (False, "none")}
    return validated(
        ChatRequest,
        {
            **body.sampling(),
            "messages": messages,
            "tools": tools or None,
            "response_format": body.form(),
            "chat_template_kwargs": kwargs,
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
