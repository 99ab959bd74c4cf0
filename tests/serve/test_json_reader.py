"""The reader against Python's own parser."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline.serve.json_reader import JsonReader

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
CHARACTERS = '{}[]",:\\ \n\t01-+.eEtruefalsn/buA\x01é'


def reads(text: str) -> bool:
    """Is it one whole object or array?"""
    reader = JsonReader()
    return all(reader.push(char) for char in text) and reader.want == "done"


def parses(text: str) -> bool:
    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return isinstance(json.loads(text, parse_constant=refuse), dict | list)
    except ValueError:
        return False


@given(VALUES.filter(lambda value: isinstance(value, dict | list)), st.sampled_from([None, 0, 2]), st.booleans())
def test_every_json_text_is_read(value: Any, indent: int | None, ascii: bool) -> None:
    assert reads(json.dumps(value, indent=indent, ensure_ascii=ascii))


@given(st.text(CHARACTERS, max_size=12))
@example("[01]")
@example("[1.]")
@example("[-]")
@example("[1e5, -0.5E-3]")
@example('["\\u00e9\\n"]')
@example('["\\u00g9"]')
@example('["\\x"]')
@example('["\n"]')
@example("[,]")
@example("[1,]")
@example('{"a":1,}')
@example('{"a" 1}')
@example("{1:2}")
@example("[tru]")
@example("[truer]")
@example("[٣]")
@example("[1٣]")
@example("[}")
@example("[] ")
@example("[]]")
def test_what_is_read_is_what_parses(text: str) -> None:
    body = (text if text[:1] in "{[" else "[" + text + "]").rstrip(" \t\n\r")
    assert reads(body) == parses(body)


@given(VALUES.filter(lambda value: isinstance(value, dict | list)), st.data())
def test_it_says_no_at_the_first_character_that_cannot_stand(value: Any, data: Any) -> None:
    """A prefix that was taken can be continued: one wrong character changes nothing before it."""
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text) - 1))
    reader = JsonReader()
    assert all(reader.push(char) for char in text[:at])
    assert reader.push(text[at])


@pytest.mark.parametrize("text", ['"a"', "1", "null", "}", "x"])
def test_only_objects_and_arrays_end(text: str) -> None:
    assert not reads(text)
