"""Functions that nobody calls: their objects, values and ends; the program that is written, and command lines."""

import ast
import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("libcst", reason="the extra apps is not installed")

from paceline.apps.common.sandbox import unavailable
from paceline.apps.selfpico.box.modules import OWN_MODULES, arguments_of
from paceline.apps.selfpico.box.uncalled import raised_on_purpose
from paceline.apps.selfpico.emit import standalone
from paceline.apps.selfpico.fragment import PICO_BOX, PicoRunner, Ran
from paceline.apps.selfpico.predict import Ordered, usual_order
from paceline.apps.selfpico.sources import fragments
from paceline.apps.selfpico.uses import given_argv
from tests.apps.selfpico.test_fragment import Given

boxed = pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox can be made here: {unavailable()}")


def called(source: str, predictor: Any = None) -> Ran:
    predictor = predictor or Ordered(usual_order, "without the model")
    return asyncio.run(PicoRunner(predictor, 1, calls=True).run("fragment", source))


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("first, second = sys.argv[1:]", 2),
        ("(first,) = sys.argv[1:]", 1),
        ("program, a, *more = argv", 1),
        ("a = sys.argv[2:]", 2),
        ("print(sys.argv[3], sys.argv[-1], x[9])", 3),
        ("a, b, c = f(argv)", 0),
        ("print(sys.argv[99])", 20),
    ],
)
def test_a_command_line_has_as_many_words_as_are_read(source: str, count: int) -> None:
    assert given_argv(source) == ["1"] * count


def test_a_long_line_of_data_is_read_at_once() -> None:
    """Looked for by patterns, this took minutes."""
    assert given_argv("x = [" + "1, " * 20_000 + "]\nargv[1]") == ["1"]


def test_a_callable_is_not_asked_for_attributes() -> None:
    class Asked:
        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

    assert arguments_of(Asked()) == []


def test_the_sandboxs_own_files_are_no_modules_of_a_fragment() -> None:
    assert {path.stem for path in PICO_BOX.glob("*.py")} - {"__init__", "recorder"} <= OWN_MODULES


@pytest.mark.parametrize(
    ("source", "purpose"),
    [
        ("if 1: raise ValueError('no')", True),
        ("assert 1 == 2, 'text'", True),
        ("assert (1 ==\n  2)", True),
        ("raise KeyError", True),
        ("raised = 1 + 'a'", False),
        ("raise ValueError(1 + 'a')", False),
        ("assert 1 + 'a'", False),
        ("int('a')", False),
    ],
)
def test_only_a_statement_that_raises_raises_on_purpose(source: str, purpose: bool) -> None:
    with pytest.raises(Exception) as caught:
        exec(compile(source, "fragment.py", "exec"), {})
    assert raised_on_purpose(caught.value, "fragment.py", ast.parse(source)) is purpose


HARD = """import dataclasses, enum, sys
from abc import ABC, abstractmethod
scale = lambda x: x * 2
print(size)
def first(): print("first")
class Base(ABC):
    @abstractmethod
    def run(self): ...
    def go(self): return self.run()
class Color(enum.Enum):
    RED = 1
    def shown(self): return self.name
@dataclasses.dataclass
class Pair:
    count: int
    def more(self): return self.count + "a"
class Cart:
    def __init__(self, *, owner: str): self.owner = owner
    @property
    def total(self): print("total")
    @total.setter
    def total(self, value): print("set")
    def __secret(self): print("secret", self.owner)
def area(size: int): return size
def main(): sys.exit(0)
class Env:
    def __getattr__(self, name): return {}[name]
    def __call__(self): return 1
Env()()
"""


@boxed
def test_what_no_object_can_be_made_of_is_left_and_the_program_written_runs(tmp_path: Path) -> None:
    result = called(HARD)
    assert (result.end, result.problem) == (None, "")
    names = [each.name for each in result.found if each.kind == "called"]
    assert names == ["main", "area", "Cart.__secret", "Cart.total", "Cart.total", "Pair.more", "Color.shown", "first",
                     "<lambda>"]  # fmt: skip
    assert [(f.line, f.error, f.sure) for f in result.findings] == [(16, "TypeError", False)]
    assert {p.key: p.line for p in result.puts}["attribute:count"] == 16  # not one of another file
    path = tmp_path / "runnable.py"
    path.write_text(standalone(result))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)
    said = [line.split(" <")[0] for line in done.stdout.splitlines()[1:]]
    assert done.returncode == 0 and said[:4] == ["SystemExit: 0", "secret", "set", "total"], done.stderr
    assert said[-1] == "first"


@boxed
def test_a_call_that_does_not_end_is_left(tmp_path: Path) -> None:
    result = called(
        "import time\ndef above():\n    print('above')\ndef serve():\n    while True:\n        time.sleep(9)\n"
    )
    assert (result.end, result.stopped, result.output) == (None, None, "above\n")
    assert [each.what for each in result.found][-1] == "serve had not ended after 2 seconds and was left"
    assert "# serve is not called" in standalone(result) and "_call(lambda: serve" not in standalone(result)


WRITES = """import json
with open("events.jsonl", "a") as file:
    for name, x in ("print('x') or f", {}), ("f", {"expression": "print('x')"}):
        made = {"event": "called", "line": 1, "name": name, "gets": "", "arguments": {"x": x}, "named": []}
        file.write(json.dumps(made) + "\\n")
    put = {"event": "value", "line": 1, "key": "name:q", "guess": {"expression": "print('x')"}, "tried": 0, "shown": ""}
    file.write(json.dumps(put) + "\\n")
def f(x): return 1
"""


@boxed
def test_code_of_the_program_written_is_the_fragments_or_a_given_value() -> None:
    result = called(WRITES, Given({"expression": "[7]"}))
    assert result.problem.startswith("3 lines of its report are not the runtime's")
    written = standalone(result)
    assert "_call(lambda: f([7]))" in written and written.count("print('x')") == WRITES.count("print('x')")


HEADED = """commit 0a1b
Author: A <a@b.c>

    Message.

diff --git a/x.py b/x.py
old mode 100644
new mode 100755
Binary files a/y.png and b/y.png differ
diff --git a/x.py b/x.py
--- a/x.py
+++ b/x.py
@@ -1,2 +1,2 @@ def f():
-old = 1
+new = 1
 print(new)
\\ No newline at end of file
-- 
2.39.0
"""


def test_a_diff_has_heads_of_any_kind() -> None:
    [fragment] = fragments("x.diff", HEADED)
    assert [line for line in fragment.source.splitlines() if line[:1] not in "#"] == ["new = 1", "print(new)"]
    for wrong in (HEADED.replace("-1,2", "-1,3"), HEADED.replace("2.39.0", "@@ -1,1 +1,1 @@\n?")):
        assert fragments("x.diff", wrong)[0].source == wrong


def test_hunks_without_counts_are_read_by_their_marks() -> None:
    text = "old mode 100644\nnew mode 100755\n@@\n-old = 1\n+new = 1\n"
    assert fragments("x.diff", text)[0].source.splitlines()[-1] == "new = 1"
