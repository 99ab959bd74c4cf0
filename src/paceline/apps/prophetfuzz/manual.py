"""A man page's options: their spellings, whether they take a value, and what is said of them.

The page is set by groff to plain text, and the text is read: that is the same for both macro packages (man and mdoc),
and for pages that mix them.
"""

import bz2
import gzip
import html
import lzma
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2013\u2212", "-") | dict.fromkeys("\u2018\u2019", "'"))
FLAG = re.compile(r"^(--?[A-Za-z0-9?#@][\w.+-]*|-[A-Za-z0-9?#@])(\[?=| )?(.*)$")
FUZZ_HEADING = re.compile(r"^[A-Z][\w,/&'-]*(?: [\w,/&'()-]+){0,6}:?$")
VALUE = re.compile(r"^[\[<{]?[\w.:,|+*/-]+[\]>}]*(\.\.\.)?$")
BULLET = re.compile(r"^(\s*)[\u00b7\u2022\u25cf*]\s+(?=-)")
OR_OTHER = re.compile(r"(?<=\S) {1,8}or {1,8}-(?=-?\w)")
"""Between two spellings, `-b  or  --backup`, as patch's page has them."""
LONGEST_PAGE = 4 << 20
LONGEST_TEXT = 600
LONGEST_NOTE, MOST_NOTES = 400, 20
NO_RULES = frozenset({"NAME", "SYNOPSIS", "SEE ALSO", "EXAMPLES", "EXAMPLE", "AUTHOR", "COPYRIGHT", "REPORTING BUGS"})
OPTION_WORD = re.compile(r"(?<![\w-])--?[A-Za-z0-9?#@][\w+-]*")


class ManualError(Exception):
    """A page that is absent or has no options."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option: `key` is its first long spelling, or its first; `value` names its argument, "" for none."""

    key: str
    spellings: tuple[str, ...]
    value: str
    text: str


@dataclass(frozen=True, slots=True)
class Manual:
    """What a man page says. Options are in the page's order."""

    program: str
    description: str
    synopsis: str
    options: tuple[Option, ...]
    notes: tuple[str, ...] = ()
    """Sentences outside of the options' own texts that name two or more of them."""

    def option(self, name: str) -> Option | None:
        """The option that a text names: any spelling, with or without a value."""
        word = re.split(r"[=\[ <\t:]", name.strip().translate(DASHES), maxsplit=1)[0]
        return next((o for o in self.options if word in o.spellings), None)

    def text(self) -> str:
        """The options as the model reads them, one paragraph each."""
        head = f"Program {self.program}: {self.description}\nSynopsis: {self.synopsis}\n\nOptions:\n"
        notes = "\nNotes:\n" + "\n".join(self.notes) if self.notes else ""
        return head + "\n".join(f"{described(o)}" for o in self.options) + notes


def described(option: Option) -> str:
    value = f" {option.value}" if option.value else ""
    return f"{', '.join(option.spellings)}{value}: {option.text}"


def read_page(page: Path) -> Manual:
    """Read a man page in groff, compressed or not, or what `--help` prints, Markdown or HTML. Raises ManualError."""
    raw = unpacked(page)
    for _ in range(MOST_PAGE_LINKS):
        if (link := LINKED.match(raw)) is None:
            break
        page, raw = linked(page, link[1].decode("utf-8", "replace"))
    manual = parse(as_text(raw), page.name.split(".")[0])
    if not manual.options:
        raise ManualError(
            f"{page} describes no options that can be read; give a man page, what --help prints, Markdown or HTML, of "
            "a program with options such as -a and --all."
        )
    return manual


PACKED_PAGES: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".lzma": lzma.open}
"""How a page is opened, by the ending of its name; others lie as they are."""
LINKED = re.compile(rb"\s*\.so\s+(\S+)\s*$")
"""A page that is nothing but the name of another."""
MOST_PAGE_LINKS = 4


def unpacked(page: Path) -> bytes:
    """At most LONGEST_PAGE bytes of a page. Raises ManualError."""
    try:
        with PACKED_PAGES.get(page.suffix, open)(page, "rb") as file:
            return bytes(file.read(LONGEST_PAGE))
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise ManualError(f"{page} cannot be read ({error}); give a man page.") from error


