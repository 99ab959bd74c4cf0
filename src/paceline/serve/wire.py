"""What all bodies have in common: null is the same as not given, nothing unknown is let through, and a body that is
wrong fails at its first fault, however many it has."""

import logging
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, GetCoreSchemaHandler, StringConstraints, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from paceline.core.grammar import MOST_DEPTH

T = TypeVar("T")
log = logging.getLogger("paceline")
MOST_TOLD = 256
"""Names of unknown parameters that are logged."""
MAX_LABEL_CHARS = 512
"""Characters of a name or a label."""
ENTRIES = 1024
"""Entries of an object, where its field does not say."""
ITEMS = 20_000
"""Values within one of any kind, at all levels together."""
Label = Annotated[str, StringConstraints(max_length=MAX_LABEL_CHARS)]
Ids = list[int]
SEQUENCES = ("list", "tuple", "set", "frozenset", "generator")
NO_SCHEMA = ("metadata", "serialization", "default", "expected")


def bounded(schema: Any) -> Any:
    """The core schema whose lists end at their first fault and whose objects have a most of entries, counted before
    one is looked at."""
    if isinstance(schema, list | tuple):
        return type(schema)(bounded(each) for each in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if not isinstance(kind, str):  # schemas by the names of fields, which may be any
        return {name: bounded(each) for name, each in schema.items()}
    made = {key: value if key in NO_SCHEMA else bounded(value) for key, value in schema.items()}
    if kind in SEQUENCES:
        made["fail_fast"] = True
    if kind == "dict" and "counted" not in marks(made):
        most = made.get("max_length", ENTRIES)
        inner = {**made, "metadata": {**made.get("metadata", {}), "counted": True}}
        return core_schema.no_info_before_validator_function(few(most), inner)
    return made


def marks(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema.get("metadata") or {}
    return found


def few(most: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise PydanticCustomError("too_many", "too many", {"most": most})
        return value

    return check


class Wire(BaseModel):
    """A body, or an object within one. `bounded` is applied to the schema of every model."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        made: CoreSchema = bounded(handler(source))
        return made

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        """Let go of nulls, and refuse the first name that is unknown."""
        if not isinstance(data, dict):
            return data
        names = {field.alias or name for name, field in cls.model_fields.items()}
        given = {name: value for name, value in data.items() if value is not None}
        unknown = [name for name in given if name not in names]
        if unknown and not leniency.on:
            raise PydanticCustomError("unknown_parameter", "unknown", {"name": str(unknown[0])})
        for name in unknown:
            leniency.let_go(str(name), given.pop(name))
        return given


class Leniency:
    """Treatment of unknown names in bodies: refused, or with `on` let go and logged once each."""

    def __init__(self) -> None:
        self.on = False
        self._told: set[str] = set()

    def let_go(self, name: str, value: Any) -> None:
        if name not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(name)
            log.warning("A request has the unknown parameter %r, which is ignored (said once).", name[:60])


leniency = Leniency()
"""Setting of this process: `--unknown-parameters warn` switches it on."""


def check_depth(value: T) -> T:
    """`value`, unless it is nested too deeply to be written again, or has too many values within it."""
    left: list[Iterator[Any]] = [iter((value,))]
    items = 0
    while left:
        for part in left[-1]:
            if isinstance(part, dict | list):
                items += len(part)
                if items > ITEMS:
                    raise PydanticCustomError("too_many", "too many", {"most": ITEMS})
                if len(left) > MOST_DEPTH:
                    raise PydanticCustomError("too_deep", "too deep")
                left.append(iter(part.values() if isinstance(part, dict) else part))
                break
        else:
            left.pop()
    return value


Loose = Annotated[Any, AfterValidator(check_depth)]
"""Any JSON value that is not nested too deeply to be written again."""
Shallow = Annotated[dict[str, Any], AfterValidator(check_depth)]
"""Any JSON object that is not nested too deeply to be written again."""
