"""What a chat template reads as a message's content: a text, or a list of parts. It is found by trying, as templates
are programs; a message that would be left out of the prompt is refused."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from paceline.core.errors import InputError
from paceline.engine.templates import EndlessTemplateError

Message = Mapping[str, Any]
Render = Callable[[list[Message]], str]
ONE, TWO = "Yb7qOne", "Yb7qTwo"
"""Words that no template has."""
RAW = re.compile(rf"""["']text["']\s*:\s*["']{ONE}""")
"""A part that was written out as it is."""
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}


class RoleForm(NamedTuple):
    """What of a role's content is seen in the prompt."""

    text: bool
    parts: bool
    several: bool = True
    """True if all of several parts are seen."""


def form(render: Render, role: str) -> RoleForm:
    """Try both. A template that refuses the trial tells nothing, and is taken to read texts."""
    text = _tried(render, role, ONE)
    one, two = ({"type": "text", "text": word} for word in (ONE, TWO))
    single, both = _tried(render, role, [one]), _tried(render, role, [one, two])
    if text is None and single is None:
        return RoleForm(True, False)
    return RoleForm(ONE in (text or ""), _seen(single, ONE), _seen(both, ONE, TWO))


def _seen(prompt: str | None, *words: str) -> bool:
    return prompt is not None and all(word in prompt for word in words) and not RAW.search(prompt)


def _tried(render: Render, role: str, content: Any) -> str | None:
    mine, ask = {"role": role, "content": content}, {"role": "user", "content": "q"}
    if role == "tool":
        called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
        trials: list[list[Message]] = [[ask, called, {**mine, "tool_call_id": CALL["id"], "name": "f"}]]
    elif role == "assistant":
        trials = [[ask, mine, ask], [ask, mine]]
    else:
        trials = [[mine]] if role == "user" else [[mine, ask], [mine]]
    for trial in trials:
        try:
            return render(trial)
        except EndlessTemplateError:
            raise
        except Exception:
            continue
    return None


def shaped(message: Message, form: RoleForm) -> Message:
    """The message with its content as the template reads it. Raises InputError where it would not be seen."""
    content = message.get("content")
    if content is None or content == "":
        return {**message, "content": [{"type": "text", "text": ""}] if form.parts and not form.text else ""}
    if not (form.text or form.parts):
        raise InputError(
            f"messages has one of role {message.get('role')!r}, which this model's chat template does not show; put "
            "its content into a message of role user."
        )
    if isinstance(content, str):
        return message if form.text else {**message, "content": [{"type": "text", "text": content}]}
    if (form.parts and form.several) or not all(_is_text(part) for part in content):
        return message
    joined = "\n".join(part["text"] for part in content)
    return {**message, "content": joined if form.text else [{"type": "text", "text": joined}]}


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def shape_all(messages: Sequence[Message], of: Callable[[str], RoleForm]) -> list[dict[str, Any]]:
    """Every message as the template reads it. `of`: a role's form."""
    return [dict(shaped(message, of(str(message.get("role"))))) for message in messages]
