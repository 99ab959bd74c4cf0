"""One call, character by character."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.serve.call import CallReader
from tests.serve.test_json_reader import VALUES

OBJECTS: Any = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)


@given(st.text(min_size=1), OBJECTS, st.integers(0, 5), st.sampled_from(["arguments", "parameters"]))
def test_the_arguments_are_the_text_that_was_written(name: str, arguments: Any, order: int, key: str) -> None:
    """Whatever the order of the fields, and with fields that mean nothing here."""
    fields = [("name", name), (key, arguments), ("x", [1.5, {"name": 0}])]
    turned = dict(fields[order % 3 :] + fields[: order % 3][:: -1 if order > 2 else 1])
    call, text = CallReader(bare=True), json.dumps(turned)
    fetched = ""
    for char in text:
        assert not call.done and call.push(char)
        fetched += call.fetch() if call.name is not None else ""
    assert call.done and call.name == name
    assert fetched == json.dumps(arguments)


def test_arguments_come_as_they_are_written() -> None:
    call = CallReader(bare=False)
    seen = []
    for char in '{"name":"f","arguments": {"a":[1]} }':
        assert call.push(char)
        seen.append(call.fetch())
    assert seen[:25] == [""] * 25 and seen[25:] == ["{", '"', "a", '"', ":", "[", "1", "]", "}", "", ""]


@pytest.mark.parametrize("text", ['{"name": "f"}', '{"name": "f", "id": 1}'])
def test_without_arguments_it_is_a_call_only_behind_a_marker(text: str) -> None:
    marked, bare = CallReader(bare=False), CallReader(bare=True)
    assert all(marked.push(char) for char in text) and marked.started and marked.fetch() == "{}"
    assert all(bare.push(char) for char in text[:-1]) and not bare.push("}")
