"""Relations that a page states in set phrases."""

import pytest

from paceline.apps.prophetfuzz.manual import parse
from paceline.apps.prophetfuzz.phrases import stated

PAGE = """NAME
       x - does things

DESCRIPTION
       {note}

OPTIONS
       -a, --all
              {text}

       -b, --both
              Both of them.

       -c, --color[=WHEN]
              In color.
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Ignored when --both is given.", {("conflict", "--all", "--both")}),
        ("Cannot be used in conjunction with the -b or --color options.",
         {("conflict", "--all", "--both"), ("conflict", "--all", "--color")}),
        ("Overrides a previous --color=auto.", {("conflict", "--all", "--color")}),
        ("This has no effect unless -b is given.", {("all", "--all", "--both")}),
        ("with -b, all of them", {("all", "--all", "--both")}),
        ("Requires --color or --both.", {("any", "--all", "--both", "--color")}),
        ("Only useful with -b.", {("all", "--all", "--both")}),
        ("The option --color is required and the option --both is recommended.", {("all", "--all", "--color")}),
        ("Can be used with -b. When used with -c, colors them. Like -b, but more. See also -c.", set()),
        ("with -b, all of them; without -b, some", set()),
    ],
)  # fmt: skip
def test_an_options_own_text(text: str, said: set[tuple[str, ...]]) -> None:
    assert {(r.kind, *r.of) for r in stated(parse(PAGE.format(text=text, note="It does."), "x"))} == said


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ("Use one, and only one of -a, -b or -c.", {("--all", "--both"), ("--all", "--color"), ("--both", "--color")}),
        ("The options --all (-a) and --both (-b) are mutually exclusive.", {("--all", "--both")}),
        ("Using -a ignores -b and -c.", {("--all", "--both"), ("--all", "--color")}),
        ("Give one of the list\n       -a,-b,-c or nothing.", set()),
    ],
)
def test_sentences_that_are_no_options_own(note: str, said: set[tuple[str, ...]]) -> None:
    page = parse(PAGE.format(text="All of them.", note=note), "x")
    assert [o.key for o in page.options] == ["--all", "--both", "--color"] and (bool(page.notes) or not said)
    assert {r.of for r in stated(page) if r.kind == "conflict"} == said
    assert all(text in page.text() for text in page.notes)
