"""Every snippet of README.md, docs/ and examples/: where it stands, what it is written in, and how it is run."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "src/paceline/apps").glob("*/README.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
BLOCK = re.compile(r"(?:(?<=\n\n)|\A)((?:    [^\n]*\n|\n(?=    ))+)")
COMMANDS = frozenset(
    {
        "paceline", "paceline-apps", "make", "curl", "pip", "python", "docker", "source", ".", "export", "npm", "git",
        "pytest", "aider", "llm", "ollama", "brew", "sudo", "wsl", "npx", "java", "bench/peers/setup.sh",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of a page. `line` is that of its first line in the page, from 1."""

    page: str
    line: int
    language: str
    text: str
    again: int = 1
    """How often the page has a snippet that begins with this line, up to here."""

    @property
    def name(self) -> str:
        """Page and first line of the snippet: it does not move with the page."""
        mark = f" ({self.again})" if self.again > 1 else ""
        return f"{self.page}: {self.text.strip().splitlines()[0].strip()}{mark}"

    def commands(self) -> list[str]:
        """The shell commands of it, comments and continuations taken care of."""
        joined = re.sub(r"\\\n\s*", " ", self.text)
        lines = [line.strip() for line in joined.splitlines()]
        return [line for line in lines if line and not line.startswith("#")]


def collected() -> list[Snippet]:
    """All snippets of all pages and examples."""
    found = [snippet for page in PAGES if page.is_file() for snippet in of_page(page)]
    for path in sorted((ROOT / "examples").glob("*.py")):
        found.append(Snippet(str(path.relative_to(ROOT)), 1, "example", path.read_text(encoding="utf-8")))
    seen: Counter[str] = Counter()
    for at, snippet in enumerate(found):
        seen[snippet.name] += 1
        found[at] = replace(snippet, again=seen[snippet.name])
    return found


def of_page(page: Path) -> Iterator[Snippet]:
    text, name = page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))
    for match in FENCE.finditer(text):
        yield Snippet(name, 1 + text[: match.start(2)].count("\n"), match[1] or "text", match[2])
    bare = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in BLOCK.finditer(bare):
        inner = "".join(line[4:] if line.startswith("    ") else line for line in match[1].splitlines(True))
        if inner.strip():
            yield Snippet(name, 1 + bare[: match.start(1)].count("\n"), kind(inner), inner)


def kind(text: str) -> str:
    first = next(line for line in text.strip().splitlines() if line.strip())
    word = first.split()[0]
    if word in COMMANDS or re.match(r"[A-Z_]+=\S+$", word):
        return "sh"
    if re.match(r"(from|import|with|params|llm|class|def|async|client|pair)\b|[\w.]+ = ", first):
        return "python"
    if re.match(r"[a-z_]+=|LLM\(|SamplingParams\(|>>>", first):
        return "text"
    return "json" if word.startswith("{") else "text"


def words(command: str) -> list[str]:
    """A command's words: without a comment at its end, and only up to a pipe, a redirection or `&`."""
    found = shlex.split(command, comments=True)
    ends = [at for at, word in enumerate(found) if word in ("|", ">", "&", "&&", ";")]
    return found[: ends[0]] if ends else found
