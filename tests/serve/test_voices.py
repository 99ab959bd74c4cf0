"""What a text becomes does not depend on how it is cut."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from paceline.serve.chat import message
from paceline.serve.voices import Named, Plain, Required, Voice

VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)
SPACE = st.sampled_from(["", " ", "\n  "])


def read(voice: Voice, text: str, cuts: list[int]) -> dict[str, object]:
    """The message that the voice makes of `text`, cut at `cuts`."""
    at = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    deltas = [d for start, end in pairwise(at) for d in voice.feed(text[start:end])]
    return message([*deltas, *voice.finish()])


@given(arguments=ARGUMENTS, space=SPACE, cuts=st.lists(st.integers(0, 80)))
def test_a_required_call(arguments: dict[str, object], space: str, cuts: list[int]) -> None:
    inner = json.dumps(arguments, ensure_ascii=False)
    text = f'{space}{{{space}"name"{space}:{space}"f.g-1"{space},{space}"arguments":{space}{inner}{space}}}'
    made = read(Required(), text, cuts)
    [call] = made["tool_calls"]  # type: ignore[misc]
    assert call["function"] == {"name": "f.g-1", "arguments": inner} and call["id"].startswith("call_")
    assert made["content"] is None


@given(cuts=st.lists(st.integers(0, 80)), end=st.integers(0, 40))
def test_a_call_that_was_cut_loses_nothing(cuts: list[int], end: int) -> None:
    text = '{"name": "f", "arguments": {"a": {"b": "} "}}}'[:-1][:end]
    made = read(Required(), text, cuts)
    if "tool_calls" in made:
        assert text.endswith(made["tool_calls"][0]["function"]["arguments"])  # type: ignore[index]
    else:
        assert made["content"] == text


@given(text=st.text(max_size=20), cuts=st.lists(st.integers(0, 20)))
def test_named_and_plain(text: str, cuts: list[int]) -> None:
    [call] = read(Named("f"), text, cuts)["tool_calls"]  # type: ignore[misc]
    assert call["function"] == {"name": "f", "arguments": text}
    assert read(Plain(), text, cuts) == {"role": "assistant", "content": text}
