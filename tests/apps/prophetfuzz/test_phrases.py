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
        ("Do not use with -b.", {("conflict", "--all", "--both")}),
        ("Never combine this with -b.", {("conflict", "--all", "--both")}),
        ("It is not to be used together with -b.", {("conflict", "--all", "--both")}),
        ("Do not give -b with this option.", {("conflict", "--all", "--both")}),
        ("Must not be used if -b is given.", {("conflict", "--all", "--both")}),
        ("If --both is given, this option is ignored.", {("conflict", "--all", "--both")}),
        ("Only useful when -b is not given.", {("conflict", "--all", "--both")}),
        ("Requires that --both not be given.", {("conflict", "--all", "--both")}),
        ("This does not require --both.", set()),
        ("It no longer needs -b.", set()),
        ("Neither -c nor -b is required.", set()),
        ("No longer conflicts with -b.", set()),
        ("It does not in itself conflict with -b.", set()),
        ("It doesn't override -b.", set()),
        ("Is not ignored when -b is given.", set()),
        ("Not only with -b.", set()),
        ("Valid without -b.", set()),
        ("Do so, but never with -b.", set()),
        ("do not write empty files with '-b'", {("all", "--all", "--both")}),
        ("Cannot be used with -b unless -c is given.", set()),
        ("-a and -b are mutually exclusive.", {("conflict", "--all", "--both")}),
        ("The -a and -b options are mutually exclusive.", {("conflict", "--all", "--both")}),
        ("Only one of -a and -b may be given.", {("conflict", "--all", "--both")}),
        ("It is an error to specify both -a and -b.", {("conflict", "--all", "--both")}),
        ("It is an error to use this option with -b.", {("conflict", "--all", "--both")}),
        ("Give -a or -b, but not both.", {("conflict", "--all", "--both")}),
        ("-a and -b may not both be given.", {("conflict", "--all", "--both")}),
        ("It is not an error to specify both -a and -b.", set()),
        ("-a and -b are not mutually exclusive.", set()),
        ("More than one of -a and -b may be given.", set()),
        ("Works only in combination with --both.", {("all", "--all", "--both")}),
        ("Requires that --both be given.", {("all", "--all", "--both")}),
        ("Requires either -b or -c.", {("any", "--all", "--both", "--color")}),
        ("If --both is not specified, this option is ignored.", {("all", "--all", "--both")}),
        ("Unless --both is given, this option has no effect.", {("all", "--all", "--both")}),
        ("Without --both, this option is ignored.", {("all", "--all", "--both")}),
        ("Ignored if -b is not given.", {("all", "--all", "--both")}),
        ("Ignored if neither -b nor -c is given.", {("any", "--all", "--both", "--color")}),
        ("Cannot be used without -b.", {("all", "--all", "--both")}),
        ("Not valid without -b.", {("all", "--all", "--both")}),
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


@pytest.mark.parametrize(
    ("synopsis", "said"),
    [
        ("x [-a | --both] FILE", {("--all", "--both")}),
        ("x {-a|-b|-c}", {("--all", "--both"), ("--all", "--color"), ("--both", "--color")}),
        ("x [-a [N] | -c[=WHEN]]", {("--all", "--color")}),
        ("x [[-a] [-b] | -c]", {("--all", "--color"), ("--both", "--color")}),
        ("x [-a | --all] [-b] [-c]", set()),
        ("x [-a | -b]...", set()),
    ],
)
def test_alternatives_of_a_synopsis(synopsis: str, said: set[tuple[str, str]]) -> None:
    page = f"SYNOPSIS\n       {synopsis}\n\n" + PAGE.format(text="All of them.", note="It does.")
    assert {r.of for r in stated(parse(page, "x")) if r.kind == "conflict"} == said
