"""The whole way on the command line, with the demo pair: from the planted page to a plan."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("httpx2", reason="the extra apps is not installed")

from paceline.apps.common.sandbox import unavailable
from paceline.apps.prophetfuzz.assemble import FuzzPlan
from paceline.apps.prophetfuzz.campaign import PLANTED_PAGE
from paceline.apps.prophetfuzz.command import app
from tests.apps.scripted import scripted

pytestmark = [
    pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox can be made here: {unavailable()}"),
    pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed"),
]


def answers(body: dict[str, object]) -> str:
    """What a model might say, by the schema that it is held to."""
    schema = str(body["response_format"])
    if "conflicts" in schema:
        return '{"conflicts": [{"first": "-r", "second": "-i"}], "dependencies": []}'
    if "combinations" in schema:
        return json.dumps({"reason": "r", "combinations": [["-r", "-m"], ["-r", "-i"], ["-s", "-i"]]})
    if "second" in schema:
        return '{"first": "yes", "second": "no"}'
    return '{"value0": "32"}' if "value0" in schema else "{\"program\": \"open('file0', 'w').write('P1')\"}"


def test_predict_with_a_scripted_server(tmp_path: Path) -> None:
    with scripted(answers) as (url, _):
        done = CliRunner().invoke(
            app,
            ["predict", "inkpress", "--man", str(PLANTED_PAGE), "--url", url, "--samples", "2", "--votes", "2",
             "--out", str(tmp_path), "--json"],
        )  # fmt: skip
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["constraints"] == [
        "--interlace cannot be used with --rotate.",
        "--strict must be used with --trim.",  # the page says so itself, and the model does not
    ]
    assert [c["args"] for c in answer["commands"]] == [
        ["-s", "32", "--interlace", "@@"],
        ["--rotate", "--mirror", "@@"],
    ] or [c["args"] for c in answer["commands"]] == [["--interlace", "-s", "32", "@@"], ["--mirror", "--rotate", "@@"]]
    assert FuzzPlan.of(json.loads((tmp_path / "plan.json").read_text())).program == "inkpress"
    assert "--interlace cannot be used with --rotate." in (tmp_path / "prediction.html").read_text()


def test_predict_for_standard_input_with_a_further_file(tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_bytes(b"P5")
    with scripted(answers) as (url, _):
        done = CliRunner().invoke(
            app,
            ["predict", "inkpress", "--man", str(PLANTED_PAGE), "--url", url, "--samples", "2", "--votes", "2",
             "--values", "2", "--stdin", "--aux", f"words.txt={words}", "--out", str(tmp_path), "--json"],
        )  # fmt: skip
    assert done.exit_code == 0, done.output
    plan = FuzzPlan.of(json.loads((tmp_path / "plan.json").read_text()))
    assert plan.commands and all("@@" not in command.args for command in plan.commands)
    assert plan.files == {"words.txt": b"P5"}


def test_predict_with_the_demo_pair(demo_url: str, tmp_path: Path) -> None:
    page = tmp_path / "mini.1"
    page.write_text(
        ".TH MINI 1\n.SH NAME\nmini \\- a mini tool\n.SH OPTIONS\n.TP\n.B \\-a\nAll.\n"
        ".TP\n.B \\-b\nBoth. Not with \\-a.\n"
    )
    done = CliRunner().invoke(
        app,
        ["predict", "mini", "--man", str(page), "--url", demo_url, "--samples", "1", "--votes", "1",
         "--deadline", "120", "--out", str(tmp_path / "out"), "--json"],
    )  # fmt: skip
    assert done.exit_code in (0, 1), done.output  # 1: most of what so small a model says is cut short
    answer = json.loads(done.stdout)
    assert answer["server"]["calls"] >= 1 and answer["server"]["deadlines"] >= 3
    assert (tmp_path / "out" / "prediction.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "no-such-program-here"], "no man page"),
        (["fuzz", str(PLANTED_PAGE)], "is not a plan"),
        (["predict", "x", "--man", str(PLANTED_PAGE), "--aux", "words"], "takes NAME=FILE"),
        (["predict", "x", "--man", str(PLANTED_PAGE), "--aux", "words=/none"], "No such file"),
        (["predict", "x", "--man", str(PLANTED_PAGE), "--aux", f"input={PLANTED_PAGE}"], "cannot be the name"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2 and message in done.output
