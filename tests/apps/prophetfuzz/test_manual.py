"""Man pages: the shipped one, and pages of the system where they are."""

import shutil
from pathlib import Path

import pytest

from paceline.apps.prophetfuzz.campaign import PLANTED_PAGE
from paceline.apps.prophetfuzz.manual import ManualError, find_page, parse, read_page

needs_groff = pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")


@needs_groff
def test_the_planted_programs_page() -> None:
    manual = read_page(PLANTED_PAGE)
    assert manual.description == "turn a small text picture into another"
    assert [o.spellings for o in manual.options][:2] == [("-r", "--rotate"), ("-m", "--mirror")]
    assert {o.key: o.value for o in manual.options if o.value} == {
        "--scale": "N",
        "--limit": "BYTES",
        "--depth": "BITS",
    }
    strict = manual.option("-e")
    assert strict is not None and "Requires --trim" in strict.text and strict is manual.option("--strict=1")
    assert manual.option("--nothing") is None and len(manual.options) == 13


@needs_groff
@pytest.mark.parametrize(
    ("program", "known"),
    [
        ("gzip", {"--decompress": ("-d", ""), "--force": ("-f", ""), "--suffix": ("-S", "suf")}),
        ("sort", {"--key": ("-k", "KEYDEF"), "--unique": ("-u", ""), "--output": ("-o", "FILE")}),
        ("xz", {"--decompress": ("-d", ""), "--threads": ("-T", "threads"), "--stdout": ("-c", "")}),
    ],
)
def test_pages_of_the_system(program: str, known: dict[str, tuple[str, str]]) -> None:
    try:
        manual = read_page(find_page(program))
    except ManualError as error:
        pytest.skip(str(error))
    found = {o.key: (o.spellings[0], o.value) for o in manual.options}
    assert {key: found.get(key) for key in known} == known


def test_forms_of_options() -> None:
    text = """NAME
       x - does things

OPTIONS
       -a, --all  Everything.
       -b FILE
       --both=FILE
              Two spellings on two lines,
              and two lines of text.

       · --seq:
              A bullet.

       MINUSc     A minus sign.  Not -d.

SEE ALSO
       -z     not an option
"""
    manual = parse(text.replace("MINUS", "-"), "x")
    assert [(o.key, o.spellings, o.value) for o in manual.options] == [
        ("--all", ("-a", "--all"), ""), ("--both", ("-b", "--both"), "FILE"),
        ("--seq", ("--seq",), ""), ("-c", ("-c",), ""),
    ]  # fmt: skip
    assert manual.options[1].text == "Two spellings on two lines, and two lines of text."


@needs_groff
def test_pages_that_cannot_be_used(tmp_path: Path) -> None:
    page = tmp_path / "x.1"
    page.write_text(".TH X 1\n.SH NAME\nx \\- nothing\n")
    with pytest.raises(ManualError, match="describes no options"):
        read_page(page)
    (tmp_path / "y.1.gz").write_bytes(b"not gzip")
    with pytest.raises(ManualError, match="cannot be read"):
        read_page(tmp_path / "y.1.gz")
    with pytest.raises(ManualError, match=r"no man page|no man command"):
        find_page("no-such-program-here")
