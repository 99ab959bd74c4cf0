"""A check of JSON values against the part of JSON Schema that the applications use: what a server promised is looked at
again, since a server may not keep to it."""

import re
from collections.abc import Callable, Mapping
from typing import Any

JSON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "null": (type(None),),
    "integer": (int,), "number": (int, float),
}  # fmt: skip
BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "minLength": lambda value, bound: len(value) >= bound,
    "maxLength": lambda value, bound: len(value) <= bound,
    "minItems": lambda value, bound: len(value) >= bound,
    "maxItems": lambda value, bound: len(value) <= bound,
    "pattern": lambda value, bound: re.search(bound, value) is not None,
}
SIZED = {"minimum": (int, float), "maximum": (int, float), "minItems": (list,), "maxItems": (list,)}
SCHEMA_KEYS = {
    "type",
    "enum",
    "const",
    "anyOf",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "title",
    *BOUNDS,
}


def problem(value: Any, schema: Mapping[str, Any], where: str = "the answer") -> str | None:
    """What is wrong with a value, in words; None where it fits. Raises ValueError for a schema with other words."""
    if unknown := set(schema) - SCHEMA_KEYS:
        raise ValueError(f"This check does not know the schema's word {sorted(unknown)[0]!r}.")
    if "anyOf" in schema:
        found = [problem(value, each, where) for each in schema["anyOf"]]
        return None if None in found else found[0]
    if "const" in schema and not same(value, schema["const"]):
        return f"{where} is not {schema['const']!r}"
    if "enum" in schema and not any(same(value, each) for each in schema["enum"]):
        return f"{where} is {str(value)[:40]!r}, which is none of {', '.join(map(str, schema['enum']))}"
    kind = schema.get("type")
    if kind is not None and (
        not isinstance(value, JSON_TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")
    ):
        return f"{where} is no {kind}"
    for name, holds in BOUNDS.items():
        if name in schema and isinstance(value, SIZED.get(name, (str,))) and not holds(value, schema[name]):
            return f"{where} breaks {name} {schema[name]}"
    return inside(value, schema, where)


def inside(value: Any, schema: Mapping[str, Any], where: str) -> str | None:
    """What is wrong with an object's fields or a list's items."""
    if isinstance(value, list) and "items" in schema:
        found = (problem(each, schema["items"], f"{where}, item {at}") for at, each in enumerate(value, 1))
        return next((each for each in found if each is not None), None)
    if not isinstance(value, dict):
        return None
    properties = schema.get("properties", {})
    if lacking := [name for name in schema.get("required", ()) if name not in value]:
        return f"{where} lacks {lacking[0]}"
    if schema.get("additionalProperties") is False and (more := [name for name in value if name not in properties]):
        return f"{where} has the field {str(more[0])[:40]!r} beyond the schema"
    found = (problem(value[name], each, name) for name, each in properties.items() if name in value)
    return next((each for each in found if each is not None), None)


def same(value: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return isinstance(value, bool) is isinstance(other, bool) and bool(value == other)
