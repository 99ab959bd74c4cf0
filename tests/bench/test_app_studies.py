"""Studies of applications: what is recorded is gone on with, by its settings, and nothing else."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.studies import app_speculation, jssp, quantagent, selfpico
from bench.studies.judged import Record
from paceline.apps.quantagent.agents import QuantDecision
from paceline.apps.selfpico.cut import Fragment
from paceline.cluster.learn.dispatcher import DispatchNetwork, save
from paceline.cluster.workflow.jssp.problem import random_problem
from paceline.cluster.workflow.jssp.rules import DISPATCHING_RULES, dispatch


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    made = {}
    for number in range(1, 5):
        it = random_problem(np.random.default_rng(number), 3, 3)
        made[f"ta{number:02d}"] = {
            "machines_matrix": it.machines, "duration_matrix": it.durations, "metadata": {"upper_bound": 100},
        }  # fmt: skip
    path = tmp_path / "problems.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    return path


def test_a_policy_is_added_and_another_refused(
    problems: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    solved = list[str]()

    def greedy(network: DispatchNetwork, problem: Any) -> Any:
        solved.append(problem.name)
        return dispatch([problem], DISPATCHING_RULES["MTWR"])[0]

    monkeypatch.setattr(jssp, "solve", greedy)
    record, first, other = (problems.parent / name for name in ("r.jsonl", "one.safetensors", "two.safetensors"))
    for number, path in enumerate((first, other)):
        network = DispatchNetwork()
        next(network.parameters()).data[:] = number
        save(network, path)
    words = ["--problems", str(problems), "--record", str(record), "--every", "2"]
    jssp.main(words)
    assert len(solved) == 2, "every second problem of all"
    record.write_text(record.read_text(encoding="utf-8") + '{"row": "MTWR", "i', encoding="utf-8")  # it was killed
    solved.clear()
    capsys.readouterr()
    jssp.main([*words, "--policy", str(first)])
    said = capsys.readouterr().out
    assert len(solved) == 2, "only what the record lacks"
    assert "learned - it" in said and "all (2 problems)" in said and "learned: " in said
    solved.clear()
    jssp.main([*words, "--policy", str(first)])
    jssp.main([*words, "--report"])
    assert not solved
    with pytest.raises(SystemExit, match="was made with policy"):
        jssp.main([*words, "--policy", str(other)])
    jssp.main(["--problems", str(problems), "--names", "ta01-ta04", "--every", "3"])
    assert set(solved) == {"ta01", "ta04"}
    with pytest.raises(SystemExit):
        jssp.main([*words, "--names", "ta01"])


async def test_requests_are_known_by_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of one name are two; each pass has its own salt; another server is refused."""
    salts, server = list[str](), {"model": "one"}

    class Client:
        def __init__(self, url: str) -> None:
            self.model = server["model"]

        async def __aenter__(self) -> "Client":
            return self

        async def __aexit__(self, *_: object) -> None:
            return None

        async def stats(self) -> dict[str, Any]:
            return {"draft": "small"}

    async def passed(
        url: str, bodies: list[Any], mode: str, salt: str, at_once: int
    ) -> tuple[dict[str, Any], list[str]]:
        salts.append(salt)
        made = {"seconds": 1.0, "generated": 3, "prompt": 1, "drafted": 2, "accepted": 1}
        return made, [json.dumps(body) for body in bodies]

    monkeypatch.setattr(app_speculation, "AppClient", Client)
    monkeypatch.setattr(app_speculation, "passed", passed)
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "requests.jsonl")
        paths[-1].write_text(json.dumps({"of": folder}), encoding="utf-8")
    given = Namespace(files=paths, url="", turns=2, at_once=1, record=tmp_path / "r.jsonl", served_as=None)
    await app_speculation.replay(given)
    assert len(set(salts)) == len(salts) == 8
    await app_speculation.replay(given)
    assert len(salts) == 8 and len({each["row"] for each in Record(given.record).all}) == 2
    for name, value in (("at_once", 2), ("served_as", "int4")):
        with pytest.raises(SystemExit, match="was made with"):
            await app_speculation.replay(Namespace(**{**vars(given), name: value}))
    server["model"] = "two"
    with pytest.raises(SystemExit, match="was made with model one, not two"):
        await app_speculation.replay(given)


def test_a_decision_without_an_answer_leans_nowhere() -> None:
    assert quantagent.leaned(QuantDecision(0, "late")) == 0
    assert quantagent.leaned(QuantDecision(0, "even", leaning=0.8)) == 1
    assert quantagent.leaned(QuantDecision(-1, "", probability=0.6, leaning=0.9)) == 1
    assert quantagent.leaned(QuantDecision(-1, "", probability=0.9, leaning=0.6)) == -1


def test_bars_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / folder / "BTC_4h.csv") for folder in ("a", "b")]
    with pytest.raises(SystemExit):
        quantagent.main([*files, "--record", str(tmp_path / "r.jsonl"), "--report"])
    assert "asset BTC_4h has two files" in capsys.readouterr().err


def test_fragments_are_compared_where_all_rows_have_them(capsys: pytest.CaptureFixture[str]) -> None:
    record = Record(None)
    selfpico.report(record)
    record.add("nothing", "a", lines=4, ran=1, end=None, stopped=None, problem="", runs=1)
    record.add("table", "b", lines=4, ran=2, end=None, stopped=None, problem="", runs=1)
    selfpico.report(record)
    assert "nothing to compare; fragments of each row: nothing 1, table 1" in capsys.readouterr().out
    record.add("table", "a", lines=4, ran=2, end=None, stopped=None, problem="", runs=1)
    selfpico.report(record)
    assert "1 fragments, 1 of them Python 3" in capsys.readouterr().out
    one, other = (selfpico.named(Fragment("f", source)) for source in ("x = 1", "x = 2"))
    assert one != other and one.startswith("f ")