def linked(page: Path, name: str) -> tuple[Path, bytes]:
    """The page that another names, by a path below the folder of all sections, or next to it. Raises ManualError."""
    for folder in (page.parent.parent, page.parent):
        for ending in ("", *PACKED_PAGES):
            found = folder / f"{name}{ending}"
            if found.is_file():
                return found, unpacked(found)
    raise ManualError(f"{page} refers to {name}, which is not there; give that page with --man.")


REQUEST = re.compile(rb"^[.'][ \t]*(TH|Dd|SH|Sh|TP|It|B|PP)\b", re.MULTILINE)
"""What a page in groff holds."""


def as_text(raw: bytes) -> str:
    """A page as plain text, whatever it is written in."""
    if REQUEST.search(raw):
        return plain(raw)
    text = raw.decode("utf-8", "replace").translate(DASHES).replace("\t", "        ")
    if re.search(r"<(html|body|dl|pre)\b", text, re.IGNORECASE):
        text = re.sub(r"(?i)<dt\b[^>]*>", "\n\n  ", re.sub(r"(?i)</dt>|<dd\b[^>]*>", "\n      ", text))
        text = html.unescape(re.sub(r"<[^<>]{0,2000}>", "", text))
    text = re.sub(r"(?m)^#{1,6} +(.+?)#*$", lambda found: found[1].strip(), text)
    return re.sub(
        r"(?m)^[ ]{0,8}(?:[-*+] +)?((?:`-[^`\n]{1,200}`(?:, | \| |/)?)+):? *(?:- )?", in_markdown, text
    ).replace("`", "")


def in_markdown(found: re.Match[str]) -> str:
    """An item such as - `-a`, `--all`: as a line of its own."""
    return f"  {found[1].replace('`', '').replace(' | ', ', ').rstrip(', ')}\n      "


