"""Fragments through the sandbox: values, fallbacks, lines, errors; the study and its report."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("libcst", reason="the extra apps is not installed")

from paceline.apps.common.client import AppClient
from paceline.apps.common.sandbox import unavailable
from paceline.apps.selfpico.box import dummies
from paceline.apps.selfpico.cut import PICO_SCRIPTS, SEEDED, scripts
from paceline.apps.selfpico.fragment import PicoRunner, Ran
from paceline.apps.selfpico.predict import Guess, Hole, Nothing, PicoModel, Types
from paceline.apps.selfpico.study import Study
from paceline.apps.selfpico.table import SHIPPED, Table
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


def test_a_run_is_mended_and_the_rest_stays() -> None:
    replies = iter([
        {"reason": "", "code": "", "expression": "'three'"}, {"reason": "", "code": "", "expression": "[1]"},
        {"reason": "", "code": "", "expression": "3"},
    ])  # fmt: skip

    async def go(url: str) -> Ran:
        async with AppClient(url) as client:
            return await PicoRunner(PicoModel(client), 2).run("f", "b = items\nprint(count + 1, b)\nprint('end')\n")

    with scripted(lambda body: json.dumps(next(replies))) as (url, bodies):
        result = asyncio.run(go(url))
    assert [p.shown for p in result.puts] == ["'three'", "3"] or result.output == "4 'three'\nend\n"
    assert (result.share, result.runs) == (1, 2), result
    assert "line 2 then raised TypeError" in bodies[-1]["messages"][-1]["content"]


@pytest.mark.parametrize("kind", dummies.PICO_TYPES)
def test_each_type_has_a_value_of_that_type(kind: str) -> None:
    seen = dummies.type_of(dummies.value(kind))
    stand_ins = {"Tensor": "List", "Array": "List", "DataFrame": "Dictionary", "Object": "Callable"}
    assert seen in (kind, stand_ins.get(kind), "List")


def test_limits_end_a_fragment_and_keep_its_lines() -> None:
    result = ran("x = 1\nwhile True:\n    x += 1\n", Nothing())
    assert result.stopped in ("cpu", "time") and result.ran == {1, 2, 3}


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
    script.write_text("if ready:\n    print('<b>', size)\nprint('end')\n")
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
    from paceline.apps.selfpico.taint import tainted

    assert tainted(source, 0, keys, set()) == lines
