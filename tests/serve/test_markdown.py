"""The playground's script without a browser: it parses, and its Markdown stands hostile texts, in Node."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from paceline.serve.playground import put_together

PAGE = Path(__file__).parents[2] / "src" / "paceline" / "serve" / "page"
NODE = """
const node = (name) => ({nodeName: name.toUpperCase(), childNodes: [], append(...n) { this.childNodes.push(...n); },
  setAttribute() {}, addEventListener() {}});
const document = {createElement: node, createElementNS: (_, name) => node(name), getElementById: () => node("p")};
%s
const depth = (n) => 1 + Math.max(0, ...(n.childNodes ?? []).map(depth));
const letters = (n) => typeof n === "string" ? n : n.childNodes.map(letters).join("");
const text = require("fs").readFileSync(0, "utf8");
const made = markdown(text, (from, to) => [text.slice(from, to)]);
console.log(Math.max(...made.map(depth)), made.map(letters).join("").length);
"""
HOSTILE = [
    "> " * 4000 + "x",
    "- " * 4000 + "x",
    "> - " * 3000 + "x",
    "\n".join(" " * i + "- x" for i in range(250)),
    "**__" * 2000 + "x" + "__**" * 2000,
    "[" * 8000 + "x",
]


def test_every_text_of_the_script_ends_in_its_line() -> None:
    """Where there is neither Node nor a browser, too: one text without an end and the whole page does nothing."""
    for path in PAGE.glob("*.js"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            bare = re.sub(r"""'[^'"]*"[^']*'|`[^`]*`|/[^/ ]*"[^/]*/""", "", line)
            assert bare.count('"') % 2 == 0, f"{path.name}, line {number}: {line}"


def test_the_whole_script_parses(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node on this machine")
    (script,) = re.findall(r"<script>(.*?)</script>", put_together(), re.DOTALL)
    (tmp_path / "page.mjs").write_text(script, encoding="utf-8")
    done = subprocess.run([node, "--check", str(tmp_path / "page.mjs")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-500:]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:6])
def test_nesting_is_bounded(text: str) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node on this machine")
    program = NODE % "".join((PAGE / name).read_text() for name in ("base.js", "markdown.js"))
    done = subprocess.run([node, "-e", program], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    depth, letters = map(int, done.stdout.split())
    assert depth < 60
    assert letters >= text.count("x")
