"""OpenAI's harmony format (gpt-oss): an answer is several messages, each with a channel and perhaps a recipient.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

analysis is reasoning; commentary to a function is a call of it; final, and commentary to nobody, are content. As in
parser.py, characters are read one by one, so that no result depends on how the text was cut, and nothing is lost: what
has no such form is content.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from paceline.serve.parser import Content, Delta, Reasoning, ToolCall
from paceline.serve.syntax import SYNTAXES

START_MARK, CHANNEL_MARK, MESSAGE_MARK, CONSTRAIN_MARK = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END_MARK, RETURN_MARK, CALL_MARK = "<|end|>", "<|return|>", "<|call|>"
HARMONY_MARKS = (START_MARK, CHANNEL_MARK, MESSAGE_MARK, CONSTRAIN_MARK, END_MARK)
SPEAKER = f"{START_MARK}assistant"
"""End of a conversation where an answer begins."""
FINAL_HEAD = f"{CHANNEL_MARK}final{MESSAGE_MARK}"
LAST_MARKS = (RETURN_MARK, CALL_MARK)
"""Markers that end an answer."""
HEAD_OPENINGS = (CHANNEL_MARK, "to=", SPEAKER, MESSAGE_MARK, CONSTRAIN_MARK)
"""Beginnings of a message's head."""
BODY_ENDS = (END_MARK, *LAST_MARKS, START_MARK, CHANNEL_MARK)
MAX_HEAD = 300
"""Characters of a message's head."""
RECIPIENT_PATTERN = re.compile(r"to=([^\s<]+)")
CHANNEL_PATTERN = re.compile(re.escape(CHANNEL_MARK) + r"\s*(\w+)")
FUNCTION_PREFIX = "functions."


def speaks(template: str) -> bool:
    """Does a model with this chat template write so?"""
    return all(sign in template for sign in (START_MARK, CHANNEL_MARK, MESSAGE_MARK))


def called(name: str) -> str:
    """How the call of a function begins."""
    return f"{CHANNEL_MARK}commentary to={FUNCTION_PREFIX}{name} {CONSTRAIN_MARK}json{MESSAGE_MARK}"


def conversation(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as the template has them: with one call each, followed by the call's result."""
    made, left = list[dict[str, Any]](), deque(remembered(message) for message in messages)
    while left:
        message = left.popleft()
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            made.append(message)
            continue
        answers = dict[Any, list[dict[str, Any]]]()
        while left and left[0]["role"] == "tool":
            answer = left.popleft()
            answers.setdefault(answer.get("tool_call_id"), []).append(answer)
        for number, call in enumerate(calls):
            mine = answers.pop(call["id"], []) if call.get("id") else []
            first = message if number == 0 else {"role": "assistant", "content": ""}
            made += [{**first, "tool_calls": [call]}, *mine]
        made += [answer for others in answers.values() for answer in others]
    return made


def remembered(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as the template has it: texts, and reasoning under `thinking`; next to calls it takes the content's
    place, too."""
    made = dict(message)
    if isinstance(parts := made.get("content"), list):
        made["content"] = "".join(part["text"] for part in parts)
    thought = made.pop("reasoning_content", None)
    if made.get("tool_calls") and thought and (content := made.get("content")):
        made["content"], thought = "", f"{thought}\n{content}"
    return {**made, "thinking": thought} if thought else made


class HarmonyVoice:
    """Implements `Voice`."""

    def __init__(self, tools: bool, *, opened: bool = True, new_id: Callable[[], str] = SYNTAXES[0].new_id) -> None:
        """`tools`: calls are read as calls, not as content. `opened`: a message's head comes first; else content."""
        self._tools, self._new_id = tools, new_id
        self._read = self._head if opened else self._body
        self._kind: type[Content] | type[Reasoning] | type[ToolCall] = Content
        self._held, self._arguments = "", list[str]()
        self._calls, self._inside = 0, False
        self._said: set[type] = set()
        self._out: list[Delta] = []
        self._new = False
        """A message has begun that said nothing yet."""

    @property
    def cut(self) -> bool:
        """The answer was cut inside a call."""
        return self._inside and not whole("".join(self._arguments))

    def feed(self, text: str) -> list[Delta]:
        for char in text:
            self._read(char)
        return self._take()

    def finish(self) -> list[Delta]:
        """Return what was held back. Call once, at the end."""
        if self._read == self._head and CHANNEL_MARK in self._held:
            self._held = ""  # a head that was cut says nothing
        self._say(self._held)
        self._held = ""
        if self._inside and not self._arguments:
            self._say("{}")
        return self._take()

    def _take(self) -> list[Delta]:
        out, self._out = self._out, []
        return out

    def _head(self, char: str) -> None:
        self._held += char
        shown = self._held.strip()
        if shown.endswith(MESSAGE_MARK):
            self._begin(self._held)
        elif len(self._held) > MAX_HEAD or (
            shown and not any(it.startswith(shown) or shown.startswith(it) for it in HEAD_OPENINGS)
        ):
            held, self._held = self._held, ""
            self._kind, self._read, self._new = Content, self._body, True
            for each in held:
                self._body(each)

    def _begin(self, head: str) -> None:
        """A message, by its head."""
        self._held, self._read, self._new = "", self._body, True
        found, channel = RECIPIENT_PATTERN.search(head), CHANNEL_PATTERN.search(head)
        self._kind = Reasoning if channel is not None and channel[1] == "analysis" else Content
        if found is not None and self._tools:
            self._kind, self._inside, self._arguments = ToolCall, True, []
            self._out.append(ToolCall(self._calls, self._new_id(), found[1].removeprefix(FUNCTION_PREFIX), ""))
            self._calls += 1

    def _body(self, char: str) -> None:
        self._held += char
        end = next((it for it in BODY_ENDS if self._held.endswith(it)), None)
        if end is not None:
            self._say(self._held.removesuffix(end))
            self._close()
            self._held = end if end in (START_MARK, CHANNEL_MARK) else ""
            self._read = self._over if end in LAST_MARKS else self._head
            return
        kept = max((n for it in BODY_ENDS for n in range(1, len(it)) if self._held.endswith(it[:n])), default=0)
        self._say(self._held[: len(self._held) - kept])
        self._held = self._held[len(self._held) - kept :]

    def _close(self) -> None:
        if self._inside and not self._arguments:
            self._say("{}")
        self._inside = False

    def _over(self, char: str) -> None:
        """After the end."""

    def _say(self, text: str) -> None:
        """Text of the message that is read; messages of one kind stand on lines of their own."""
        if not text:
            return
        if self._kind is ToolCall:
            self._arguments.append(text)
            last = self._out[-1] if self._out else None
            if isinstance(last, ToolCall):
                self._out[-1] = replace(last, arguments_delta=last.arguments_delta + text)
            else:
                self._out.append(ToolCall(self._calls - 1, None, None, text))
            return
        kind = Reasoning if self._kind is Reasoning else Content
        if self._new and kind in self._said:
            text = f"\n{text}"
        self._new = False
        self._said.add(kind)
        last = self._out[-1] if self._out else None
        if isinstance(last, kind):
            self._out[-1] = kind(last.text + text)
        else:
            self._out.append(kind(text))


def whole(arguments: str) -> bool:
    """Are these the arguments of a call that has ended?"""
    try:
        orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return False
    return True
