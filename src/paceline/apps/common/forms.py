"""What an answer may be: how a server is asked to keep to it, and how the text becomes a value.

`parse` checks again what the server promised, since a server may not keep to it and an answer may be cut off.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from .schema import problem

T_co = TypeVar("T_co", covariant=True)
M = TypeVar("M", bound=BaseModel)
WRAP = re.compile(r'^\s*\{\s*"answer"\s*:\s*"?')
"""The beginning of an answer that other servers wrap into an object, since they know no bare word."""


class Form(Protocol[T_co]):
    """One kind of answer."""

    @property
    def words(self) -> tuple[str, ...]:
        """All possible answers, where there are few; else empty."""

    def wire(self, native: bool) -> dict[str, Any]:
        """Fields of the request's body; `native` where the server knows Paceline's `grammar`, else OpenAI's only."""

    def parse(self, text: str, native: bool) -> T_co:
        """The value. Raises ValueError, whose text can be shown to the model."""


@dataclass(frozen=True, slots=True)
class AppText:
    """Any text."""

    words: tuple[str, ...] = ()

    def wire(self, native: bool) -> dict[str, Any]:
        return {}

    def parse(self, text: str, native: bool) -> str:
        return text


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.words or len(set(self.words)) < len(self.words) or not all(self.words):
            raise ValueError(f"Choice needs different words, none of them empty, but has {self.words!r}.")

    def wire(self, native: bool) -> dict[str, Any]:
        if native:
            return regex_grammar("(" + "|".join(map(escaped, self.words)) + ")")
        return wrapped({"type": "string", "enum": list(self.words)})

    def parse(self, text: str, native: bool) -> str:
        word = text if native else unwrapped(text)
        if word.strip() in self.words:
            return word.strip()
        raise ValueError(f"{word[:80]!r} is not one of {', '.join(self.words)}")


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that a regular expression matches as a whole."""

    pattern: str
    words: tuple[str, ...] = ()

    def wire(self, native: bool) -> dict[str, Any]:
        return regex_grammar(self.pattern) if native else wrapped({"type": "string", "pattern": f"^({self.pattern})$"})

    def parse(self, text: str, native: bool) -> str:
        found = text if native else unwrapped(text)
        if re.fullmatch(self.pattern, found):
            return found
        raise ValueError(f"{found[:80]!r} does not match {self.pattern}")


@dataclass(frozen=True, slots=True)
class Json(Generic[M]):
    """An object as a pydantic model has it, with no field more. Fields are written in the model's order, so that
    reasoning can come first."""

    model: type[M]
    words: tuple[str, ...] = ()

    def wire(self, native: bool) -> dict[str, Any]:
        return schema_format(self.model.__name__, closed(self.model.model_json_schema()))

    def parse(self, text: str, native: bool) -> M:
        try:
            return self.model.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the answer"
            raise ValueError(f"{where}: {first['msg']}") from error


@dataclass(frozen=True, slots=True)
class AppSchema:
    """JSON as a schema describes it, where no pydantic model does."""

    schema: Mapping[str, Any]
    words: tuple[str, ...] = ()

    def wire(self, native: bool) -> dict[str, Any]:
        return schema_format("answer", self.schema)

    def parse(self, text: str, native: bool) -> Any:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the answer is not JSON: {error}") from error
        if wrong := problem(value, self.schema):
            raise ValueError(wrong)
        return value


def choice(*words: str) -> Choice:
    """`choice("yes", "no")`."""
    return Choice(words)


def schema_format(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    body = {"name": name, "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": body}}


def closed(schema: Any) -> Any:
    """A schema whose objects have no fields but their own: small models write further ones until they are cut off."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    ends = {"additionalProperties": False} if "properties" in schema else {}
    return {**ends, **{key: closed(value) for key, value in schema.items()}}


def regex_grammar(pattern: str) -> dict[str, Any]:
    return {"grammar": {"kind": "regex", "text": pattern}}


def escaped(word: str) -> str:
    """The word as a regular expression, escaping only what must be: dialects differ on escaped letters and spaces."""
    return re.sub(r"([\\.^$*+?{}\[\]|()/])", r"\\\1", word)


def wrapped(schema: Mapping[str, Any]) -> dict[str, Any]:
    inner = {"type": "object", "properties": {"answer": schema}, "required": ["answer"], "additionalProperties": False}
    return schema_format("answer", inner)


def unwrapped(text: str) -> str:
    try:
        answer = json.loads(text)["answer"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{text[:80]!r} is not an object with an answer") from error
    if not isinstance(answer, str):
        raise ValueError(f"the answer {answer!r} is no text")
    return answer
