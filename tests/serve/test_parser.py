"""Every syntax, every way to break it, and no result that depends on how the text was cut."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.serve.parser import MOST_LAYOUT, MOST_UNNAMED, AnswerParser, Content, Delta, ToolCall
from paceline.serve.syntax import SYNTAXES

BY_NAME = {syntax.name: syntax for syntax in SYNTAXES}
CALL = '{"name": "add", "arguments": {"a": 1, "b": [2, "}</tool_call>"]}}'
ARGS = '{"a": 1, "b": [2, "}</tool_call>"]}'
Parts = list[tuple[str, ...]]


def parts(deltas: list[Delta]) -> Parts:
    """The message that a client puts together: text runs joined, each call as (name, arguments)."""
    out: Parts = []
    for delta in deltas:
        if isinstance(delta, ToolCall):
            if delta.id is not None:
                assert delta.index == sum(part[0] == "call" for part in out) and delta.name
                out.append(("call", delta.name, ""))
            assert out[-1][0] == "call"
            out[-1] = (*out[-1][:2], out[-1][2] + delta.arguments_delta)
        else:
            kind = "content" if isinstance(delta, Content) else "reasoning"
            assert delta.text
            if out and out[-1][0] == kind:
                out[-1] = (kind, out[-1][1] + delta.text)
            else:
                out.append((kind, delta.text))
    return out


def read(text: str, parser: AnswerParser, cuts: list[int] | None = None) -> Parts:
    edges = [0, *sorted(cuts or []), len(text)]
    deltas = [delta for a, b in pairwise(edges) for delta in parser.feed(text[a:b])]
    return parts([*deltas, *parser.finish()])


def hermes(text: str, **options: Any) -> Parts:
    return read(text, AnswerParser(BY_NAME["hermes"], **options))


WELL_FORMED = [
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", [("call", "add", ARGS)]),
    (
        "hermes",
        f"Let me see.\n\n<tool_call>{CALL}</tool_call>\n<tool_call>\n{CALL}\n</tool_call>\n",
        [("content", "Let me see."), ("call", "add", ARGS), ("call", "add", ARGS)],
    ),
    ("hermes", f"<tool_call>{CALL}</tool_call> and now?", [("call", "add", ARGS), ("content", "and now?")]),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', [("call", "now", "{}")]),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "id": "7", "name": "f"}</tool_call>', [("call", "f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', [("call", "f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("call", "f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f\\u00e9", "arguments": {}, "n": 1}</tool_call>', [("call", "fé", "{}")]),
    ("mistral", f"[TOOL_CALLS] [{CALL}, {CALL}]", [("call", "add", ARGS), ("call", "add", ARGS)]),
    ("mistral", f"Well. [TOOL_CALLS][{CALL}]", [("content", "Well."), ("call", "add", ARGS)]),
    ("llama", '<|python_tag|>{"name": "f", "parameters": {"x": "y"}}', [("call", "f", '{"x": "y"}')]),
    ("llama", ' {"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": {}}}',
     [("call", "f", "{}"), ("call", "g", '{"a": {}}')]),
    ("llama", '{"name": "f", "parameters": {}}\n{"name": "g", "parameters": {}}',
     [("call", "f", "{}"), ("call", "g", "{}")]),
    ("list", f"functools[{CALL}]", [("call", "add", ARGS)]),
    ("list", f"\n[{CALL},\n {CALL}]\n", [("call", "add", ARGS), ("call", "add", ARGS)]),
]  # fmt: skip


@pytest.mark.parametrize(("syntax", "text", "want"), WELL_FORMED)
def test_calls(syntax: str, text: str, want: Parts) -> None:
    assert read(text, AnswerParser(BY_NAME[syntax])) == want
    assert all(json.loads(part[2]) is not None for part in want if part[0] == "call")


BROKEN = [
    ("hermes", "<tool_call>\n{'name': 1}\n</tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "name": "g"}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}, "parameters": {}, "name": "f"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    ("hermes", "<tool_call>[]</tool_call> <tool_cal"),
    ("hermes", 'a < b <tool <tool_call>  {"na'),
    ("hermes", "<<tool_call"),
    ("mistral", "[TOOL_CALLS] none"),
    ("mistral", "[TOOL_CALLS] []"),
    ("mistral", '[TOOL_CALLS]{"name": "f"}'),
    ("mistral", f"[{CALL}]"),
    ("llama", '<|python_tag|>brave_search.call(query="x")'),
    ("llama", '{"name": "Bob", "age": 3}'),
    ("llama", '{"city": "Rome"} and {"name": "f", "parameters": {}}'),
    ("llama", 'Say {"name": "f", "parameters": {}}'),
    ("list", "Use functools.partial(f)"),
    ("list", "[1, 2, 3]"),
    ("list", "[see below]\n"),
    ("list", f"My answer: [{CALL}]"),
]
AGAIN = [
    ("hermes", f"<tool_call> <tool_call>{CALL}</tool_call>", "<tool_call>"),
    ("hermes", f'<tool_call>{{"name": <tool_call>{CALL}</tool_call>', '<tool_call>{"name":'),
    ("mistral", f"[TOOL_CALLS]none[TOOL_CALLS][{CALL}]", "[TOOL_CALLS]none"),
]


@pytest.mark.parametrize(("syntax", "text"), BROKEN)
def test_what_is_no_call_is_content_as_it_stands(syntax: str, text: str) -> None:
    assert read(text, AnswerParser(BY_NAME[syntax])) == [("content", text)]


@pytest.mark.parametrize(("syntax", "text", "content"), AGAIN)
def test_a_call_inside_what_is_none_is_found(syntax: str, text: str, content: str) -> None:
    assert read(text, AnswerParser(BY_NAME[syntax])) == [("content", content), ("call", "add", ARGS)]


LATE = [
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": tru}}</tool_call>', '{"a": tru', "}}</tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}} oops</tool_call>', "{}", " oops</tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, 5}', "{}", ", 5}"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, 5]', "{}", ", 5]"),
]


@pytest.mark.parametrize(("syntax", "text", "arguments", "rest"), LATE)
def test_what_breaks_after_it_was_passed_on_is_not_lost(syntax: str, text: str, arguments: str, rest: str) -> None:
    assert read(text, AnswerParser(BY_NAME[syntax])) == [("call", "f", arguments), ("content", rest)]


CUT = [
    ('<tool_call>{"name": "f", "arguments": {"a": "b', [("call", "f", '{"a": "b')]),
    ('<tool_call>{"name": "f", "arguments": {}', [("call", "f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": {}, "id": "x', [("call", "f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": {}}\n</tool', [("call", "f", "{}")]),
    ('<tool_call>{"name": "f", "argu', [("content", '<tool_call>{"name": "f", "argu')]),
]


@pytest.mark.parametrize(("text", "want"), CUT)
def test_a_limit_may_cut_a_call(text: str, want: Parts) -> None:
    assert hermes(text) == want


def test_a_call_behind_one_that_breaks_late_is_found() -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {{}}, <tool_call>{CALL}</tool_call>'
    assert hermes(text) == [("call", "f", "{}"), ("content", ","), ("call", "add", ARGS)]


def test_arguments_stream() -> None:
    """The name goes out with the first character of the arguments, and each piece brings its own."""
    parser = AnswerParser(BY_NAME["hermes"])
    assert parser.feed('Hm. <tool_call>{"name": "f", "argum') == [Content("Hm.")]
    [first] = parser.feed('ents": {"a"')
    assert isinstance(first, ToolCall) and (first.index, first.name, first.arguments_delta) == (0, "f", '{"a"')
    assert first.id and first.id.startswith("call_") and len(first.id) == 29
    assert parser.feed(": 1") == [ToolCall(0, None, None, ": 1")]
    assert parser.feed('}}</tool_call><tool_call>{"name": "g"') == [ToolCall(0, None, None, "}")]
    [second] = parser.feed("}")
    assert isinstance(second, ToolCall) and (second.index, second.name, second.arguments_delta) == (1, "g", "{}")
    assert second.id != first.id and parser.finish() == []


def test_text_is_held_back_no_longer_than_it_may_be_a_marker() -> None:
    parser = AnswerParser(BY_NAME["hermes"])
    assert parser.feed("a <tool") == [Content("a")]
    assert parser.feed("box>  ") == [Content(" <toolbox>")]
    assert parser.feed("b") == [Content("  b")]
    assert parser.feed("<") == [] and parser.finish() == [Content("<")]


REASONED = [
    ("<think>\nHm.\n</think>\n\nYes.", False, [("reasoning", "Hm."), ("content", "Yes.")]),
    ("Hm.\n</think>\nYes.", True, [("reasoning", "Hm."), ("content", "Yes.")]),
    ("<think>\n\n</think>\n\nYes.", False, [("content", "Yes.")]),
    ("<think>Hm. </thi", False, [("reasoning", "Hm. </thi")]),
    ("Still at it", True, [("reasoning", "Still at it")]),
    ("No <think>x</think>", False, [("content", "No <think>x</think>")]),
    (f"<think>a <tool_call> b</think><tool_call>{CALL}</tool_call>", False,
     [("reasoning", "a <tool_call> b"), ("call", "add", ARGS)]),
    ("<think>Hm.<|im_end|>x", False, [("reasoning", "Hm.")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "opened", "want"), REASONED)
def test_reasoning(text: str, opened: bool, want: Parts) -> None:
    assert hermes(text, reasoning=True, opened=opened, ends=["<|im_end|>"]) == want


def test_what_was_not_asked_for_is_content() -> None:
    text = f"<think>x</think> <tool_call>{CALL}</tool_call> \n"
    assert read(text, AnswerParser(None)) == [("content", text)]
    assert read(f"<think>x</think>[{CALL}]", AnswerParser(None, reasoning=True)) == [
        ("reasoning", "x"),
        ("content", f"[{CALL}]"),
    ]
    parser = AnswerParser(None)
    assert parser.feed("a <") == [Content("a <")], "nothing is held back"


def test_the_end_of_an_answer_is_no_content() -> None:
    ends = ["<|eot_id|>", "<|eom_id|>"]
    parser = AnswerParser(BY_NAME["llama"], ends=ends)
    assert read('{"name": "f", "parameters": {}}<|eom_id|>', parser) == [("call", "f", "{}")]
    assert read("Yes. <|eot_id|> and more", AnswerParser(BY_NAME["llama"], ends=ends)) == [("content", "Yes. ")]
    assert read('{"name": "x"<|eot_id|>', AnswerParser(BY_NAME["llama"], ends=ends)) == [("content", '{"name": "x"')]


# -- any cut gives the same --------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "functools", "<think>", "</think>", "<|end|>",
        CALL, '{"name": "f", "parameters": {"x": null}}', '{"name": "f"}', '{"na', '"}', "[", "]", ",", ";", " ", "\n",
        "<", "text", "{", "}", "é🙂", '\\"', '{"name": "f", "arguments": {"a": tru}}',
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.lists(PIECES, max_size=9).map("".join),
    st.sampled_from([*SYNTAXES, None]),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_any_cut_gives_the_same(text: str, syntax: Any, reasoning: bool, opened: bool, data: Any) -> None:
    def parser() -> AnswerParser:
        return AnswerParser(syntax, reasoning=reasoning, opened=opened, ends=["<|end|>"])

    whole = read(text, parser())
    assert read(text, parser(), list(range(len(text)))) == whole
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert read(text, parser(), cuts) == whole


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=9).map("".join), st.sampled_from(SYNTAXES))
def test_nothing_is_lost(text: str, syntax: Any) -> None:
    """Text without calls comes out as it went in; with calls, what is content stands in the text, in order."""
    got = read(text, AnswerParser(syntax))
    if not any(part[0] == "call" for part in got):
        assert "".join(part[1] for part in got) == text
    at = 0
    for part in got:
        words = part[-1] if part[0] == "content" or part[-1] != "{}" else part[1]
        assert words in text[at:], (words, at)
        at = text.index(words, at) + len(words)


HYBRID = (
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)


def test_the_prompt_tells_for_sure() -> None:
    opened = AnswerParser.for_model(HYBRID, tools=False, reasoning=True, prompt="...assistant\n<think>\n")
    assert read("x</think>y", opened) == [("reasoning", "x"), ("content", "y")]
    closed = AnswerParser.for_model("add_generation_prompt <think>", False, True, prompt="<think>\n\n</think>\n\n")
    assert read("x", closed) == [("content", "x")]
    assert read("x", AnswerParser.for_model("add_generation_prompt <think>", False, True)) == [("reasoning", "x")]


@pytest.mark.parametrize(
    ("begun", "text", "want"),
    [
        ("<think>Let me see", " if</think>\n\nYes", [("reasoning", " if"), ("content", "Yes")]),
        ("<think>", "\nHm</think>Yes", [("reasoning", "Hm"), ("content", "Yes")]),
        ("<think>Hm</think> So", " it is", [("content", " it is")]),
        ("<think>a</think>b<think>c", " d</think>e", [("reasoning", " d"), ("content", "e")]),
        ("So", " it is", [("content", " it is")]),
    ],
)
def test_a_message_goes_on_inside_a_thought(begun: str, text: str, want: Parts) -> None:
    """A thought that the client began: white space behind its words is the thought's."""
    prompt = f"<|im_start|>assistant\n{begun}"[-12:]
    parser = AnswerParser.for_model(HYBRID, tools=False, reasoning=True, prompt=prompt, begun=begun)
    assert read(text, parser) == want


