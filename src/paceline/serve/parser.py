"""An answer's parts: reasoning, tool calls and what is left. One parser for all models, by a table of syntaxes.

    <think> reasoning </think> content <tool_call> {"name": ..., "arguments": {...}} </tool_call>

It reads character by character, so that no result depends on how the text was cut into pieces: a speculative step
brings several tokens at once. Arguments are passed on as they come. Nothing is lost: what turns out not to be a call is
content, with its markers; of a call that breaks after it was passed on, what follows is content. White space next to
calls and reasoning is layout and goes.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal
from uuid import uuid4

from paceline.core.errors import RefusalError
from paceline.serve.json_reader import SPACE, JsonReader


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A new call (with id and name) or more of its arguments."""

    index: int
    id: str | None
    name: str | None
    arguments_delta: str


Delta = Content | Reasoning | ToolCall


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a family of models writes calls: {"name": ..., "arguments": ...} objects ("parameters" will do) after a
    marker. tagged: one, then `close`. list: in brackets. chain: one or several with semicolons between them."""

    name: str
    signs: tuple[str, ...]
    """Texts of a chat template, one of which tells that its model writes so."""
    marker: str
    form: Literal["tagged", "list", "chain"]
    close: str = ""
    bare: str = ""
    """With this character an answer may begin with its calls, without the marker."""
    unless: str = ""
    """A text of templates whose models write otherwise all the same."""
    id_prefix: str = "call_"
    id_digits: int = 24

    def new_id(self) -> str:
        return self.id_prefix + uuid4().hex[: self.id_digits]


SYNTAXES = (
    Syntax("hermes", ("<tool_call>",), "<tool_call>", "tagged", close="</tool_call>", unless="<function="),
    Syntax("mistral", ("[TOOL_CALLS]",), "[TOOL_CALLS]", "list", unless="[ARGS]", id_prefix="", id_digits=9),
    Syntax("llama", ("<|python_tag|>", '"parameters"', '\\"parameters\\"'), "<|python_tag|>", "chain", bare="{"),
    Syntax("list", ("functools", "<|tool|>", '[{"name"', '[{\\"name\\"'), "functools", "list", bare="["),
)
"""Tool calls; the first whose sign a template has. Mistral's templates want ids of nine characters."""
THINK, END_THINK = "<think>", "</think>"
NAMES_OF_ARGUMENTS = ("arguments", "parameters")


def syntax_of(template: str) -> Syntax | None:
    """The syntax of the calls that a model with this chat template writes, None where it is none of the table's."""
    for syntax in SYNTAXES:
        if any(sign in template for sign in syntax.signs) and not (syntax.unless and syntax.unless in template):
            return syntax
    return None


def opens_reasoning(template: str) -> bool:
    """Does the template itself write <think> where an answer begins? (One that closes it again does not count.)"""
    tail = template.rpartition("add_generation_prompt")[2]
    return THINK in re.sub(rf"{THINK}(\s|\\n)*{END_THINK}", "", tail)


class Call:
    """One object of a call, character by character."""

    def __init__(self, bare: bool) -> None:
        """`bare`: without a marker an object needs arguments to be a call."""
        self._json, self._bare = JsonReader(), bare
        self.name: str | None = None
        self.arguments = ""
        """Arguments read and not fetched yet."""
        self.started = False
        """Are there arguments, or will there be none?"""
        self._key, self._value = "", ""
        self._keys: set[str] = set()

    @property
    def done(self) -> bool:
        return self._json.want == "done"

    def push(self, char: str) -> bool:
        """Take one character; False where it cannot be a call any more."""
        reader = self._json
        begins = len(reader.stack) == 1 and reader.want == "value" and char not in SPACE
        if not reader.push(char):
            return False
        if begins or self._value:
            if not self._read(char):
                return False
        elif reader.want == "colon" and len(reader.stack) == 1:
            self._key = json.loads(reader.token)
            kind = "arguments" if self._key in NAMES_OF_ARGUMENTS else self._key
            known = kind in self._keys
            self._keys.add(kind)
            return not known
        return not self.done or self._complete()

    def _read(self, char: str) -> bool:
        """`char` begins, continues or ends a value of the call's own object."""
        reader, scalar = self._json, self._value[:1] not in ("", "{", "[", '"')
        inside = not scalar or reader.want == "scalar"  # what ends a scalar is not of it
        self._value += char if inside else ""
        if inside and self._key in NAMES_OF_ARGUMENTS and self._value[0] == "{":
            self.arguments, self.started = self.arguments + char, True
        ended = len(reader.stack) <= 1 and reader.want in ("next", "key", "done")
        if not ended:
            return True
        value, self._value = self._value, ""
        return self._field(value)

    def _field(self, value: str) -> bool:
        if self._key == "name":
            self.name = json.loads(value)
            return isinstance(self.name, str) and self.name != ""
        if self._key in NAMES_OF_ARGUMENTS and value[0] != "{":
            if value != "null" and value[0] != '"':
                return False
            self.arguments, self.started = json.loads(value) or "{}", True
        return True

    def _complete(self) -> bool:
        if not self.started and not self._bare:
            self.arguments, self.started = "{}", True
        return self.started and self.name is not None

    def fetch(self) -> str:
        text, self.arguments = self.arguments, ""
        return text


