"""Prompts to token ids, in a pool: a long prompt must not hold up the other connections."""

import asyncio
import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from paceline.core.errors import InputError
from paceline.engine.text import Text
from paceline.serve.errors import ApiError
from paceline.serve.harmony import conversation, speaks
from paceline.serve.protocol import Message, PriorToolCall, Tool
from paceline.serve.syntax import Syntax, short_ids, syntax_of
from paceline.serve.tokens import Tokens
from paceline.serve.triggered import without_tools

if TYPE_CHECKING:
    from paceline.serve.server import Server

Prompt = str | list[int]


def as_prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Prompt]:
    """The prompts of a completion request: one text or list of ids, or several."""
    if prompt == []:
        raise ApiError(400, "prompt is [], but it must hold at least one token or text.", param="prompt")
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


@dataclass(frozen=True, slots=True)
class TextBound:
    """How many characters a text may have, counting those only that some token must hold."""

    most: float
    """Characters of the longest text that fits; infinite if the tokenizer may drop some."""
    absorbing: Mapping[str, tuple[bool, bool]] | None = field(default_factory=dict)
    """Special tokens that take the white space before them, after them; None if any text might be such a token."""

    def size(self, text: str) -> int:
        """Characters of a text that take room in tokens."""
        if self.absorbing is None:
            return len(text) - sum(map(text.count, SPACES))
        if not self.absorbing:
            return len(text)
        pieces = re.split("(" + "|".join(map(re.escape, sorted(self.absorbing, key=len, reverse=True))) + ")", text)
        taken = 0
        for at in range(1, len(pieces), 2):
            before, after = self.absorbing[pieces[at]]
            taken += before * (len(pieces[at - 1]) - len(pieces[at - 1].rstrip()))
            taken += after * (len(pieces[at + 1]) - len(pieces[at + 1].lstrip()))
        return len(text) - taken


def longest(text: Text, tokens: Tokens, max_len: int) -> TextBound:
    """The bound of a text of `max_len` tokens."""
    backend = text.tokenizer.backend_tokenizer
    kinds = [kind for part in (backend.normalizer, backend.pre_tokenizer) for kind in steps(part)]
    if not tokens.whole or any(kind not in KEEPING for kind in kinds):
        return TextBound(math.inf)
    shrink = 4 if any(kind in COMPOSING for kind in kinds) else 1
    most = float(max_len * shrink * max(map(len, text.tokenizer.get_vocab()), default=1))
    added = [it for it in text.tokenizer.added_tokens_decoder.values() if it.lstrip or it.rstrip]
    if backend.normalizer is not None and any(it.normalized for it in added):
        return TextBound(most, None)
    return TextBound(most, {it.content: (it.lstrip, it.rstrip) for it in added})


KEEPING = {"NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Sequence", "Lowercase", "ByteLevel", "Split", "Digits",
           "Punctuation", "Metaspace"}  # fmt: skip
"""Steps of tokenizers that drop nothing (of those that replace, and split, see `steps`)."""
COMPOSING = {"NFC", "NFKC"}
"""Normalization forms that compose several characters, at most four, into one."""


def steps(part: Any) -> Iterator[str]:
    """The kinds of the steps of a normalizer or pre-tokenizer; one that may drop characters is called so."""
    left = [] if part is None else [json.loads(part.__getstate__())]
    while left:
        it = left.pop()
        left += it.get("normalizers", []) + it.get("pretokenizers", [])
        shorter = it["type"] == "Replace" and len(it["pattern"].get("String", "xx")) > len(it["content"])
        yield "dropping" if shorter or it.get("behavior") == "Removed" else it["type"]


def check_length(text: str, bound: TextBound, name: str = "prompt") -> None:
    """Raise InputError for a text that cannot fit whatever its tokens are, before they are looked for."""
    if len(text) > bound.most and bound.size(text) > bound.most:
        raise InputError(
            f"{name} has {len(text)} characters, more than the context holds whatever its tokens are "
            f"({bound.most:.0f}); shorten it."
        )


SPACES = " \t\n\r"


async def encode(server: "Server", prompts: Sequence[Prompt]) -> list[list[int]]:
    """Token ids of each prompt; ids pass as they are."""
    texts = [p for p in prompts if isinstance(p, str)]
    if not texts:
        return [p for p in prompts if not isinstance(p, str)]
    for text in texts:
        check_length(text, server.text_bound)
    gone = asyncio.Event()

    def work() -> list[list[int]]:
        made: list[list[int]] = []
        for prompt in prompts:
            if gone.is_set():
                break
            made.append(server.text.encode(prompt) if isinstance(prompt, str) else prompt)
        return made

    try:
        return await server.pools.texts.run(work, sum(map(len, texts)))
    except asyncio.CancelledError:
        gone.set()
        raise


