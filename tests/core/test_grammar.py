"""What is accepted as a grammar, and what the refusals say."""

import json
from typing import Any

import pytest

from paceline import Grammar, SamplingParams
from paceline.core.errors import InputError, RefusalError

USABLE = [
    ("json_schema", "{}"),
    ("json_schema", '{"type": "object", "properties": {"never": {"type": "string", "minLength": 2, "maxLength": 1}}}'),
    ("json_schema", '{"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}}'),
    ("json_object", ""),
    ("regex", "^(a|b)+$"),
    ("lark", 'start: "a" | start "b"'),
]


@pytest.mark.parametrize(("kind", "text"), USABLE)
def test_usable_grammars(kind: Any, text: str) -> None:
    grammar = Grammar(kind, text)
    assert grammar.source() and hash(grammar) == hash(Grammar(kind, text))


def nested(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "array", "items": schema}}}


UNUSABLE = [
    ("yaml", "a", "kind is 'yaml', but it must be json_schema"),
    ("regex", "", "must not be empty"),
    ("json_object", "{}", "must be empty"),
    ("json_schema", "{bad", "does not parse as JSON: .*line 1 column 2"),
    ("json_schema", "[1]", "must be an object"),
    ("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000, "nested too deeply"),
    ("json_schema", '{"items":' * 200 + "{}" + "}" * 200, "nested too deeply"),
    ("json_schema", '{"type": "objekt"}', "at its root: Invalid type: objekt"),
    ("json_schema", "false", "must be an object"),
    ("json_schema", '{"items": false, "minItems": 1, "type": "array"}', "at its root: .*item is unsatisfiable"),
    ("json_schema", json.dumps(nested({"pattern": "(", "type": "string"})), "at /properties/a/items: unclosed group"),
    ("json_schema", json.dumps(nested({"not": {}})), 'at /properties/a/items: Unimplemented keys: .*"not"'),
    ("json_schema", json.dumps(nested({"$ref": "#/nope"})), "'/nope' does not exist"),
    (
        "json_schema",
        json.dumps(
            {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer", "minimum": 3, "maximum": 2}}}
        ),
        "at /properties/x: .*minimum",
    ),
    ("regex", "ab{5,2}", r'at character 3 of the regex "ab\{5,2\}"'),
    ("regex", "a(?=b)", "look-around.* at character 2"),
    ("lark", 'start: "a" | b', "at 1\\(8\\): unknown name"),
    ("lark", 'begin: "a"', "no start rule"),
]


@pytest.mark.parametrize(("kind", "text", "message"), UNUSABLE, ids=range(len(UNUSABLE)))
def test_unusable_grammars_say_where(kind: Any, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Grammar(kind, text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_from_json_like_data() -> None:
    schema = {"type": "integer"}
    wish = SamplingParams.from_dict({"grammar": {"kind": "json_schema", "text": schema}, "max_tokens": 3})
    assert wish.grammar == Grammar("json_schema", json.dumps(schema))
    assert SamplingParams.from_dict({"grammar": {"kind": "json_object"}}).grammar == Grammar("json_object")
    assert SamplingParams.from_dict({"grammar": Grammar("json_object")}).grammar == Grammar("json_object")
    assert SamplingParams.from_dict({"grammar": None}).grammar is None
    for wrong in ("a+", {"text": "a"}, {"kind": "regex", "text": "a", "flags": "i"}, {"kind": ["regex"], "text": "a"}):
        with pytest.raises(InputError, match="grammar"):
            SamplingParams.from_dict({"grammar": wrong})


def test_parameters_that_cannot_go_with_it() -> None:
    with pytest.raises(RefusalError, match="grammar and ignore_eos"):
        SamplingParams(grammar=Grammar("regex", "a"), ignore_eos=True)
    with pytest.raises(InputError, match="grammar is of type str"):
        SamplingParams(grammar="a+")  # type: ignore[arg-type]


def test_a_schema_that_is_no_json() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"items": deep}
    for schema in (deep, {"const": object()}):
        with pytest.raises(InputError, match="The JSON schema is not JSON"):
            Grammar.of({"kind": "json_schema", "text": schema})
