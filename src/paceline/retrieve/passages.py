"""Passages: texts of a folder, cut into pieces of equally many words. A passage is known by its number, never by its
text: two with the same words are two."""

from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from paceline.core.errors import InputError

SUFFIXES = (".txt", ".md", ".rst", ".html", ".htm")
UNSEEN = frozenset({"script", "style", "head", "nav"})


@dataclass(frozen=True, slots=True)
class Passage:
    """Some words of one file."""

    title: str
    """The file's path below the folder, and which of its passages this is."""
    text: str


def read(folder: Path, words: int = 100) -> list[Passage]:
    """The passages of a folder's files, by path, each of `words` words or, at a file's end, fewer. A passage's number
    is its place. InputError where there is none."""
    if words < 1:
        raise InputError(f"words is {words}, but a passage has at least 1.")
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give one with texts ({', '.join(SUFFIXES)}).")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    made = [passage for path in files for passage in _of_file(path, path.relative_to(folder).as_posix(), words)]
    if not made:
        raise InputError(f"{folder} has no text in it; put files with words there ({', '.join(SUFFIXES)}).")
    return made


def _of_file(path: Path, name: str, words: int) -> Iterator[Passage]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 ({error}); mend it or take it away.") from None
    if path.suffix.lower() in (".html", ".htm"):
        text = plain(text)
    every = text.split()
    for number, start in enumerate(range(0, len(every), words)):
        yield Passage(f"{name}#{number}", " ".join(every[start : start + words]))


def plain(page: str) -> str:
    """The words of an HTML page."""
    reader = _Words()
    reader.feed(page)
    reader.close()
    return " ".join(reader.parts)


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in UNSEEN

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in UNSEEN))

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)
