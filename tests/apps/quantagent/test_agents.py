"""The agents over HTTP: nothing of the future is seen, late is no trade, side by side is as one after the other."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.apps.common.client import AppClient
from paceline.apps.quantagent.agents import NOTE, QuantDecision, Rules, decide
from paceline.apps.quantagent.bars import Bars
from paceline.apps.quantagent.cases import QuantCase, cases, random_walk
from paceline.apps.quantagent.command import app
from paceline.apps.quantagent.metrics import score
from paceline.apps.quantagent.rules import by_rule
from paceline.apps.quantagent.study import decisions, results
from tests.apps.scripted import Script, scripted

from .series import walk

PLAIN = Rules()


def asked(body: dict[str, Any]) -> str:
    """Which agent asks: its last words."""
    content = body["messages"][-1]["content"]
    text = content if isinstance(content, str) else content[-1]["text"]
    for mark, name in (("Answer LONG", "decision"), ("How far away", "risk"), ("Trend lines", "trend"),
                       ("turning points", "patterns"), ("Indicators", "indicators")):  # fmt: skip
        if mark in text:
            return name
    return "again"


def follows(body: dict[str, Any]) -> str:
    """Agents that follow the window's change, as the shared text says it."""
    name = asked(body)
    up = "change over the window +" in json.dumps(body["messages"])
    if name == "decision":
        return "LONG" if up else "SHORT"
    if name == "risk":
        return '{"reason": "calm", "stop_ranges": "1.5", "risk_reward_ratio": "1.4"}'
    return json.dumps({"reason": name, "outlook": "up" if up else "down"})


async def made(
    script: Script, rows: list[QuantCase], rules: Rules = PLAIN
) -> tuple[list[QuantDecision], list[dict[str, Any]]]:
    with scripted(script) as (url, bodies):
        async with AppClient(url) as client:
            return await decisions(client, rows, rules, 4), bodies


def rows_of(count: int, drift: float = 0.0) -> list[QuantCase]:
    return cases("x", {str(i): walk(60, seed=i, drift=drift) for i in range(count)}, None, 45, 3)


async def test_a_decision_with_its_stops() -> None:
    [decision], bodies = await made(follows, rows_of(1, drift=1.0))
    assert decision.side == 1
    assert decision.why == "decided"
    assert decision.ratio == 1.4
    assert 0 < decision.distance < 0.1
    assert set(decision.views) == {"indicators", "patterns", "trend"}
    assert sorted(map(asked, bodies)) == ["decision", "indicators", "patterns", "risk", "trend"]
    schemas = [body["response_format"]["json_schema"]["schema"] for body in bodies if "response_format" in body]
    assert sum("outlook" in schema["properties"] for schema in schemas) == 3
    risk = next(schema for schema in schemas if "stop_ranges" in schema["properties"])
    assert risk["properties"]["risk_reward_ratio"]["pattern"] == r"^1\.[2-8]$"


@pytest.mark.parametrize(
    ("ranges", "ratio"), [("0.4", "1.4"), ("3.1", "1.4"), ("1.5", "1.9"), ("1.5", "2"), ("1.55", "1.4")]
)
async def test_stops_outside_their_bounds_are_no_stops(ranges: str, ratio: str) -> None:
    def script(body: dict[str, Any]) -> str:
        if asked(body) in ("risk", "again"):
            return json.dumps({"reason": "", "stop_ranges": ranges, "risk_reward_ratio": ratio})
        return follows(body)

    [decision], _ = await made(script, rows_of(1))
    assert decision.side == 0
    assert "no stop came (invalid)" in decision.why


async def test_agents_share_their_beginning() -> None:
    _, bodies = await made(follows, rows_of(1))
    beginnings = {body["messages"][1]["content"].split("\n\n")[0] for body in bodies}
    assert len(beginnings) == 1
    assert len({body["messages"][0]["content"] for body in bodies}) == 1


async def test_the_future_changes_nothing() -> None:
    bars = {str(i): walk(60, seed=i) for i in range(6)}
    spoilt = {}
    for name, window in bars.items():
        other = window.part(0, 60)
        for prices in (other.open, other.high, other.low, other.close):
            prices[57:] *= 3
        spoilt[name] = other
    one, two = (cases("x", windows, None, 45, 3) for windows in (bars, spoilt))
    (first, bodies), (second, again) = await made(follows, one), await made(follows, two)
    assert first == second
    assert sorted(map(json.dumps, bodies)) == sorted(map(json.dumps, again))
    assert by_rule(one).tolist() == by_rule(two).tolist()
    assert (two[0].future.close != one[0].future.close).all()


async def test_one_after_the_other_is_as_side_by_side() -> None:
    rows = rows_of(4)
    assert (await made(follows, rows))[0] == (await made(follows, rows, Rules(side_by_side=False)))[0]


