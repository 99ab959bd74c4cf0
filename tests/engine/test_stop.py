"""When a request ends, and that what was streamed never has to be taken back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.stop import Stopper

EOS = 256


class Letters:
    """A detokenizer whose tokens are characters, or texts registered above 300; EOS has the text `<eos>`."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def push(self, token: int) -> str:
        return "<eos>" if token == EOS else self.texts[token - 300] if token >= 300 else chr(token)

    def finish(self) -> str:
        return ""


def stopper(*texts, max_tokens=100, output=(), **params):
    eos, params = frozenset({EOS, 257}), SamplingParams(**params)
    request = Request(0, [1], params, 0, eos=eos, max_tokens=max_tokens, output=list(output))
    return Stopper(request, Letters(*texts))


def feed(it, tokens):
    """Push like the engine: until the first reason. Returns (tokens kept, reason, texts shown on the way)."""
    shown = []
    for n, token in enumerate(tokens, 1):
        reason = it.push(ord(token) if isinstance(token, str) else token)
        shown.append(it.text())
        if reason:
            return n, reason, shown
    return len(tokens), None, shown


@pytest.mark.parametrize("eos", [EOS, 257])
def test_every_listed_eos_stops(eos):
    it = stopper()
    assert feed(it, ["a", "b", eos, "c"])[:2] == (3, "stop") and it.text() == "ab"


def test_ignore_eos_keeps_the_stop_ids():
    it = stopper(ignore_eos=True, stop_token_ids=[ord("x")])
    assert feed(it, ["a", EOS, "b", "x"])[:2] == (4, "stop") and it.text() == "a<eos>b"


@pytest.mark.parametrize("params", [{"skip_special_tokens": False}, {"include_stop": True}], ids=str)
def test_text_of_the_stopping_token_on_request(params):
    it = stopper(**params)
    feed(it, ["a", EOS])
    assert it.text() == "a<eos>"


def test_length():
    it = stopper(max_tokens=3, stop="cd")
    assert feed(it, "abcd") == (3, "length", ["a", "ab", "abc"])
    assert feed(stopper(max_tokens=1), [EOS])[:2] == (1, "stop")


@pytest.mark.parametrize(
    ("stops", "include", "texts", "tokens", "kept", "text"),
    [
        ("lo w", False, (), "hello world", 7, "hel"),  # straddles tokens
        ("lo w", True, (), "hello world", 7, "hello w"),
        ("b", False, ("abc",), [300, "d"], 1, "a"),  # inside a token
        ("b", True, ("abc",), [300, "d"], 1, "ab"),
        (["cd", "b"], False, ("abcd",), [300], 1, "a"),  # the earliest match, whatever the list's order
        (["bcd", "c"], True, ("abcd",), [300], 1, "abc"),  # complete first, as if read letter by letter
        (["bcd", "c"], True, (), "abcd", 3, "abc"),
        (["bc", "c"], False, (), "abcd", 3, "a"),  # two end at one place: the longer
        ("aab", False, (), "aaab", 4, "a"),
        (["xy", "yz"], False, (), "axyz", 3, "a"),
    ],
)
def test_stop_strings(stops, include, texts, tokens, kept, text):
    it = stopper(*texts, stop=stops, include_stop=include)
    assert feed(it, tokens)[:2] == (kept, "stop") and it.text() == text


def test_held_back_until_decided():
    it = stopper(stop="stop")
    assert feed(it, "a stol s")[2] == ["a", "a ", "a ", "a ", "a ", "a stol", "a stol ", "a stol "]
    it.finish()
    it.finish()
    assert it.text() == "a stol s"


def test_min_tokens():
    """No kind of stop before that many tokens; a stop string inside the first ones never counts later."""
    params = {"min_tokens": 4, "stop": ["b", "cde"], "stop_token_ids": [ord("z")]}
    it = stopper(**params)
    assert feed(it, ["b", "z", EOS, "d", "c", "d", "e"])[:2] == (7, "stop") and it.text() == "bz<eos>d"
    assert feed(stopper(**params), "acde")[:2] == (4, "stop")
    assert feed(stopper(**params), "aaaz")[:2] == (4, "stop")
    assert feed(stopper(**params), "zzz")[:2] == (3, None)


def test_resumed_request_goes_on():
    it = stopper(max_tokens=5, stop="bc", output=[ord("a"), ord("b")])
    assert it.text() == "a"
    assert feed(it, "c")[:2] == (1, "stop") and it.text() == "a"
    assert feed(stopper(max_tokens=3, output=[97, 98]), "c")[:2] == (1, "length")


def test_without_tokenizer():
    request = Request(0, [1], SamplingParams(stop_token_ids=[5]), 0, eos=frozenset({EOS}), max_tokens=9)
    it = Stopper(request, None)
    assert [it.push(1), it.push(5)] == [None, "stop"] and it.text() == ""
    it.finish()
    request.params = SamplingParams(stop=["a", "b"])
    with pytest.raises(InputError, match="no tokenizer"):
        Stopper(request, None)


def reference(text, stops, include):
    """(final text, stopped): read letter by letter until a stop string is complete."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            return text[: end if include else end - max(map(len, found))], True
    return text, False


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.booleans(),
)
def test_streams_prefixes_of_the_right_text(texts, stops, include):
    """Any texts of tokens: the reference's text and verdict; all that was shown is a prefix of it, and growing."""
    it = stopper(*texts, stop=stops, include_stop=include)
    _, reason, shown = feed(it, range(300, 300 + len(texts)))
    it.finish()
    expected, stopped = reference("".join(texts), stops, include)
    assert it.text() == expected and (reason == "stop") == stopped
    for before, after in zip(shown, [*shown[1:], expected]):
        assert after.startswith(before)