DID = ("call", "add", ARGS)
UNMARKED: list[tuple[str, Parts | None]] = [
    (CALL, [DID]),
    (f"\n{CALL}\n", [DID]),
    (f"{CALL}\n{CALL}", [DID, DID]),
    (f"{CALL} Done.", [DID, ("content", "Done.")]),
    (f"```json\n{CALL}\n```", [DID]),
    (f"```\n{CALL}\n```\n", [DID]),
    (f"```json\n{CALL}\n{CALL}\n```", [DID, DID]),
    (f"Sure.\n```json\n{CALL}\n```\nDone.", [("content", "Sure."), DID, ("content", "Done.")]),
    (f"<tool_call>{CALL}</tool_call>", [DID]),
    ('{"name": "sub", "arguments": {"a": 1}}', None),
    ('{"name": "Tom", "age": 3}', None),
    ('{"city": "Paris"}', None),
    ("{not json", None),
    ("{", None),
    ("```python\ndef f(a):\n    return {a: 1}\n```\nThis is it.", None),
    ('```json\n{"name": "sub", "arguments": {}}\n```', None),
    ("```", None),
    ("```json\n", None),
    ("Use `add` or ``` add ``` here.", None),
    (f"It says {CALL} there.", None),
]


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize(("text", "want"), UNMARKED)
def test_calls_without_a_marker(text: str, want: Parts | None, step: int) -> None:
    """Of functions that there are, where the answer begins or in a fenced block; all other text stays as it is."""
    parser = AnswerParser(BY_NAME["hermes"], names={"add"})
    assert read(text, parser, list(range(step, len(text), step))) == (want or [("content", text)])
    assert hermes(CALL) == [("content", CALL)], "without names nothing is read so"


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize(
    "text", ["a" + " " * 5000 + "x", "<think>a" + "\n" * 3000 + "b</think>c", "a\n<tool_call>" + 9000 * " \n"]
)
def test_white_space_is_held_so_far(text: str, step: int) -> None:
    """A client may ask for white space without end (`allowed_tokens`): what is held is looked at with each character,
    on the loop that serves everybody."""
    parser = AnswerParser(BY_NAME["hermes"], reasoning=True, names={"add"})
    got: list[Delta] = []
    for at in range(0, len(text), step):
        got += parser.feed(text[at : at + step])
        assert len(parser._held) <= MOST_UNNAMED
        assert parser._read == parser._calling or len(parser._held) <= MOST_LAYOUT
    assert "".join(said[-1] for said in parts([*got, *parser.finish()])) == (
        text.replace("<think>", "").replace("</think>", "")
    )


