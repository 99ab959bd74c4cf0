"""bench/studies/over_http.py: its arithmetic, and one short run against the real server."""

from argparse import Namespace
from types import ModuleType

import pytest

from tests.bench.studies import load


@pytest.fixture(scope="module")
def study() -> ModuleType:
    return load("over_http")


def test_medians_of_ratios(study: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def row(offline: float, http: float, stream: float) -> dict[str, object]:
        return {w: study.Taken(s, 100, "x") for w, s in (("offline", offline), ("http", http), ("stream", stream))}

    out = study.report([[row(1.0, 1.25, 1.5)], [row(1.0, 1.0, 2.0)], [row(2.0, 4.0, 2.0)]])
    assert (out["http"]["ratio"], out["http"]["ratio_min"], out["http"]["ratio_max"]) == (0.8, 0.5, 1.0)
    assert out["offline"]["tokens_per_second"] == 100 and out["stream"]["ratio"] == pytest.approx(2 / 3)
    assert out["stream_over_offline_ms_per_token"] == pytest.approx(5.0)
    assert out["stream_over_http_ms_per_token"] == pytest.approx(2.5)
    assert "0.800x offline (0.500-1.000)" in capsys.readouterr().out


def test_a_short_run(study: ModuleType, url: str) -> None:
    args = Namespace(model=None, draft=None, drafter=None, dtype="float32", quantize=None, threads=None)
    args.temperature, args.max_tokens, args.repeat = 0.0, 8, 2
    own = study.Study(args, url)
    found = own.run(["Tom has 3 apples.", "Ann has 2 books."])
    assert len(found) == 2 and all(set(row) == set(study.WAYS) for rows in found for row in rows)
    assert all(row["stream"].text == row["offline"].text != "" for rows in found for row in rows)


def test_other_texts_end_the_study(study: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    own = study.Study.__new__(study.Study)
    own.args = Namespace(repeat=1)
    monkeypatch.setattr(own, "answer", lambda way, prompt, seed: study.Taken(1.0, 5, way))
    with pytest.raises(SystemExit, match="different texts"):
        own.run(["x"])
