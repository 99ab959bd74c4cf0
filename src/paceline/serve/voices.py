"""How the text of an answer becomes parts of a message, delta by delta."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import orjson

from paceline.serve import harmony
from paceline.serve.parser import AnswerParser, Content, Delta, ToolCall
from paceline.serve.protocol import ChatRequest, Message, NamedChoice
from paceline.serve.server import Server
from paceline.serve.structure import Choice, tool_choice
from paceline.serve.syntax import END_THINK, MISTRAL, SYNTAXES, THINK, short_ids, syntax_of


class Voice(Protocol):
    """Fed the text of one answer, piece by piece in any split."""

    def feed(self, text: str) -> list[Delta]: ...

    def finish(self) -> list[Delta]:
        """Return what was held back. Call once, at the end."""


class Plain:
    """Everything is content."""

    def feed(self, text: str) -> list[Delta]:
        return [Content(text)] if text else []

    def finish(self) -> list[Delta]:
        return []


class Named:
    """Everything is the arguments of one function."""

    def __init__(self, name: str, new_id: Callable[[], str] = SYNTAXES[0].new_id) -> None:
        self.name, self.new_id = name, new_id
        self.id = ""

    def feed(self, text: str) -> list[Delta]:
        if self.id:
            return [ToolCall(0, None, None, text)] if text else []
        self.id = self.new_id()
        return [ToolCall(0, self.id, self.name, text)]

    def finish(self) -> list[Delta]:
        return [] if self.id else self.feed("")


CALL_OPENING = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"]*)"\s*,\s*"arguments"\s*:\s*(?=\S)')


class Required:
    """The text is {"name": ..., "arguments": ...}, by its grammar; the arguments go on as they are written."""

    def __init__(self, new_id: Callable[[], str] = SYNTAXES[0].new_id) -> None:
        self.text, self.new_id = "", new_id
        self.sent: int | None = None
        """Characters dealt with, once the name is known."""

    def feed(self, text: str) -> list[Delta]:
        self.text += text
        deltas: list[Delta] = []
        if self.sent is None:
            head = CALL_OPENING.match(self.text)
            if head is None:
                return []
            self.sent = head.end()
            deltas.append(ToolCall(0, self.new_id(), head[1], ""))
        end = max(self.sent, len(self.text.rstrip(" \n\t}")))  # the last brace is not of the arguments
        if end > self.sent:
            deltas.append(ToolCall(0, None, None, self.text[self.sent : end]))
            self.sent = end
        return deltas

    def finish(self) -> list[Delta]:
        """The rest of the arguments; content, if the text was cut before they began."""
        if self.sent is None:
            return [Content(self.text)] if self.text else []
        rest = self.text[self.sent :]
        try:
            orjson.loads(self.text)
            rest = rest.rstrip()[:-1].rstrip()
        except orjson.JSONDecodeError:
            pass  # cut by a limit: what there is belongs to the arguments
        return [ToolCall(0, None, None, rest)] if rest else []


def ids(source: str) -> Callable[[], str]:
    """What makes the ids of calls, as this chat template wants them back."""
    return (syntax_of(source) or (MISTRAL if short_ids(source) else SYNTAXES[0])).new_id


@dataclass(frozen=True, slots=True)
class Manner:
    """How the answers of one chat request are read."""

    voice: Callable[[str], Voice]
    """Make a fresh one, given how the rendered conversation ends."""
    special: bool = False
    """Markers are special tokens, so the text must show these."""
    opening: str = ""
    """Text that the answer begins behind: where a form is wanted, the head of the message that has it."""
    stops: tuple[str, ...] = ()
    """Tokens that end the answer, in addition to the model's own."""


def manner(body: ChatRequest, server: Server, shaped: bool, source: str) -> Manner:
    """`shaped`: a grammar prescribes the whole answer. Raises RefusalError for tools of a model whose calls would not
    be understood."""
    choice, new_id = tool_choice(body), ids(source)
    if harmony.speaks(source):
        return in_harmony(body, choice, shaped)
    if isinstance(choice, NamedChoice):
        name = choice.function.name
        return Manner(lambda tail: Named(name, new_id))
    if choice == "required":
        return Manner(lambda tail: Required(new_id))
    tools = choice == "auto"
    reasoning = (THINK in source or END_THINK in source) and not shaped
    if not tools and not reasoning:
        return Manner(lambda tail: Plain())
    AnswerParser.for_model(source, tools, reasoning)
    special = any(marker in server.tokens.special for marker in markers(source, tools, reasoning))
    stops = [t for t in body.stop_token_ids or () if t in range(len(server.text.tokenizer))]  # others are refused later
    ends = [server.tokens.text(token) for token in {*server.llm.llm.engine.session.eos, *stops}] if special else []
    names = unmarked(body) if tools else set[str]()
    begun = written(body.messages[-1]) if body.continue_final_message else ""

    def voice(tail: str) -> AnswerParser:
        return AnswerParser.for_model(source, tools, reasoning, prompt=tail, ends=ends, begun=begun, names=names)

    return Manner(voice, special)


def in_harmony(body: ChatRequest, choice: Choice | NamedChoice, shaped: bool) -> Manner:
    """How answers with channels are read."""
    stops = (harmony.RETURN_MARK, harmony.CALL_MARK)
    if isinstance(choice, NamedChoice):
        name = choice.function.name
        return Manner(lambda tail: Named(name), opening=harmony.called(name), stops=stops)
    if choice == "required":
        return Manner(lambda tail: Required(), opening=harmony.FINAL_HEAD, stops=stops)
    if shaped:
        return Manner(lambda tail: Plain(), opening=harmony.FINAL_HEAD, stops=stops)

    def voice(tail: str) -> Voice:
        return harmony.HarmonyVoice(choice == "auto", opened=tail.rstrip().endswith(harmony.SPEAKER))

    return Manner(voice, special=True, stops=stops)


def unmarked(body: ChatRequest) -> set[str]:
    """Functions whose calls are read without a marker, too, as many models write them; none where a grammar watches
    over calls from their marker on."""
    tools = body.tools or ()
    if body.parallel_tool_calls is False or body.response_format or any(tool.function.strict for tool in tools):
        return set()
    return {tool.function.name for tool in tools}


def written(message: Message) -> str:
    """Text of a message, its parts together."""
    content = message.content or ""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def markers(source: str, tools: bool, reasoning: bool) -> list[str]:
    """What the parser of a model with this template looks for."""
    syntax = syntax_of(source) if tools else None
    return [*([syntax.marker, syntax.close] if syntax else []), *([THINK, END_THINK] if reasoning else [])]