async def render(
    server: "Server", messages: Sequence[Message], args: Mapping[str, Any], bare: "Sequence[Tool]" = ()
) -> list[int]:
    """Token ids of a conversation by the chat template, up to where the answer begins."""
    text, source = server.text, template(server.text)
    developer, short = "developer" if "developer" in source else "system", short_ids(source)

    def work() -> list[int]:
        plain_ = [plain(m, developer, syntax_of(source), short) for m in messages]
        if speaks(source):
            plain_ = conversation(plain_)
        rendered = text.render(without_tools(plain_, bare) if bare else plain_, **args)
        check_length(rendered, server.text_bound, "messages")
        return list(text.tokenizer.encode(rendered, add_special_tokens=False))

    size = sum(size_of(message) for message in messages) + sum(len(str(value)) for value in args.values())
    return await server.pools.texts.run(work, size)


def size_of(message: Message) -> int:
    """About how many characters it has."""
    parts = message.content if isinstance(message.content, list) else [message.content or ""]
    calls = sum(len(call.function.arguments) for call in message.tool_calls or ())
    return 16 + calls + sum(len(part if isinstance(part, str) else part.text) for part in parts)


def template(text: Text) -> str:
    """The chat template's source; empty if there is none."""
    source = getattr(text.tokenizer, "chat_template", None) or ""
    return source if isinstance(source, str) else "\n".join(source.values())


def plain(message: Message, developer: str, syntax: Syntax | None = None, short: bool = False) -> dict[str, Any]:
    """A message as chat templates want it: the arguments of calls as objects. `developer`: what that role is called in
    the template. `syntax`: how its model writes calls. `short`: its ids have nine characters."""
    content: Any = message.content if message.content is not None else message.refusal or ""
    if isinstance(content, list):
        content = [{"type": "text", "text": part.text} for part in content]
    role = developer if message.role == "developer" else message.role
    more = message.model_dump(include={"name", "reasoning_content", "tool_call_id"}, exclude_none=True)
    if short and "tool_call_id" in more:
        more["tool_call_id"] = nine(more["tool_call_id"])
    calls, broken = [], []
    for call in message.tool_calls or ():
        arguments = read_arguments(call.function.arguments)
        if arguments is None:
            broken.append(as_written(call, syntax))
        else:
            calls.append(called(call, arguments, short))
    if calls:
        more["tool_calls"] = calls
    return {"role": role, "content": with_text(content, broken), **more}


def with_text(content: Any, lines: Sequence[str]) -> Any:
    """A content with some text behind it."""
    if not lines:
        return content
    if isinstance(content, list):
        return [*content, *({"type": "text", "text": line} for line in lines)]
    return "\n".join(filter(None, [content, *lines]))


def read_arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a call as they were written; None for what is no object, cut short by a limit or made up."""
    try:
        arguments = orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError:
        return None
    return arguments if isinstance(arguments, dict) else None


def as_written(call: PriorToolCall, syntax: Syntax | None) -> str:
    """A broken call as its model wrote it."""
    text = f'{{"name": {json.dumps(call.function.name)}, "arguments": {call.function.arguments}'
    return f"{syntax.marker}{text}" if syntax is not None else text


def called(call: PriorToolCall, arguments: Mapping[str, Any], short: bool) -> dict[str, Any]:
    id = nine(call.id) if short and call.id else call.id
    function = {"name": call.function.name, "arguments": arguments}
    return {"type": "function", "function": function, **({"id": id} if id else {})}


def nine(id: str) -> str:
    """An id of nine letters and digits: the same one, if it is that."""
    return id if re.fullmatch(r"[a-zA-Z0-9]{9}", id) else sha256(id.encode()).hexdigest()[:9]


def template_args(text: Text, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """`chat_template_kwargs`: variables of the template, none that steers how it is applied."""
    if not given:
        return {}
    from transformers.utils.chat_template_utils import render_jinja_template

    steps = (text.tokenizer.apply_chat_template, render_jinja_template, text.render)
    taken = {"self", *(name for step in steps for name in inspect.signature(step).parameters)}
    for name in given:
        if name in taken:
            message = f"chat_template_kwargs has {name!r}, which is not the template's to read; remove it."
            raise ApiError(400, message, param="chat_template_kwargs")
    return dict(given)
