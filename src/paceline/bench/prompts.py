"""Prompts for the benchmark from JSON lines: GSM8K, HumanEval, Spec-Bench, or plain {"prompt": ...}."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import InputError

if TYPE_CHECKING:
    from paceline.engine.text import Text

PROMPT_FIELDS = ("prompt", "question", "turns")
"""HumanEval and plain, GSM8K, Spec-Bench (of which the first turn is used)."""


def read_text(path: Path) -> str:
    """A UTF-8 file. Raises InputError, naming the byte, for any other encoding."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a file of UTF-8 text.") from None
    return decode(raw, str(path))


def decode(raw: bytes, name: str) -> str:
    """UTF-8 bytes as text, without a byte order mark."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}; save it as UTF-8 text."
        ) from None


def read_prompts(path: Path, limit: int | None = None) -> list[str]:
    """The first `limit` prompts (None: all) of a file of JSON lines. Raises InputError naming the line."""
    prompts: list[str] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if len(prompts) == limit:
            break
        if line.strip():
            prompts.append(_prompt(line, f"{path}, line {number}"))
    if not prompts:
        raise InputError(f"{path} holds no prompts; give one JSON object a line with {_fields()}.")
    return prompts


def _prompt(line: str, place: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InputError(f"{place} does not parse as JSON ({error}); give one JSON object a line.") from None
    found: Any = next((entry[f] for f in PROMPT_FIELDS if f in entry), None) if isinstance(entry, dict) else None
    prompt = found[0] if isinstance(found, list) and found else found
    if not isinstance(prompt, str) or not prompt:
        raise InputError(f"{place} has no prompt; expected is an object with {_fields()}.")
    return prompt


def _fields() -> str:
    return " or ".join(f'"{f}"' for f in PROMPT_FIELDS)


def encode(text: "Text", prompt: str, chat: bool | None = None) -> list[int]:
    """Token ids of a prompt: through the chat template (None: where the checkpoint has one), or as it stands."""
    if has_template(text) if chat is None else chat:
        return text.chat([{"role": "user", "content": prompt}])
    return text.encode(prompt)


def has_template(text: "Text") -> bool:
    return bool(getattr(text.tokenizer, "chat_template", None))
