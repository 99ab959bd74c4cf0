"""The agents over HTTP: nothing of the future is seen, late is no trade, side by side is as one after the other."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.apps.common.ask import AppAnswer
from paceline.apps.common.cli import AppAsked
from paceline.apps.common.client import AppClient
from paceline.apps.quantagent.agents import NOTE, QuantDecision, Rules, decide, unbiased
from paceline.apps.quantagent.bars import Bars, read_windows
from paceline.apps.quantagent.cases import QuantCase, cases, random_walk
from paceline.apps.quantagent.command import app, watched
from paceline.apps.quantagent.metrics import score
from paceline.apps.quantagent.rules import by_rule
from paceline.apps.quantagent.study import QUANT_ALONE, decisions, results
from tests.apps.scripted import Script, scripted

from .series import walk

PLAIN = Rules()


def asked(body: dict[str, Any]) -> str:
    """Which agent asks: its last words."""
    content = body["messages"][-1]["content"]
    text = content if isinstance(content, str) else content[-1]["text"]
    for mark, name in (("Answer LONG", "decision"), ("how far away", "risk"), ("Trend lines", "trend"),
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
        return '{"justification": "It rises.", "horizon_bars": "3", "stop_ranges": "1.5", "risk_reward_ratio": "1.4"}'
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
    assert sorted(map(asked, bodies)) == sorted(2 * ["decision", "indicators", "patterns", "trend"] + ["risk"])
    assert (decision.risk, decision.horizon, decision.leaning) == ("It rises.", 3, 0.5)
    schemas = [body["response_format"]["json_schema"]["schema"] for body in bodies if "response_format" in body]
    assert sum("outlook" in schema["properties"] for schema in schemas) == 6
    risk = next(schema for schema in schemas if "stop_ranges" in schema["properties"])
    assert risk["properties"]["risk_reward_ratio"]["pattern"] == r"^1\.[2-8]$"


@pytest.mark.parametrize(
    ("ranges", "ratio"), [("0.4", "1.4"), ("3.1", "1.4"), ("1.5", "1.9"), ("1.5", "2"), ("1.55", "1.4")]
)
async def test_stops_outside_their_bounds_are_no_stops(ranges: str, ratio: str) -> None:
    def script(body: dict[str, Any]) -> str:
        if asked(body) in ("risk", "again"):
            return json.dumps(
                {"justification": "", "horizon_bars": "3", "stop_ranges": ranges, "risk_reward_ratio": ratio}
            )
        return follows(body)

    [decision], _ = await made(script, rows_of(1))
    assert decision.side == 0
    assert "no stop came (invalid)" in decision.why


async def test_agents_share_their_beginning() -> None:
    _, bodies = await made(follows, rows_of(1))
    beginnings = {body["messages"][1]["content"].split("\n\n")[0] for body in bodies}
    assert len(beginnings) == 2, "the bars and their mirror"
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


async def test_a_model_that_always_says_long_says_nothing() -> None:
    """Its probability of LONG is the same for the bars and their mirror, so nothing is left of it."""

    def script(body: dict[str, Any]) -> str:
        return "LONG" if asked(body) == "decision" else follows(body)

    [decision], _ = await made(script, rows_of(1))
    assert (decision.side, decision.why) == (0, "no trade: the bars and their mirror were judged alike")
    assert decision.leaning is not None and decision.leaning > 0.99
    [plain], _ = await made(script, rows_of(1, drift=-1.0), Rules(corrected=False))
    assert plain.side == 1


@pytest.mark.parametrize(
    ("long", "mirrored", "side"), [(0.9, 0.95, "SHORT"), (0.9, 0.85, "LONG"), (0.2, 0.1, "LONG"), (0.7, 0.7, None)]
)
def test_the_leaning_is_taken_out(long: float, mirrored: float, side: str | None) -> None:
    both = [AppAnswer("LONG", "ok", probabilities={"LONG": p, "SHORT": 1 - p}) for p in (long, mirrored)]
    found, sure, leaning = unbiased(both)
    assert found == side and (sure is None or 0.5 < sure < 1)
    assert leaning is not None and min(long, mirrored) <= leaning <= max(long, mirrored)


def test_mirrored_bars_are_bars_upside_down() -> None:
    bars = walk(60, drift=1.0)
    mirror = bars.mirrored()
    assert mirror.close[-1] == pytest.approx(bars.close[-1])
    np.testing.assert_allclose(np.diff(np.log(mirror.close)), -np.diff(np.log(bars.close)))
    assert (mirror.high >= np.maximum(mirror.open, mirror.close) - 1e-9).all()
    np.testing.assert_allclose(mirror.mirrored().low, bars.low)


def test_bars_as_yfinance_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "AAPL.csv"
    path.write_text(
        "Price,Close,High,Low,Open,Volume\nTicker,AAPL,AAPL,AAPL,AAPL,AAPL\nDate,,,,,\n"
        + "".join(f"2024-01-{n:02},{100 + n},{102 + n},{99 + n},{100 + n}.5,{n}\n" for n in range(1, 29))
        + "2024-01-29,,,,,\n"
    )
    [bars] = read_windows(path).values()
    assert (len(bars), bars.time[0], bars.close[0], bars.open[0]) == (28, "2024-01-01", 101, 101.5)
    plain = tmp_path / "flat.csv"
    plain.write_text(
        "Datetime;('Close', 'AAPL');('High', 'AAPL');('Low', 'AAPL');('Open', 'AAPL')\n"
        + "".join(f"2024-01-{n:02} 00:00:00-05:00;{100 + n},5;{102 + n};{99 + n};{100 + n}\n" for n in range(1, 29))
    )
    [bars] = read_windows(plain).values()
    assert bars.close[:2].tolist() == [101.5, 102.5]
    both = tmp_path / "futures.csv"
    lines = [f"2024-01-{n:02},{9000 + n},{100 + n},{102 + n},{99 + n},{100 + n}" for n in range(1, 29)]
    both.write_text("\n".join(["Date,Open Interest,Open,High,Low,Close", *lines]) + "\n")
    [bars] = read_windows(both).values()
    assert bars.open[0] == 101, "a heading that is the name alone goes first"


async def test_a_file_that_grows_is_watched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = csv(walk(60, drift=1.0), tmp_path / "bars.csv")
    with scripted(follows) as (url, bodies):
        run = watched(AppAsked(url=url), path, None, 45, Rules(corrected=False), tmp_path, False, 0.05)
        task = asyncio.create_task(run)

        async def until(count: int) -> None:
            async with asyncio.timeout(30):
                while sum(asked(body) == "risk" for body in bodies) < count:
                    await asyncio.sleep(0.05)

        await until(1)
        path.write_text(path.read_text() + "60,200,201,199,200\n")
        await until(2)
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()][:1] == ["59 LONG"]
    assert sum(asked(body) == "risk" for body in bodies) == 2, "a bar is decided on once"


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
    assert {row["name"] for row in found["scores"]} == {"QuantAgent", "always long", "coins", QUANT_ALONE}
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
    found = invoke("study", "--walk", "1", "--url", demo_url, "--out", str(tmp_path), "--deadline", "600")
    [trade] = found["trades"]
    assert trade["side"] in (1, -1, 0)
    assert trade["probability"] is None or 0.5 <= trade["probability"] <= 1
    assert 0 < trade["leaning"] < 1 and found["leaning"] == trade["leaning"]
    assert set(found["gains"]) == {"QuantAgent", "always long", QUANT_ALONE}
    assert found["usage"]["cached_share"] > 0.3
    assert found["usage"]["deadlines_met"] == found["usage"]["deadlines"] >= 8, "no stop is asked for without a side"
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
        (lambda text: text + "99,1,0.5,0.4,1\n", "outside low to high"),
        (lambda text: text + "99,x,2,1,1\n", "Close is 'x'"),
        (lambda text: text + "99,-1,2,1,1\n", "positive price"),
        (lambda text: "\n".join(text.split("\n")[:20]), "34 or more"),
        (lambda text: "", "holds no rows"),
        (
            lambda text: text.replace("Datetime,Close", "Datetime,Close A,Close B").replace("\n", ",\n"),
            "several columns",
        ),
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
