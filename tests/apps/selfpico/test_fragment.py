"""Fragments through the sandbox: values, fallbacks, lines, errors; the study and its report."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("libcst", reason="the extra apps is not installed")

from paceline.apps.common.client import AppClient
from paceline.apps.common.sandbox import AppLimits, unavailable
from paceline.apps.selfpico.box import dummies
from paceline.apps.selfpico.cut import PICO_SCRIPTS, SEEDED, scripts
from paceline.apps.selfpico.emit import standalone
from paceline.apps.selfpico.fragment import ENDLESS, PicoRunner, Ran
from paceline.apps.selfpico.predict import Guess, Hole, Nothing, Ordered, PicoModel, Types, usual_order
from paceline.apps.selfpico.sources import gathered
from paceline.apps.selfpico.study import Study
from paceline.apps.selfpico.table import SHIPPED, Table
from paceline.apps.selfpico.taint import tainted
from paceline.apps.selfpico.uses import allowed, uses_of
from tests.apps.scripted import scripted

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox can be made here: {unavailable()}")


class Given:
    """Answers from a list, and keeps what it was asked."""

    name = "given"

    def __init__(self, *guesses: Guess) -> None:
        self.guesses, self.asked = iter(guesses), list[Hole]()

    async def predict(self, hole: Hole, fragment: str) -> Guess:
        self.asked.append(hole)
        return next(self.guesses, {"stop": True})


def ran(source: str, predictor: Any, rounds: int = 1) -> Ran:
    result = asyncio.run(PicoRunner(predictor, rounds).run("fragment", source))
    assert not result.problem, result.problem
    return result


def test_as_is_a_fragment_ends_at_the_first_thing_missing() -> None:
    result = ran("x = 1\ny = missing\nz = 3\n", Nothing())
    assert (result.ran, result.lines, result.end) == ({1, 2}, {1, 2, 3}, "NameError")


def test_a_failed_guess_is_asked_for_again_with_its_error_then_a_type_stands_in() -> None:
    given = Given({"expression": "1 +"}, {"expression": "nope"}, {"type": "List"})
    result = ran("for x in things:\n    print('once')\n", given)
    assert (result.share, result.output) == (1, "once\n")
    assert ["SyntaxError" in h.problem or "NameError" in h.problem for h in given.asked] == [False, True, True]
    assert [p.guess for p in result.puts] == [{"type": "List"}]


def test_one_key_has_one_value_and_definitions_stay() -> None:
    given = Given({"code": "class Cart:\n    size = 3", "expression": "Cart()"}, {"expression": "Cart()"})
    result = ran("a = cart\nb = cart\nprint(a is b, other.size)\n", given)
    assert result.output == "True 3\n" and len(given.asked) == 2


def test_modules_attributes_and_calls_are_supplied_where_nobody_handles_their_absence() -> None:
    source = (
        "import no_such_module.part\nfrom .sibling import helper\n"
        "try:\n    import also_absent\nexcept ImportError:\n    also_absent = None\n"
        "try:\n    unicode\nexcept NameError:\n    unicode = str\n"
        "print(also_absent, unicode, no_such_module.part.run(2), int('x'), helper)\n"
    )
    given = Given({"expression": "'H'"}, {"expression": "lambda n: n + 1"}, {"expression": "7"})
    result = ran(source, given)
    assert result.output == "None <class 'str'> 3 7 H\n", result
    assert [h.key for h in given.asked] == ["name:helper", "attribute:run", "call:int"]
    [finding] = result.findings
    assert (finding.error, finding.line, finding.passed, finding.sure) == ("ValueError", 11, True, False)


def test_an_error_that_the_fragment_handles_or_raises_is_its_own() -> None:
    source = (
        "def check(n):\n    if n > 1:\n        raise ValueError('big')\n    return n\n"
        "try:\n    int('x')\nexcept ValueError:\n    print('handled')\n"
        "try:\n    check(2)\nexcept Exception:\n    print('raised')\ncheck(3)\n"
    )
    result = ran(source, Given())
    assert (result.output, result.end) == ("handled\nraised\n", "ValueError")


def test_a_value_is_asked_for_only_where_the_execution_needs_one() -> None:
    async def go(url: str, source: str) -> Ran:
        async with AppClient(url) as client:
            return await PicoRunner(PicoModel(client), 4).run("f", source)

    def answers(body: dict[str, Any]) -> str:
        return "String" if "Answer with one of" in body["messages"][-1]["content"] else "{}"

    with scripted(answers) as (url, bodies):
        free = asyncio.run(go(url, "b = items\nfor c in b.parts():\n    print(c + count)\n"))
        assert (free.share, free.runs, bodies) == (1, 1, [])
        result = asyncio.run(go(url, "b = items\nprint('a' + name, b)\nprint('end')\n"))
    assert (result.share, result.runs) == (1, 2) and result.output.endswith("end\n"), result
    assert {p.key: p.guess["how"] for p in result.puts} == {"name:items": "object", "name:name": "String"}
    asked = bodies[0]["messages"][-1]["content"]
    assert "It ended with TypeError" in asked and "String" in asked.rpartition("one of: ")[2]
    assert "Integer" not in asked.rpartition("one of: ")[2], "a number cannot be added to a text"


def test_a_condition_that_keeps_lines_from_running_is_turned() -> None:
    source = "if done:\n    raise SystemExit\na = 1\nb = 2\nif mode == 'fast':\n    c = 3\n"
    result = ran(source, Ordered(usual_order, "search"), 6)
    assert {1, 3, 4, 5} <= result.ran and 2 not in result.ran
    assert {p.key: p.guess["how"] for p in result.puts}["name:done"] in ("None", "False")
    assert result.runs <= 6 and ran(source, Types(lambda hole, fragment: "Object")).ran == {1, 2}


def test_usual_modules_and_files_are_there_without_asking() -> None:
    source = (
        "rows = list(csv.DictReader(open('data/in.csv')))\nwords = Counter(r['name'] for r in rows)\n"
        "for n in os.listdir('photos'):\n    pass\nprint(np.mean([1, 3]), words['Ada'], string)\n"
        "try:\n    open('none.txt')\nexcept FileNotFoundError:\n    print('own')\n"
    )
    result = ran(source, Ordered(usual_order, "search"), 1)
    assert result.end is None and result.output.startswith("2.0 1 <dummies.Dummy") and "own" in result.output, result
    assert {each.what for each in result.found} >= {"file data/in.csv made", "folder photos made"}
    assert [p.key for p in result.puts] == ["name:string"], "a name whose attributes are not read stays a variable"


@pytest.mark.parametrize(
    ("source", "key", "within", "without"),
    [
        ("x.split(',')[0]", "name:x", {"String", "Object"}, {"Integer", "None", "List"}),
        ("x + 1", "name:x", {"Integer", "Float"}, {"String", "None", "List"}),
        ("for a, b in x:\n    pass", "name:x", {"Pairs", "Empty list"}, {"Integer", "Numbers"}),
        ("f.x['id']", "attribute:x", {"Dictionary", "Empty dictionary"}, {"List", "String", "Integer"}),
        ("open(p)", "name:p", {"String"}, {"List", "None"}),
        ("with q() as h:\n    h.read()", "call:q", {"Resource"}, {"Integer", "String"}),
    ],
)
def test_values_are_those_that_the_uses_allow(source: str, key: str, within: set[str], without: set[str]) -> None:
    found = set(allowed(uses_of(source)[key], source))
    assert within <= found and not without & found


@pytest.mark.parametrize("source", ["x ** 9999999999", "9999999999 ** x", "x * 9999999999", "'%9999999999d' % x"])
def test_uses_are_tried_with_numbers_that_end(source: str) -> None:
    """They are tried in this process, outside the sandbox: a fragment's own numbers would fill the memory."""
    assert "Integer" in allowed(uses_of(source).get("name:x"), source)


