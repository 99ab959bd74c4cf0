"""The playground's script without a browser: it parses, and its Markdown stands hostile texts, in Node."""

import json
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


FLEET = """
const made = {};
const node = (name) => ({name, kids: [], append(...n) { this.kids.push(...n); }, setAttribute() {},
  addEventListener() {}, replaceChildren(...n) { this.kids = n; }});
const document = {createElement: node, createElementNS: (_, name) => node(name), addEventListener() {},
  getElementById: (id) => made[id] ??= node(id)};
%s
const letters = (n) => typeof n === "string" ? n : n.kids.map(letters).join("|");
stats = {};
fleet();
console.log(made.fleet.hidden);
stats = JSON.parse(require("fs").readFileSync(0, "utf8"));
fleet();
console.log(made.fleet.hidden, made["fleet-said"].textContent);
made.engines.kids.forEach((row) => console.log(letters(row)));
"""


def test_the_dashboard_has_a_row_for_each_engine_of_a_cluster() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node on this machine")
    engine = {"name": "engine-1", "draining": False, "silent": False, "running": 2, "waiting": 1,
              "kv": {"used": 5, "blocks": 10}, "freeness": 2.4, "generated": 7, "preemptions": 0}  # fmt: skip
    leaving = {**engine, "name": "engine-2", "draining": True, "freeness": None}
    quiet = {**engine, "name": "engine-3", "silent": True}
    stats = {"cluster": {"engines": [engine, leaving, quiet], "wanted": 2, "coming": 1, "lost": 3, "moved": 4}}
    program = FLEET % "".join((PAGE / name).read_text() for name in ("base.js", "dashboard.js"))
    done = subprocess.run(
        [node, "-e", program], input=json.dumps(stats), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    plain, said, first, second, third = done.stdout.splitlines()
    assert plain == "true" and said == "false 2 wanted · 1 starting · 3 lost so far · 4 requests moved"
    assert first == "engine-1|serving|2|1|50.0 %|2|7|0" and second == "engine-2|draining|2|1|50.0 %|\u2013|7|0"
    assert third == "engine-3|silent|2|1|50.0 %|2|7|0"


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
