"""From a window to a forecast over HTTP: nothing of the future is seen, failures are told, reports invent no number."""

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.apps.common.client import AppClient
from paceline.apps.common.dag import Dag, NodeError
from paceline.apps.tsci import pipeline as module
from paceline.apps.tsci.agents import SAFE
from paceline.apps.tsci.command import app
from paceline.apps.tsci.generate import retail
from paceline.apps.tsci.invented import honest, invented
from paceline.apps.tsci.models import LIBRARY, Failed
from paceline.apps.tsci.pipeline import SeriesForecast, TsciPipeline, TsciPlan
from paceline.apps.tsci.series import Leak, Window, windows
from paceline.apps.tsci.study import OURS, TSCI_ALONE, TSCI_COLUMNS, scored, study
from tests.apps.scripted import Script, scripted

pytest.importorskip("statsmodels", reason="statsmodels is not installed (pip install 'paceline[apps]')")
pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'paceline[apps]')")
pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'paceline[apps]')")
PLAN = TsciPlan(horizon=12, candidates=3, keep=2, usual=("ridge",), folds=2, combos=1)


def asked(body: dict[str, Any]) -> str:
    text = body["messages"][-1]["content"]
    for mark, name in (("Choose how to fill", "curator"), ("Models:", "planner"), ("Describe trend", "analyst"),
                       ("points of weight", "forecaster"), ("executive summary", "reporter")):  # fmt: skip
        if mark in text:
            return name
    return "again"


def sensible(body: dict[str, Any]) -> str:
    answers: dict[str, dict[str, Any]] = {
        "curator": {"reason": "r", "fill": "interpolate", "detect": "none", "handle": "clip", "season": "24"},
        "planner": {"reason": "r", "models": ["seasonal_mean", "ridge", "naive"]},
        "analyst": {"trend": "It rises.", "season": "It is daily.", "risk": "A break."},
        "reporter": {"summary": "It made 1 window. It is 4711 times better.", "limits": "Few windows."},
    }
    name = asked(body)
    if name == "forecaster":
        names = body["response_format"]["json_schema"]["schema"]["properties"]
        return json.dumps({name: 5 - i for i, name in enumerate(names)})
    return json.dumps(answers.get(name, {}))


async def made(script: Script, window: Window, plan: TsciPlan = PLAN) -> tuple[SeriesForecast, list[dict[str, Any]]]:
    with scripted(script) as (url, bodies):
        async with AppClient(url) as client, Dag(workers=1) as dag:
            return await TsciPipeline(dag, client, plan).start("retail", 0, window.history, 24), bodies


def one_window(seed: int = 0) -> Window:
    return windows(retail(400, seed), 200, 12, 1)[0]


async def test_a_forecast_and_its_parts() -> None:
    window = one_window()
    found, bodies = await made(sensible, window)
    assert set(found.members) <= {"seasonal_mean", "ridge", "naive", SAFE}
    assert len(found.members) == 2
    assert sum(found.weights.values()) == pytest.approx(1)
    assert set(found.weights) == set(found.members)
    assert found.ways[found.way] <= found.ways["weighted"]
    assert [set(row) for row in found.back] == [{"origin", "mae", "naive", "forecast", "truth"}] * 2
    assert np.isfinite(found.values).all()
    assert found.bands["80"][0][0] > found.bands["95"][0][0]
    assert [one.agent for one in found.told] == ["curator", "planner", "forecaster", "analyst"]
    assert all(one.outcome == "ok" for one in found.told)
    assert found.analysis == "It rises. It is daily. A break."
    beginnings = {body["messages"][1]["content"].split("\n\n")[0] for body in bodies}
    assert len(beginnings) == 1


async def test_the_tripwire_never_fires_and_scores_come_last() -> None:
    window = one_window()
    found, _ = await made(sensible, window)
    assert found.scores == {}
    alone, _ = await made(lambda body: "no JSON", window)
    truth = scored(window, found, alone, 24)
    assert set(TSCI_COLUMNS) <= set(found.scores)
    assert found.scores[TSCI_ALONE]["mae"] == pytest.approx(np.nanmean(np.abs(alone.values - truth)))
    assert found.scores[OURS]["mae"] == pytest.approx(np.nanmean(np.abs(found.values - truth)))


