"""Every field of every body is bounded: found by reflection, so that a new field cannot be forgotten."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, Json, ValidationError, create_model
from pydantic_core import PydanticUndefined

from bench.attacks.fuzz import doors
from paceline.serve.errors import refused
from paceline.serve.protocol import ChatRequest
from paceline.serve.wire import ENTRIES, ITEMS, Wire

HOSTILE = 2000
FEW = 40
"""Faults of one body: one for each branch of its unions, not one for each item."""


def bodies() -> set[type[Wire]]:
    """The models of all routes of a server that take a body."""
    return {model for _, model in doors()}  # type: ignore[misc]


def subclasses(of: type[Wire]) -> Iterator[type[Wire]]:
    for each in of.__subclasses__():
        yield each
        yield from subclasses(each)


def schemas(part: Any) -> Iterator[dict[str, Any]]:
    """Every core schema within one."""
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            yield part
        for key, value in part.items():
            if key not in ("serialization", "default", "metadata") or not isinstance(part.get("type"), str):
                yield from schemas(value)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from schemas(each)


def check_core(base: type[BaseModel], kind: Any) -> str | None:
    """What is wrong with a model of this base that has such a field."""
    try:
        check_schema("Grown", create_model("Grown", __base__=base, field=(kind, ...)).__pydantic_core_schema__)
    except AssertionError as error:
        return str(error)
    return None


ALL = sorted(set(subclasses(Wire)), key=lambda model: model.__name__)


def test_every_route_takes_a_wire_model() -> None:
    assert bodies() <= set(ALL)
    assert len(bodies()) >= 18


def check_schema(name: str, schema: Any) -> None:
    """Fail for a core schema in which something has no bound."""
    found = list(schemas(schema))
    counted = {id(each["schema"]) for each in found if each["type"] == "function-before"}
    guarded = {id(part) for each in found if each["type"] == "function-after" for part in schemas(each["schema"])}
    for each in found:
        if each["type"] in ("list", "tuple", "set", "frozenset", "generator"):
            assert each.get("fail_fast"), each
        elif each["type"] == "dict":
            assert id(each) in counted, each
        elif each["type"] == "any":
            assert id(each) in guarded, f"{name} has a value of any depth"
        assert each["type"] not in ("model", "typed-dict", "dataclass") or issubclass(each.get("cls", Wire), Wire), each
        assert each["type"] not in ("json", "is-instance", "custom-error", "call"), each


@pytest.mark.parametrize("model", ALL, ids=lambda model: model.__name__)
def test_schema_is_bounded(model: type[Wire]) -> None:
    check_schema(model.__name__, model.__pydantic_core_schema__)


class Plain(BaseModel):
    x: int


@dataclass
class PlainData:
    x: int


@pytest.mark.parametrize(
    "kind",
    [Any, dict[str, Any], list[Any], Plain, list[Plain], dict[str, Plain], Plain | str, PlainData, Json[list[int]],
     Annotated[Any, Field(description="x")], tuple[Any, ...], Sequence[Any], Mapping[str, Any], list[dict[str, Any]]],
    ids=str,
)  # fmt: skip
def test_a_field_without_a_bound_is_found(kind: Any) -> None:
    made = create_model("Grown", __base__=Wire, field=(kind | None, None))
    with pytest.raises(AssertionError):
        check_schema("Grown", made.__pydantic_core_schema__)


@pytest.mark.parametrize("kind", [list[int], dict[str, list[int]], set[str], list[list[int]], tuple[int, ...]], ids=str)
def test_a_field_of_numbers_or_texts_gets_its_bound_by_itself(kind: Any) -> None:
    check_schema("Grown", create_model("Grown", __base__=Wire, field=(kind, ...)).__pydantic_core_schema__)
    assert check_core(BaseModel, kind) is not None, "and a model that is no Wire does not"


@pytest.mark.parametrize("value", [{str(i): 1 for i in range(ENTRIES + 1)}, {"a": [[1] * 100] * (ITEMS // 100)}])
def test_objects_of_any_values_have_a_most(value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": value})
    fault = refused(caught.value.errors()[0])
    assert fault.status == 400 and fault.message.startswith("chat_template_kwargs has too many entries; give at most")


HOSTILES: list[Any] = [
    [1] * HOSTILE,
    ["a", *[1] * HOSTILE],
    [[1], *[[None]] * HOSTILE],
    [{}] * HOSTILE,
    [{"type": "text", "text": 1}] * HOSTILE,
    [{"role": "user", "content": [{"type": "text"}] * 50}] * HOSTILE,
    {str(i): 1 for i in range(HOSTILE)},
    {str(i): [] for i in range(HOSTILE)},
]


@pytest.mark.parametrize("model", ALL, ids=lambda model: model.__name__)
def test_faults_do_not_grow_with_the_body(model: type[Wire]) -> None:
    for name, field in model.model_fields.items():
        for value in HOSTILES:
            others = {n: f.get_default(call_default_factory=True) for n, f in model.model_fields.items()}
            body = {n: v for n, v in others.items() if v not in (None, PydanticUndefined)} | {
                field.alias or name: value
            }
            try:
                model.model_validate(body)
            except ValidationError as error:
                assert error.error_count() <= FEW, (name, error.error_count())
