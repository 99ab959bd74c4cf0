"""Man pages: the shipped one, and pages of the system where they are."""

import bz2
import gzip
import lzma
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


PAGE = """.TH X 1
.SH Name
x \\- do x
.SH Options
.TP
.BR \\-a ", " \\-\\-all
All.
.TP
.B \\-\\-help
Display this help.
.TP
.B \\-\\-jobs
Run at once.
"""


@needs_groff
@pytest.mark.parametrize("packed", ["x.1", "x.1.gz", "x.1.bz2", "x.1.xz", "link.1"])
def test_pages_may_be_packed_links_and_have_headings_in_small_letters(tmp_path: Path, packed: str) -> None:
    """A tag of six characters ran into its text, and the options below it became its spellings."""
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}.get(Path(packed).suffix, bytes)
    (tmp_path / "man1").mkdir()
    page = tmp_path / "man1" / packed.replace("link", "x")
    page.write_bytes(pack(PAGE.encode()))
    if packed.startswith("link"):
        page = tmp_path / "man1" / packed
        page.write_text(".so man1/x.1\n")
    options = read_page(page).options
    assert [(o.spellings, o.value, o.text) for o in options] == [
        (("-a", "--all"), "", "All."), (("--help",), "", "Display this help."), (("--jobs",), "", "Run at once."),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("help.txt", "Usage: z [OPTION]... FILE\n\n  -a, --all          all of it\n  -b, --block=SIZE   not with -a\n"
                     "      --color[=WHEN] colours\n  -h, --help         help\n"),
        ("z.md", "# z\n\n## Options\n\n- `-a`, `--all`: all of it\n- `-b`, `--block=SIZE`: not with `-a`\n"
                 "- `--color`: colours\n- `-h`, `--help`: help\n"),
        ("z.html", "<html><dl><dt>-a, --all</dt><dd>all of it</dd><dt>-b, --block=SIZE<dd>not with -a"
                   "<dt>--color</dt><dd>colours</dd><dt>-h, --help</dt><dd>help</dd></dl></html>"),
    ],
)  # fmt: skip
def test_options_are_read_from_other_formats(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = read_page(path).options
    assert [o.key for o in found] == ["--all", "--block", "--color", "--help"]
    assert found[1].value == "SIZE" and found[1].text == "not with -a"


def test_what_is_no_page_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    path = tmp_path / "x.1.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00abc")
    with pytest.raises(ManualError, match="cannot be read"):
        read_page(path)
    path = tmp_path / "x.txt"
    path.write_text("Z [/A] file\n")
    with pytest.raises(ManualError, match="what --help prints, Markdown or HTML"):
        read_page(path)
    (tmp_path / "y.1").write_text(".so man1/gone.1\n")
    with pytest.raises(ManualError, match=r"refers to man1/gone.1, which is not there"):
        read_page(tmp_path / "y.1")


@pytest.mark.parametrize(
    ("head", "text"),
    [
        ("-g, --walk", "Stop at reflogs. With\n           --indexed-objects this walks the index too."),
        ("--progress", "See the option\n           --auto\n           of the other page."),
        ("-p, --patch", "--no-patch turns this off."),
    ],
)
def test_words_of_a_text_that_begin_with_dashes_are_no_options(head: str, text: str) -> None:
    """Texts of some pages stand four columns right of their options, where --help has options without a letter."""
    page = f"OPTIONS\n       {head}\n           {text}\n\n       -q\n           Be quiet.\n"
    found = parse(page, "x").options
    assert [o.spellings for o in found] == [tuple(head.split(", ")), ("-q",)]
    assert found[0].text == " ".join(text.split())


def test_long_options_stand_below_a_tag_wider_than_its_column() -> None:
    text = " -j, --junk-session-cookies Ignore cookies\n     --keepalive-time <seconds> Time between\n"
    assert [o.key for o in parse(text, "x").options] == ["--junk-session-cookies", "--keepalive-time"]