async def test_late_is_no_trade_and_says_so() -> None:
    def slow(body: dict[str, Any]) -> str:
        if asked(body) == "decision":
            time.sleep(0.6)
        return follows(body)

    [decision], _ = await made(slow, rows_of(1), Rules(deadline_s=0.3))
    assert decision.side == 0
    assert "no trade" in decision.why
    assert "late" in decision.why


@pytest.mark.parametrize(
    ("broken", "said"),
    [("indicators", "decided without indicators"), ("decision", "no decision came (invalid)"), ("risk", "no stop came"),
     ("all", "no report came")],
)  # fmt: skip
async def test_what_is_lost_is_named(broken: str, said: str) -> None:
    def script(body: dict[str, Any]) -> str:
        name = asked(body)
        return "nonsense" if name in (broken, "again") or broken == "all" else follows(body)

    [decision], _ = await made(script, rows_of(1))
    assert said in decision.why
    assert (decision.side == 0) == (broken != "indicators")


async def test_pictures_go_to_those_who_look_at_charts() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'paceline[apps]')")
    _, bodies = await made(follows, rows_of(1), Rules(pictures=True))
    pictured = {asked(body) for body in bodies if isinstance(body["messages"][-1]["content"], list)}
    assert pictured == {"patterns", "trend"}


@pytest.mark.parametrize("stop", [None, 0.0005])
async def test_stops_by_range_or_by_share(stop: float | None) -> None:
    [decision], _ = await made(follows, rows_of(1), Rules(stop=stop))
    assert (decision.distance == 0.0005) == (stop is not None)


def test_the_rule_knows_trends_and_not_random_walks() -> None:
    trending = [*rows_of(60, drift=0.6), *rows_of(60, drift=-0.6)]
    walks = cases("walk", random_walk(300, 48, 1), None, 45, 3)
    for rows, says in ((trending, "better than one half"), (walks, "not distinguishable from one half")):
        move = np.array([case.future.close[-1] - case.past.close[-1] for case in rows])
        assert score("rule", by_rule(rows), move).says == says


async def test_scores_stand_beside_baselines() -> None:
    rows = rows_of(20)
    found = results(rows, (await made(follows, rows))[0], cost=0.0002, seed=1)
    assert {row["name"] for row in found["scores"]} == {"QuantAgent", "always long", "coins", "rule"}
    assert all(row["low"] <= row["share"] <= row["high"] for row in found["scores"])
    assert len(found["trades"]) == 20


def invoke(*args: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*args, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def csv(bars: Bars, path: Path) -> Path:
    lines = ["Datetime,Close,High,Low,Open"]
    for row in zip(bars.time, bars.close, bars.high, bars.low, bars.open, strict=True):
        lines.append(",".join(map(str, row)))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_demo_pair_ends_with_a_report(tmp_path: Path, demo_url: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'paceline[apps]')")
    found = invoke("study", "--walk", "1", "--url", demo_url, "--out", str(tmp_path), "--deadline", "120")
    [trade] = found["trades"]
    assert trade["side"] in (1, -1)
    assert 0.5 <= trade["probability"] <= 1
    assert found["usage"]["cached_share"] > 0.3
    assert found["usage"]["deadlines_met"] == found["usage"]["deadlines"] == 5
    assert NOTE in (tmp_path / "report.md").read_text()


def test_one_window_ends_with_a_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'paceline[apps]')")
    path = csv(walk(60, drift=1.0), tmp_path / "bars.csv")
    with scripted(follows) as (url, _):
        assert invoke("decide", str(path), "--url", url, "--out", str(tmp_path))["side"] == 1
    page = (tmp_path / "report.md").read_text()
    assert "Chart" in page
    assert NOTE in page


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: text.replace("High", "Top"), "no column high"),
        (lambda text: text + "9,1,0.5,0.4,1\n", "outside low to high"),
        (lambda text: text + "9,x,2,1,1\n", "Close is 'x'"),
        (lambda text: text + "9,-1,2,1,1\n", "positive price"),
        (lambda text: "\n".join(text.split("\n")[:20]), "34 or more"),
        (lambda text: "", "holds no bars"),
    ],
)
def test_bad_bars_are_named(tmp_path: Path, spoil: Callable[[str], str], said: str) -> None:
    path = csv(walk(50), tmp_path / "bars.csv")
    path.write_text(spoil(path.read_text()))
    result = CliRunner().invoke(app, ["decide", str(path)])
    assert result.exit_code == 2
    assert said in result.output.replace("\n", " ")


def test_nothing_to_decide_on_is_said() -> None:
    result = CliRunner().invoke(app, ["study"])
    assert result.exit_code == 2
    assert "nothing to decide on" in result.output


async def test_a_window_of_one_asset_is_decided() -> None:
    with scripted(follows) as (url, _):
        async with AppClient(url) as client:
            assert (await decide(client, "x", walk(50, drift=1.0), Rules())).side == 1
