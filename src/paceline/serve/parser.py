"""An answer's parts: reasoning, tool calls and what is left. One parser for all models, by a table of syntaxes.

    <think> reasoning </think> content <tool_call> {"name": ..., "arguments": {...}} </tool_call>

It reads character by character, so that no result depends on how the text was cut into pieces: a speculative step
brings several tokens at once. Arguments are passed on as they come. Nothing is lost: what turns out not to be a call is
content, with its markers; of a call that breaks after it was passed on, what follows is content. White space next to
calls and reasoning is layout and goes.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from paceline.core.errors import RefusalError
from paceline.serve.call import CallReader
from paceline.serve.json_reader import JSON_SPACE
from paceline.serve.syntax import END_THINK, SYNTAXES, THINK, Syntax, opens_reasoning, syntax_of


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
FENCE = "```"
"""A block of code begins and ends with it."""
MOST_LAYOUT = 256
"""Characters of white space that may turn out to be layout; of more, these are content."""
MOST_UNNAMED = 16_384
"""Characters of a call until its name is known, and of what stands between its parts; with more it is none."""


class AnswerParser:
    """Reads one answer. `feed` what comes, then `finish`."""

    def __init__(
        self,
        syntax: Syntax | None,
        *,
        reasoning: bool = False,
        opened: bool = False,
        ends: Sequence[str] = (),
        names: Collection[str] = (),
    ) -> None:
        """`syntax`: of tool calls, None to leave them alone. `opened`: the answer begins inside <think>. `ends`: texts
        of the tokens that end an answer, where they come with it. `names`: of functions that are called without a
        marker, too: by an object with which the answer begins, or one in a fenced block."""
        self._names = names if syntax else ()
        self._syntax, self._reasoning, self._ends = syntax, reasoning, tuple(ends)
        signs = "".join(it[:1] for it in (syntax.marker if syntax else "", THINK, FENCE, *ends))
        self._plain = re.compile(rf"[^{re.escape(JSON_SPACE + '{[' + signs)}]+")
        """Text in which nothing begins that could be more than text."""
        self._read = self._think if reasoning and opened else self._text
        self._out: list[Delta] = []
        self._held = ""
        """Text that may turn out to be white space next to a marker, a marker or a call."""
        self._head = 0
        """Characters of it up to the end of the marker behind which calls are read."""
        self._fresh = True
        """No content yet."""
        self._trim = self._read == self._think
        """Does white space go here?"""
        self._call: CallReader | None = None
        self._bare = self._fenced = self._listed = self._between = self._worded = False
        """State of the calls that are being read: they have no marker; they are in a fenced block; their list is open;
        one call is done and the next has not begun; the word behind the fence has ended."""
        self._calls = 0
        self._sent = False
        """Was the call that is read passed on?"""

    @classmethod
    def for_model(
        cls,
        chat_template: str,
        tools: bool,
        reasoning: bool,
        *,
        prompt: str | None = None,
        ends: Sequence[str] = (),
        begun: str = "",
        names: Collection[str] = (),
    ) -> "AnswerParser":
        """For the answers of a model with this template. `prompt`: the rendered one, which tells for sure whether it
        opened <think>. `begun`: the part of the answer that the client wrote, perhaps up to within a thought.
        RefusalError for `tools` of a model whose calls would not be understood."""
        syntax = syntax_of(chat_template) if tools else None
        if tools and syntax is None:
            raise RefusalError(
                "tools cannot be served: this model's chat template shows none of the tool call syntaxes "
                f"{', '.join(syntax.name for syntax in SYNTAXES)}; describe the tools in a message instead."
            )
        opened = opens_reasoning(chat_template) if prompt is None else prompt.rstrip().endswith(THINK)
        thought = begun.rfind(THINK) > begun.rfind(END_THINK)
        made = cls(syntax, reasoning=reasoning, opened=opened or thought, ends=ends, names=names)
        made._trim = made._trim and not (thought and begun.rpartition(THINK)[2].strip())
        return made

    @property
    def cut(self) -> bool:
        """A call was passed on and has not ended: the answer was cut inside it."""
        return self._read == self._calling and self._sent

    def feed(self, text: str) -> list[Delta]:
        """The parts that this piece of text completes, perhaps none."""
        self._feed(text)
        return self._take()

    def _feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            reads_text = not self._held and not self._trim and self._read in (self._text, self._think)
            if reads_text and (plain := self._plain.match(text, at)):
                self._say(plain[0])
                at = plain.end()
            else:
                self._read(text[at])
                at += 1

    def finish(self) -> list[Delta]:
        """Return what was held back. Call once, at the end."""
        inside_a_call = self._read == self._calling and (self._sent or self._between)
        if not inside_a_call and self._read != self._over:  # of a call that was passed on only layout is left
            end = next((end for end in self._ends if self._held.endswith(end)), "")
            self._say(self._held.removesuffix(end))
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
            self._fresh = self._fresh and not text.strip(JSON_SPACE)
            self._emit(Content(text))

    # -- text ------------------------------------------------------------------------------------------------------

    def _text(self, char: str) -> None:
        syntax = self._syntax
        if self._skip(char) or self._blank(char):
            return
        opening = syntax.bare or ("{" if self._names else "") if syntax else ""
        if opening and self._fresh and self._held.strip(JSON_SPACE) == opening:
            self._begin(bare=True)
            self._held = self._held[:-1]
            self._calling(char)
            return
        markers = [
            *self._ends,
            *([syntax.marker] if syntax else []),
            *([FENCE] if self._names else []),
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
            self._begin(bare=found == FENCE, fenced=found == FENCE)

    def _think(self, char: str) -> None:
        if self._skip(char) or self._blank(char):
            return
        found = self._marker([END_THINK, *self._ends])
        if found == END_THINK:
            self._held, self._read, self._trim = "", self._text, True
        elif found:
            self._say(self._held[: -len(found)])
            self._read = self._over

    def _over(self, char: str) -> None:
        """After the end."""

    def _skip(self, char: str) -> bool:
        self._trim = self._trim and char in JSON_SPACE
        return self._trim

    def _blank(self, char: str) -> bool:
        """Hold a character; True where white space is held and nothing else, which is no marker yet."""
        self._held += char
        if char not in JSON_SPACE or self._held.strip(JSON_SPACE):
            return False
        if len(self._held) >= MOST_LAYOUT:
            self._say(self._held)
            self._held = ""
        return True

    def _marker(self, markers: Sequence[str]) -> str:
        """The marker that ends the held text, if one does; else text that cannot belong to one is said."""
        rest = self._held
        start = 0
        while start < len(rest):
            tail = rest[start:].lstrip(JSON_SPACE)
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

    def _begin(self, bare: bool, fenced: bool = False) -> None:
        """Calls begin here; what was held is theirs until they turn out to be none."""
        self._read, self._head = self._calling, len(self._held)
        self._bare, self._fenced, self._worded = bare, fenced, False
        self._listed, self._between, self._sent = False, False, False

    def _calling(self, char: str) -> None:
        self._held += char
        if len(self._held) > MOST_UNNAMED:
            self._break()
        elif self._call is not None:
            self._object(char)
        elif char in JSON_SPACE:
            self._worded = True
        elif self._between:
            self._after(char)
        elif self._fenced and char.isalpha() and not self._worded:
            pass  # the name of a language
        elif self._is_list and not self._listed and char == "[":
            self._listed = True
        elif char == "{" and (self._fenced or self._listed is self._is_list or self._unmarked):
            self._call = CallReader(self._bare, self._names)
            self._object(char)
        else:
            self._break()

    @property
    def _is_list(self) -> bool:
        return self._syntax is not None and self._syntax.form == "list"

    @property
    def _unmarked(self) -> bool:
        """Are these calls of a syntax that wants a marker, without one?"""
        return self._bare and self._syntax is not None and not self._syntax.bare

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
                self._calls, self._sent, self._held, self._head = self._calls + 1, True, "", 0
            elif arguments:
                self._emit(ToolCall(self._calls - 1, None, None, arguments))
                self._held = ""
        if call.done:
            self._call, self._between, self._held = None, True, ""

    def _after(self, char: str) -> None:
        """Between the end of a call and the next one, or their end."""
        assert self._syntax is not None
        form, tail = self._syntax.form, self._held.strip(JSON_SPACE)
        if self._fenced or self._unmarked:
            if tail == "{":
                self._between, self._sent, self._call = False, False, CallReader(True, self._names)
                self._object(char)
            elif self._fenced and FENCE.startswith(tail):
                if tail == FENCE:
                    self._done()
            else:
                self._done()
                for each in tail:
                    self._read(each)
        elif form == "tagged":
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
        """This is no call: the marker is content, and what came behind it is read as text."""
        held, self._held = self._held, ""
        self._read, self._call = self._text, None
        self._say(held[: self._head])
        self._feed(held[self._head :])
