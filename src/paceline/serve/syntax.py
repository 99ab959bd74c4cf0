"""How families of models write tool calls and reasoning, and which of them a chat template belongs to."""

import re
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4


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


MISTRAL = Syntax("mistral", ("[TOOL_CALLS]",), "[TOOL_CALLS]", "list", unless="[ARGS]", id_prefix="", id_digits=9)
SYNTAXES = (
    Syntax("hermes", ("<tool_call>",), "<tool_call>", "tagged", close="</tool_call>", unless="<function="),
    MISTRAL,
    Syntax("llama", ("<|python_tag|>", '{"name": function name, "parameters"'), "<|python_tag|>", "chain", bare="{"),
    Syntax("list", ("functools", "<|tool|>", '[{"name"', '[{\\"name\\"'), "functools", "list", bare="["),
)
"""Tool calls; the first whose sign a template has. Mistral's templates want ids of nine characters."""
THINK, END_THINK = "<think>", "</think>"


def syntax_of(template: str) -> Syntax | None:
    """The syntax of the calls that a model with this chat template writes, None where it is not one of the table's."""
    for syntax in SYNTAXES:
        if any(sign in template for sign in syntax.signs) and not (syntax.unless and syntax.unless in template):
            return syntax
    return None


def short_ids(template: str) -> bool:
    """Does it take ids of nine characters alone? Mistral's do, also those of calls that are read in no syntax here."""
    return MISTRAL.marker in template


def opens_reasoning(template: str) -> bool:
    """Does the template itself write <think> where an answer begins? (One that closes it again does not count.)"""
    tail = template.rpartition("add_generation_prompt")[2]
    return THINK in re.sub(rf"{THINK}(\s|\\n)*{END_THINK}", "", tail)