@pytest.mark.parametrize("begun", ['<tool_call>{"a": [', '```json\n{"arguments": {"x": "', "```"])
def test_a_call_that_says_no_name_is_none(begun: str) -> None:
    text = begun + "1" * (MOST_UNNAMED + 100)
    parser = AnswerParser(BY_NAME["hermes"], names={"add"})
    early = "".join(delta.text for at in text for delta in parser.feed(at) if isinstance(delta, Content))
    assert len(early) > MOST_UNNAMED
    assert hermes(text, names={"add"}) == [("content", text)]
    for most, many in ((MOST_LAYOUT - 1, [("content", "a"), ("call", "add", ARGS)]), (MOST_LAYOUT, None)):
        said = hermes("a" + " " * most + f"<tool_call>{CALL}</tool_call>")
        assert said == (many or [("content", "a" + " " * most), ("call", "add", ARGS)])


def test_only_what_is_needed_is_kept_of_arguments() -> None:
    """Their pieces go out as they come: nothing grows with them."""
    parser = AnswerParser(BY_NAME["hermes"])
    parser.feed('<tool_call>{"name": "add", "arguments": {"a": "' + "x" * 50_000)
    call = parser._call
    assert call is not None and len(call._value) + len(call._json.token) + len(parser._held) < 100