class Parser:
    """Reads one answer. `feed` what comes, then `finish`."""

    def __init__(
        self, syntax: Syntax | None, *, reasoning: bool = False, opened: bool = False, ends: Sequence[str] = ()
    ) -> None:
        """`syntax`: of tool calls, None to leave them alone. `opened`: the answer begins inside <think>. `ends`: texts
        of the tokens that end an answer, where they come with it."""
        self._syntax, self._reasoning, self._ends = syntax, reasoning, tuple(ends)
        self._read = self._think if reasoning and opened else self._text
        self._out: list[Delta] = []
        self._held = ""
        """Text that may turn out to be white space next to a marker, a marker or a call."""
        self._fresh = True
        """No content yet."""
        self._trim = self._read == self._think
        """Does white space go here?"""
        self._call: Call | None = None
        self._open: list[str] = []
        """Of the calls that are read: the marker, or "" for none, and then the bracket of a list."""
        self._between = False
        self._calls = 0
        self._sent = False
        """Was the call that is read passed on?"""

    @classmethod
    def for_model(
        cls, chat_template: str, tools: bool, reasoning: bool, *, prompt: str | None = None, ends: Sequence[str] = ()
    ) -> "Parser":
        """For the answers of a model with this template. `prompt`: the rendered one, which tells for sure whether it
        opened <think>. RefusalError for `tools` of a model whose calls would not be understood."""
        syntax = syntax_of(chat_template) if tools else None
        if tools and syntax is None:
            raise RefusalError(
                "tools cannot be served: this model's chat template shows none of the tool call syntaxes "
                f"{', '.join(syntax.name for syntax in SYNTAXES)}; describe the tools in a message instead."
            )
        opened = opens_reasoning(chat_template) if prompt is None else prompt.rstrip().endswith(THINK)
        return cls(syntax, reasoning=reasoning, opened=opened, ends=ends)

    def feed(self, text: str) -> list[Delta]:
        """The parts that this piece of text completes, perhaps none."""
        for char in text:
            self._read(char)
        return self._take()

    def finish(self) -> list[Delta]:
        """What was held back. Call once, at the end."""
        inside_a_call = self._read == self._calling and (self._sent or self._between)
        if not inside_a_call and self._read != self._over:  # of a call that was passed on only layout is left
            self._say(self._held)
        self._held = ""
        return self._take()

    # -- output ----------------------------------------------------------------------------------------------------

    def _take(self) -> list[Delta]:
        out, self._out = self._out, []
        return out

    def _emit(self, delta: Delta) -> None:
        """Add a part, to the one before where they belong together."""
        last = self._out[-1] if self._out else None
        if isinstance(last, Content | Reasoning) and type(last) is type(delta):
            self._out[-1] = replace(last, text=last.text + delta.text)
        elif isinstance(last, ToolCall) and isinstance(delta, ToolCall) and delta.id is None:
            self._out[-1] = replace(last, arguments_delta=last.arguments_delta + delta.arguments_delta)
        else:
            self._out.append(delta)

    def _say(self, text: str) -> None:
        if text and self._read == self._think:
            self._emit(Reasoning(text))
        elif text:
            self._fresh = self._fresh and not text.strip(SPACE)
            self._emit(Content(text))

    # -- text ------------------------------------------------------------------------------------------------------

    def _text(self, char: str) -> None:
        syntax = self._syntax
        if self._skip(char):
            return
        self._held += char
        if syntax and syntax.bare and self._fresh and self._held.strip(SPACE) == syntax.bare:
            self._begin(bare=True)
            self._held = self._held[:-1]
            self._calling(char)
            return
        markers = [
            *self._ends,
            *([syntax.marker] if syntax else []),
            *([THINK] if self._reasoning and self._fresh else []),
        ]
        found = self._marker(markers)
        if found == THINK:
            self._held, self._read, self._trim = "", self._think, True
        elif found in self._ends:
            self._held = self._held[: -len(found)]
            self._say(self._held)
            self._read = self._over
        elif found:
            self._begin(bare=False)

    def _think(self, char: str) -> None:
        if self._skip(char):
            return
        self._held += char
        found = self._marker([END_THINK, *self._ends])
        if found == END_THINK:
            self._held, self._read, self._trim = "", self._text, True
        elif found:
            self._say(self._held[: -len(found)])
            self._read = self._over

    def _over(self, char: str) -> None:
        """After the end."""

    def _skip(self, char: str) -> bool:
        self._trim = self._trim and char in SPACE
        return self._trim

    def _marker(self, markers: Sequence[str]) -> str:
        """The marker that ends the held text, if one does; else text that cannot belong to one is said."""
        rest = self._held
        start = 0
        while start < len(rest):
            tail = rest[start:].lstrip(SPACE)
            if tail in markers and tail:
                self._say(rest[:start])
                self._held = rest[start:]
                return tail
            if any(marker.startswith(tail) for marker in markers):
                break
            start += 1
        self._say(rest[:start])
        self._held = rest[start:]
        return ""

    # -- calls -----------------------------------------------------------------------------------------------------

    def _begin(self, bare: bool) -> None:
        """Calls begin here; what was held is theirs until they turn out to be none."""
        self._read, self._open, self._between, self._sent = self._calling, ["" if bare else "marker"], False, False

    def _calling(self, char: str) -> None:
        self._held += char
        if self._call is not None:
            self._object(char)
        elif char in SPACE:
            pass
        elif self._between:
            self._after(char)
        elif self._is_list and len(self._open) == 1 and char == "[":
            self._open.append(char)
        elif char == "{" and len(self._open) == 1 + self._is_list:
            self._call = Call(bare=not self._open[0])
            self._object(char)
        else:
            self._break()

    @property
    def _is_list(self) -> bool:
        return self._syntax is not None and self._syntax.form == "list"

    def _object(self, char: str) -> None:
        call, syntax = self._call, self._syntax
        assert call is not None and syntax is not None
        if not call.push(char):
            self._break()
            return
        if call.started and call.name is not None:
            arguments = call.fetch()
            if not self._sent:
                self._emit(ToolCall(self._calls, syntax.new_id(), call.name, arguments))
                self._calls, self._sent, self._held = self._calls + 1, True, ""
            elif arguments:
                self._emit(ToolCall(self._calls - 1, None, None, arguments))
                self._held = ""
        if call.done:
            self._call, self._between, self._held = None, True, ""

    def _after(self, char: str) -> None:
        """Between the end of a call and the next one, or their end."""
        assert self._syntax is not None
        form, tail = self._syntax.form, self._held.strip(SPACE)
        if form == "tagged":
            if tail == self._syntax.close:
                self._done()
            elif not self._syntax.close.startswith(tail):
                self._break()
        elif tail == {"list": ",", "chain": ";"}[form]:
            self._between, self._sent = False, False
        elif form == "list" and tail == "]":
            self._done()
        elif form == "list":
            self._break()
        else:  # a chain ends with whatever does not continue it
            self._done()
            self._read(char)

    def _done(self) -> None:
        self._held, self._read, self._trim, self._call = "", self._text, True, None

    def _break(self) -> None:
        """This is no call: what is held is content."""
        held, self._held = self._held, ""
        self._read, self._call = self._text, None
        self._say(held)