async def test_the_tripwire_would_fire(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline that looks at the future is caught: the window makes no forecast."""
    window = one_window()

    def peeks(values: Any, *rest: Any) -> Any:
        return np.asarray(window.future), 0

    monkeypatch.setattr(module, "clean", peeks)
    with pytest.raises(NodeError, match=Leak.__name__):
        await made(sensible, window)


async def test_the_future_changes_nothing() -> None:
    series = retail(400)
    other = retail(400)
    other.values[-12:] += 1000
    (one, bodies), (two, again) = [await made(sensible, windows(s, 200, 12, 1)[0]) for s in (series, other)]
    np.testing.assert_array_equal(one.values, two.values)
    assert sorted(map(json.dumps, bodies)) == sorted(map(json.dumps, again))


async def test_fallbacks_are_told() -> None:
    found, _ = await made(lambda body: "no JSON", one_window())
    assert [one.outcome for one in found.told] == ["fallback"] * 4
    assert all(one.problem == "invalid" for one in found.told)
    assert "weights by validation error" in found.told[2].changed
    assert "the usual models alone" in found.told[1].changed and set(found.members) <= {"ridge", SAFE}
    assert found.curation.season == 24


async def test_json_of_another_kind_is_put_right_and_told() -> None:
    found, _ = await made(lambda body: "[1, 2]", one_window())
    assert "the usual models alone" in found.told[1].changed
    assert "weights by validation error" in found.told[2].changed
    assert found.analysis == ""


async def test_answers_outside_their_schema_are_put_right_and_told() -> None:
    def script(body: dict[str, Any]) -> str:
        if asked(body) == "curator":
            return '{"fill": "magic", "detect": "none", "handle": "clip", "season": "25"}'
        if asked(body) == "planner":
            return '{"models": ["naive", "naive", "oracle"]}'
        if asked(body) == "forecaster":
            return '{"naive": -3}'
        return sensible(body)

    found, _ = await made(script, one_window())
    assert found.told[0].outcome == "fallback" and found.told[0].problem == "invalid"
    assert found.curation.fill == "interpolate"
    assert set(found.members) <= {"naive", "ridge", SAFE}
    assert sum(found.weights.values()) == pytest.approx(1)


async def test_failed_models_are_left_out_and_told() -> None:
    def script(body: dict[str, Any]) -> str:
        if asked(body) == "planner":
            return '{"reason": "", "models": ["croston", "lstm", "naive"]}'
        return sensible(body)

    window = windows(retail(400), 60, 12, 1)[0]
    found, _ = await made(script, window)
    assert [one.name for one in found.failed] == ["lstm"]
    assert isinstance(found.failed[0], Failed)
    assert "lstm" not in found.members


async def test_no_model_no_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "checked", _fails)
    with pytest.raises(NodeError, match="every model failed"):
        await made(sensible, one_window())


def _fails(name: str, *rest: Any) -> Failed:
    return Failed(name, {}, "no luck")


async def test_a_study_keeps_going_when_a_window_is_lost() -> None:
    long = retail(400)
    long.values[:230] = np.nan
    with scripted(sensible) as (url, _):
        async with AppClient(url) as client:
            found = await study(client, [long], 200, 2, PLAN, workers=1)
    assert [row["start"] for row in found["lost"]] == ["0"]
    assert len(found["windows"]) == 1
    assert found["table"][0]["windows"] == 1


def test_the_library_is_what_the_planner_sees() -> None:
    assert len(LIBRARY) >= 20
    assert all(model.about for model in LIBRARY.values())


def test_no_number_is_invented() -> None:
    result = {"mae": 1.23456, "share": 0.417, "n": [10, 96], "text": "lag 24"}
    assert invented("MAE 1.235 over 10 windows of 96; 41.7 % (42 %); lag 24; two of 2", result) == []
    assert invented("MAE 1.3 over 11 windows", result) == ["1.3", "11"]
    kept, left = honest("It is 1.23. It is 9.9 better. Good.", result)
    assert kept == "It is 1.23. Good."
    assert left == ["It is 9.9 better."]


def invoke(*args: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*args, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_every_number_of_the_report_is_in_the_results(tmp_path: Path) -> None:
    with scripted(sensible) as (url, _):
        found = invoke("study", "--made", "retail", "--windows", "1", "--history", "200", "--horizon", "12",
                       "--models", "3", "--url", url, "--out", str(tmp_path), "--workers", "1")  # fmt: skip
    page = (tmp_path / "report.md").read_text()
    text = "\n".join(line for line in page.splitlines() if not line.startswith("!["))
    assert found["left_out"] == ["It is 4711 times better."]
    assert invented(text.replace("4711", ""), found) == []
    assert "4711" in text.split("Left out")[-1]


def test_the_demo_pair_ends_with_a_forecast(tmp_path: Path, demo_url: str) -> None:
    values = retail(300).values
    days = [f"{date(2023, 1, 1) + timedelta(days=i):%d.%m.%Y}" for i in range(300)]
    texts = ["" if np.isnan(value) else f"{value:.2f}".replace(".", ",") for value in values]
    lines = ["Datum;Menge", *(f"{day};{text}" for day, text in zip(days, texts))]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n", encoding="utf-16")
    found = invoke("forecast", str(tmp_path / "x.csv"), "--url", demo_url, "--history", "200", "--horizon", "12",
                   "--models", "3", "--out", str(tmp_path / "out"), "--workers", "1")  # fmt: skip
    assert len(found["values"]) == 12
    assert found["usage"]["cached_share"] > 0.2
    rows = (tmp_path / "out" / "forecast.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows][:3] == ["time", "2023-10-28", "2023-10-29"] and len(rows) == 13
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Analysis" in page and "Back-test" in page and "2023-11-08" in page


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("study",), "nothing to forecast"),
        (("study", "--made", "gold"), "no generated series gold"),
        (("study", "--made", "retail", "--history", "5000"), "give a longer series"),
        (("forecast", "nowhere.csv"), "nowhere.csv"),
    ],
)
def test_bad_input_is_named(args: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
