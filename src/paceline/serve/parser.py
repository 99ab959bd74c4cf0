"""Parts of an answer."""

from dataclasses import dataclass


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