@pytest.mark.parametrize(
    ("name", "text", "source"),
    [
        ("a.txt", "Text\n>>> x = 1\n>>> for i in y:\n...     print(i)\n1\n", "for i in y:"),
        ("a.py", "In [1]: x = 1\nIn [2]: %time f(x)\nOut[2]: 3\n", "pass  # %time f(x)"),
        ("n.ipynb", json.dumps({"cells": [{"cell_type": "markdown", "source": ["# T"]}, {"cell_type": "code",
         "source": ["!pip install z\n", "x = y"]}, {"cell_type": "code", "source": ["%%bash\n", "ls"]}]}), "x = y"),
        ("r.md", "# T\n```bash\nls\n```\nor\n```python\nx = y\n```\nand\n```\n>>> z\n3\n```\n", "x = y"),
        ("d.py", 'def f(x):\n    """Twice.\n\n    >>> f(1)\n    2\n    """\n    return 2 * x\n', "return 2 * x"),
        ("t.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": ["%%time\n", "x = [1,  # why?\n", "  2]"]}]}),
         "x = [1,  # why?"),
    ],
)  # fmt: skip
def test_fragments_as_users_have_them(tmp_path: Path, name: str, text: str, source: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_text(text)
    found = gathered([tmp_path / "in" / name])
    assert (
        source in found[0].source and "ls" not in found[0].source.split() and len(found) == (2 if name == "r.md" else 1)
    )
    for each in found:
        compile(each.source, "x", "exec")
    assert bool(gathered([tmp_path / "in"])) == name.endswith((".py", ".ipynb"))


@pytest.mark.parametrize(
    "source",
    [
        "import absent_thing\nfrom other.part import f\nprint(absent_thing.x(1) + 2, f(cart.items[0].price))\n",
        "total = sum(int(w) for w in text.split())\nprint('a' + name, total)\nreturn total\n",
        "data = json.loads(open('in.json').read())\nprint(data['name'], np.mean(values))\n",
        "print(datetime.datetime(2024, 1, 2), urllib.parse.quote('a b'), pprint.pformat(1), deque([1]).pop())\n",
        "from __future__ import annotations\nfor n in os.listdir('a/b'):\n    pass\ndef f(x: Lacking): ...\n"
        "print(open('a/b/c is d.csv').read(), len(thing))\n",
        "for n in range(2):\n    yield n * k\n",
    ],
)
def test_what_is_written_out_runs_by_itself(tmp_path: Path, source: str) -> None:
    result = ran(source, Ordered(usual_order, "search"), 4)
    assert result.end is None, result
    (tmp_path / "runnable.py").write_text(standalone(result))
    (tmp_path / "in.json").write_text('{"name": "the user\'s own"}')
    done = subprocess.run([sys.executable, "runnable.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "the user's own" in (tmp_path / "in.json").read_text()


def test_what_cannot_be_written_out_is_said(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from paceline.apps.selfpico.command import app

    (tmp_path / "x.py").write_text("def (\n")
    options = ["--predictors", "object", "--out", str(tmp_path / "out")]
    for emit, said in (("y.py", "cannot be written out"), ("x.py", "would overwrite")):
        done = CliRunner().invoke(app, ["run", str(tmp_path / "x.py"), "--emit", str(tmp_path / emit), *options])
        assert done.exit_code == 2 and said in done.output.replace("\n", " "), done.output
    assert (tmp_path / "x.py").read_text() == "def (\n" and not (tmp_path / "y.py").exists()


def test_a_program_that_lacks_is_no_file() -> None:
    result = ran("import subprocess\nsubprocess.run(['no-such-program'])\n", Ordered(usual_order, "search"), 1)
    assert not result.found


@pytest.mark.parametrize("kind", dummies.PICO_TYPES)
def test_each_type_has_a_value_of_that_type(kind: str) -> None:
    seen = dummies.type_of(dummies.value(kind))
    stand_ins = {"Tensor": "List", "Array": "List", "DataFrame": "Dictionary", "Object": "Callable"}
    assert seen in (kind, stand_ins.get(kind), "List")


def test_a_loop_without_end_is_left_and_what_nobody_calls_still_runs() -> None:
    source = (
        "import asyncio, threading, time\nasyncio.run(asyncio.sleep(60))\nthreading.Event().wait(60)\n"
        "def f():\n    return 1\nwhile True:\n    time.sleep(60)\n"
    )
    runner = PicoRunner(Ordered(usual_order, "without the model"), 3, calls=True)
    result = asyncio.run(runner.run("fragment", source))
    assert (result.stopped, result.end, result.share, result.runs) == (ENDLESS, None, 1, 1)


def test_limits_end_a_fragment_and_keep_its_lines() -> None:
    source = "x = 1\nsum(range(10**12))\nx = 2\n"
    result = asyncio.run(PicoRunner(Nothing(), 1, AppLimits(cpu_s=2)).run("fragment", source))
    assert result.stopped in ("cpu", "time") and result.ran == {1, 2}


def test_what_is_unknown_has_as_many_items_as_it_is_unpacked_to(tmp_path: Path) -> None:
    source = (
        "dis = 3.5\nX, y = load()\na, (b, c) = pair()\n*first, last = things()\nd, *e, f = more\n"
        "for k, v in table.items():\n    print(len(first), len(e))\nprint([p for p, q, r in rows], len([*rows]))\n"
    )
    result = ran(source, Types(lambda hole, fragment: "Object"))
    assert (result.share, result.end, result.output[:4]) == (1, None, "0 0\n")
    path = tmp_path / "runnable.py"
    path.write_text(standalone(result))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("0 0\n"), done.stderr


def test_what_a_models_code_tries_is_kept_from_happening_and_reported() -> None:
    evil = {"code": "import socket\nsocket.socket()", "expression": "1"}
    result = ran("print(x)\n", Given(evil, {"expression": "open('/etc/passwd', 'a')"}, {"expression": "2"}))
    assert result.output == "2\n" and result.attempts == ("network: AF_INET", "write: /etc/passwd")


def test_lines_are_those_that_coverage_counts() -> None:
    coverage = pytest.importorskip("coverage", reason="coverage is not installed")
    source = (
        "import math\ndef f(x):\n    '''Doc.'''\n    if x:\n        return 1\n    return [\n        2,\n        x]\n"
        "f(0)\nfor i in ():\n    f(i)\n"
    )
    path = Path("fragment_for_coverage.py")
    result = ran(source, Nothing())
    watch = coverage.Coverage(data_file=None, include=[f"*{path}"])
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, path)
        file.write_text(source)
        watch.start()
        exec(compile(source, str(file), "exec"), {})
        watch.stop()
        _, statements, _, missing, _ = watch.analysis2(str(file))
    ours = {line for line in result.ran if line in statements}
    assert ours == set(statements) - set(missing)


def test_the_table_knows_what_names_usually_are() -> None:
    table = Table.read(SHIPPED)
    hole = Hole("name:lines", "name", "lines", 1, "", "", 0)
    assert table.choose(hole, "for line in lines:\n    pass") == "List"
    fresh = Table()
    for _ in range(5):
        fresh.add("name", "user_count", "user_count + 1", "Integer")
        fresh.add("name", "file_name", "open(file_name)", "String")
    assert fresh.choose(Hole("", "name", "item_count", 1, "", "", 0), "item_count + 2") == "Integer"


def test_shipped_scripts_and_seeds() -> None:
    assert len(scripts(PICO_SCRIPTS)) == 100 and all(f.seeded is None for f in scripts(PICO_SCRIPTS))
    assert len(scripts(SEEDED)) == 20 and all(f.seeded for f in scripts(SEEDED))


def test_seeded_errors_are_found_when_names_have_values() -> None:
    study = Study(scripts(SEEDED)[:4])
    asyncio.run(study.run(Types(lambda hole, fragment: "String"), 1, 4, lambda: None))
    [row] = study.rows()
    assert (row["seeded"], row["seeded_found"]) == (4, 4)


def test_end_to_end_with_the_demo_pair(demo_url: str, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from paceline.apps.selfpico.command import app

    script = tmp_path / "cart.py"
    script.write_text("print('<b>' + ready, size)\nprint('end')\n")
    arguments = [
        "run",
        str(script),
        "--url",
        demo_url,
        "--out",
        str(tmp_path / "out"),
        "--json",
        "--log",
        str(tmp_path / "log"),
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["fragments"][0]["share"] > 0 and answer["server"]["calls"] >= 1
    page = (tmp_path / "out" / "report.html").read_text()
    assert "&lt;b&gt;" in page and "<b>" not in page and 'class="ran"' in page
    again = CliRunner().invoke(app, [*arguments[:-2], "--replay", str(tmp_path / "log"), "--url", "http://127.0.0.1:9"])
    assert json.loads(again.stdout)["fragments"] == answer["fragments"]


@pytest.mark.parametrize(
    ("source", "keys", "lines"),
    [
        ("x = y\nz = x + 1\nprint(3)\nprint(z)", {"name:y"}, {1, 2, 4}),
        ("for a in b:\n    c.append(a)\nprint(c)\nprint(1)", {"name:b"}, {1, 2, 3}),
        ("def f(p):\n    return p + 1\nf(1)\nf(q)", {"name:q"}, {2, 3, 4}),
        ("with open(p) as h:\n    t = h.read()\nn = len(t)\nm = 2", {"name:p"}, {1, 2, 3}),
        ("o.v = u\nprint(o.v)\nprint(k)", {"name:u"}, {1, 2}),
        ("if flag:\n    n = 3\nprint(n + 'a')", {"name:flag"}, {1}),
        ("d = {}\nd[w] = 1\nprint(d)", {"name:w"}, {2, 3}),
    ],
)
def test_put_in_values_are_followed(source: str, keys: set[str], lines: set[int]) -> None:

    assert tainted(source, 0, keys, set()) == lines


def test_a_made_file_has_the_fields_that_are_read_and_no_error_after_it_is_sure() -> None:
    result = ran(
        "import csv, json\nrows = list(csv.DictReader(open('in.csv')))\n"
        "print(rows[0]['price'], rows[0].get('city'), json.load(open('c.json'))['folder'])\nprint(rows[0]['id'] / 2)\n",
        Ordered(Table.read(SHIPPED).order, "table"),
    )
    assert "1 a1 a1" in result.output and len(result.ran) == 4
    assert [(f.line, f.error, f.sure) for f in result.findings] == [(4, "TypeError", False)]


def test_a_made_folder_holds_a_file_of_the_ending_that_is_asked_for() -> None:
    result = ran(
        "for name in os.listdir('in'):\n    if name.endswith('.csv'):\n"
        "        print(open(os.path.join('in', name)).read())\n",
        Ordered(Table.read(SHIPPED).order, "table"),
    )
    assert result.share == 1 and "Ada" in result.output


def test_standard_input_is_a_text_for_sure() -> None:
    result = ran("age = input('Age? ')\nif age >= 18:\n    print('adult')\n", Nothing())
    assert [(f.line, f.error, f.sure) for f in result.findings] == [(2, "TypeError", True)]
    assert not any(f.sure for f in ran("n = int(input())\nprint([5][n])\n", Nothing()).findings)


REST = """
@app.route("/")
def page(name: str, size):
    return name + "!"

class Cart:
    def __init__(self, owner):
        self.owner = owner
    def total(self, items):
        return "sum: " + sum([1, 2])
    @classmethod
    def empty(cls):
        raise ValueError("no")

def used():
    return 1
used()
"""


def test_functions_that_nobody_calls_are_called_at_the_end(tmp_path: Path) -> None:
    runner = PicoRunner(Ordered(usual_order, "without the model"), 1, calls=True)
    result = asyncio.run(runner.run("fragment", REST))
    assert result.end is None and result.share == 1
    called = [each.name for each in result.found if each.kind == "called"]
    assert called == ["Cart.empty", "Cart.total", "page"]
    assert {p.key: p.shown for p in result.puts}["name:name"] == "'a'"  # by its annotation
    assert [(f.line, f.error, f.sure) for f in result.findings] == [(10, "TypeError", True)]  # a refusal is none
    path = tmp_path / "runnable.py"
    path.write_text(standalone(result))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.splitlines()[1].startswith("TypeError"), done.stderr


COMMAND_LINE = """
import argparse, sys
first, second = sys.argv[1:]
parser = argparse.ArgumentParser()
parser.add_argument("root")
parser.add_argument("--size", type=int, required=True)
args = parser.parse_args()
line = len(args.size)
with open(path) as file:
    print(f"{score:.2f} {file.read()}")
sys.exit(0)
"""


def test_a_command_line_is_given_and_a_programs_end_is_no_error() -> None:
    result = ran(COMMAND_LINE, Ordered(usual_order, "without the model"))
    assert (result.share, result.end, result.output) == (1, None, "1.00 1 2 3\n4 5 6\n7 8 9\n\n")
    assert [(f.line, f.error, f.sure) for f in result.findings] == [(8, "TypeError", False)]


def test_of_a_diff_the_new_side_runs(tmp_path: Path) -> None:
    path = tmp_path / "change.diff"
    path.write_text("--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n-    if old:\n+    if user.new:\n         grant(user)\n")
    [fragment] = gathered([path])
    assert fragment.source.splitlines()[3:] == ["    # -    if old:", "    if user.new:", "        grant(user)"]
    assert ran(fragment.source, Ordered(usual_order, "without the model")).share == 1


LACKS_ITS_BASES = """# -*- coding: latin-1 -*-
from dataclasses import dataclass
from .base import Mixin, Model
@dataclass
class Item(Model, Mixin):
    name: str
item = Item("M\u00fcller")
print(item.name, item.save())
"""


def test_classes_derive_from_bases_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "item.py"
    path.write_bytes(LACKS_ITS_BASES.encode("latin-1"))
    (fragment,) = gathered([path])
    result = ran(fragment.source, Given(*[{"type": "Object"}] * 9))
    assert (result.end, result.share) == (None, 1) and result.output.startswith("M\u00fcller"), result
    path.write_text(standalone(result), encoding="utf-8")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, encoding="utf-8", timeout=60)
    assert done.stdout.startswith("M\u00fcller"), done.stderr
    assert {4, 5} <= tainted(LACKS_ITS_BASES, 0, (), [3])


@pytest.mark.parametrize(
    "source",
    [
        "del cache['k']\nobject_.inner = 5\nrows[3] = rows[1] + rows[2]\n",
        "while (chunk := stream.read(1024)):\n    handle(chunk)\nprint('after')\n",
        "import json, sys\nwith open(sys.argv[1]) as f:\n    d = json.load(f)\nprint(d['items'][0]['price'])\n",
        "from argparse import ArgumentParser\np = ArgumentParser()\np.add_argument('input', type=int)\n"
        "print(p.parse_args().input * rate)\n",
    ],
)
def test_fragments_run_to_their_end_and_so_does_what_is_written_out(tmp_path: Path, source: str) -> None:
    made = ran(source, Ordered(usual_order, "search"), 2)
    assert made.ran == made.lines and made.end is None and made.stopped is None
    path = tmp_path / "made.py"
    path.write_text(standalone(made))
    subprocess.run([sys.executable, path], check=True, cwd=tmp_path, timeout=30)


def test_a_crash_of_native_code_is_said() -> None:
    source = "import ctypes\nctypes.string_at(0)\nprint(x)\n"
    made = asyncio.run(PicoRunner(Nothing(), 1).run("f", source))
    assert "SIGSEGV" in made.problem and made.ran == {1, 2}