def find_page(program: str) -> Path:
    """Where `man` has the page. Raises ManualError."""
    if shutil.which("man") is None:
        raise ManualError("There is no man command here; give the page itself with --man FILE.")
    done = subprocess.run(["man", "-w", "--", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ManualError(f"There is no man page for {program}; give the page itself with --man FILE.")
    return Path(done.stdout.splitlines()[0])


def plain(page: bytes) -> str:
    """The page as text without overstriking, in long lines. Raises ManualError."""
    if shutil.which("groff") is None:
        raise ManualError("There is no groff here, which sets man pages; install groff-base.")
    command = ["groff", "-S", "-t", "-mandoc", "-Tutf8", "-P-c", "-P-b", "-P-o", "-P-u", "-rLL=160n", "-rHY=0"]
    done = subprocess.run(command, input=page, capture_output=True, timeout=60, check=False)
    text = done.stdout.decode("utf-8", "replace").translate(DASHES)
    text = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", text)
    return re.sub(r"(?m)^.{0,200} {10}[\w.+:-]+\(\d\w{0,3}\)$", "", text)  # the foot of the page


def parse(text: str, program: str) -> Manual:
    """Read a page's text: sections by their headings, options by lines that begin with a dash."""
    current: list[str] = []
    sections: dict[str, list[str]] = {"": current}
    for line in text.splitlines():
        if FUZZ_HEADING.match(line):
            current = sections.setdefault(line.strip().rstrip(":").upper(), [])
        else:
            current.append(line)
    name = " ".join(" ".join(sections.get("NAME", [])).split())
    found: dict[str, Option] = {}
    for title, lines in sections.items():
        if title not in ("NAME", "SYNOPSIS", "SEE ALSO", "EXAMPLES", "EXAMPLE"):
            for option in options(lines):
                found.setdefault(option.key, option)
    read = Manual(program, "", "", tuple(found.values()))
    return Manual(
        program,
        name.partition(" - ")[2] or name,
        " ".join(" ".join(sections.get("SYNOPSIS", [])).split())[:LONGEST_TEXT],
        tuple(found.values()),
        notes(sections, read),
    )


def notes(sections: Mapping[str, list[str]], manual: Manual) -> tuple[str, ...]:
    """Sentences that name two or more options, of paragraphs that are no option's."""
    found: dict[str, None] = {}
    told = " ".join(o.text for o in manual.options)
    for title, lines in sections.items():
        if title in NO_RULES:
            continue
        for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
            if FLAG.match(paragraph.strip()):
                continue
            for sentence in sentences(paragraph):
                if sentence[-40:] not in told and len(named(sentence, manual)) > 1:
                    found[sentence[:LONGEST_NOTE]] = None
    return tuple(found)[:MOST_NOTES]


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.;!?])\s+(?=[A-Z(-])", " ".join(text.split()))


def named(text: str, manual: Manual) -> list[str]:
    """Keys of the options that a text names, in its order."""
    found = [o.key for word in OPTION_WORD.findall(text) if (o := manual.option(word.rstrip(".-")))]
    return list(dict.fromkeys(found))


AS_WIDE_AS_ITS_COLUMN = re.compile(r"^(--?\w{4,5}|-\w, ?-\w) (?=([a-z]+|[A-Z][a-z]+) [\w(])(?!or |and )")
"""A tag of six characters, such as --help, has one blank between it and its text where tags have seven columns."""


TAG_ALONE = re.compile(r"--[\w-]+(\[?=\S+| [A-Z]+| <\S+)?(\s{2,}.*)?$")
"""A line that is a long option, and what is said of it after two blanks or on the next line."""
WITH_TEXT = re.compile(r" [A-Z][a-z]+ \w")
"""A tag wider than its column, as `-j, --junk-session-cookies Ignore session cookies` of curl's help."""


def options(lines: list[str]) -> list[Option]:
    """The options of a section: a line with a dash, and what is indented below it."""
    found: list[Option] = []
    heads: list[str] = []
    body: list[str] = []
    indent, prose = 0, -1  # prose: the depth of a line just before that is no option's
    column = 0  # where the text of the option begins, 0 while it has none

    def close() -> None:
        if heads and (option := entry(heads, " ".join(body))) is not None:
            found.append(option)
        heads.clear()
        body.clear()

    for line in (OR_OTHER.sub(" or -", BULLET.sub(r"\1", text)) for text in lines):
        bare, depth = line.strip(), len(line) - len(line.lstrip())
        # --color below `-b, --block`, as --help has it: left of the texts, and no first words of one
        long_alone = bare.startswith("--") and depth == indent + len("-a, ") < (column or depth + 1)
        long_alone = long_alone and bool(column or TAG_ALONE.match(bare) or (heads and WITH_TEXT.search(heads[-1])))
        if FLAG.match(bare) and (not heads or depth <= indent or long_alone) and prose != depth:
            if body or depth < indent or (heads and long_alone):
                close()
            tag, *rest = re.split(r"\s{2,}(?!-)", AS_WIDE_AS_ITS_COLUMN.sub(r"\1  ", bare), maxsplit=1)
            heads.append(tag)
            body += rest
            indent, column = depth, line.rindex(rest[0]) if rest else 0
        elif heads and bare and depth <= indent:
            close()
        elif heads and bare:
            body.append(bare)
            column = column or depth
        prose = depth if bare and not heads else -1
    close()
    return found


def entry(heads: list[str], text: str) -> Option | None:
    """One option from its heads, such as `-S .suf, --suffix=.suf`."""
    spellings: list[str] = []
    value = ""
    for head in heads:
        plain = " ".join(head.rstrip(":").split())  # with runs of spaces the split would take quadratic time
        for part in re.split(r" ?(?:,|\||\bor\b) (?=-)| ?[,|](?=-)|(?<=\w) (?=-)", plain):
            match = FLAG.match(part.strip())
            if match is None:
                return None
            flag = match[1].rstrip(".,")
            tail = (match[3] or "").strip("[]() ").split(" ")[0]
            if match[2] and tail and VALUE.match(tail):
                value = value or tail.strip("[]<>{}.")
            if flag not in spellings:
                spellings.append(flag)
    if not spellings:
        return None
    key = next((s for s in spellings if s.startswith("--")), spellings[0])
    return Option(key, tuple(spellings), value, " ".join(text.split())[:LONGEST_TEXT])
