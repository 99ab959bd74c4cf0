"""ETTh1 and generated series, where the shared data is there: better than seasonal naive though no model answers."""

import os
from pathlib import Path

import pytest

from paceline.apps.common.client import Client
from paceline.apps.tsci.generate import MAKERS
from paceline.apps.tsci.pipeline import Plan
from paceline.apps.tsci.series import Series, read_series
from paceline.apps.tsci.study import OURS, study
from tests.apps.scripted import scripted

pytest.importorskip("statsmodels", reason="statsmodels is not installed (pip install 'paceline[apps]')")
pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'paceline[apps]')")
SHARED = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[3].parent / "shared"))
ETT = SHARED / "data" / "timeseries" / "ETTh1.csv"
here = pytest.mark.skipif(not ETT.is_file(), reason="no data/timeseries/ETTh1.csv below PACELINE_SHARED")


@here
def test_the_file_is_read_as_it_is() -> None:
    series = read_series(ETT, "OT")
    assert len(series) == 17420
    assert series.period == 24


async def ours_over_naive(series: Series) -> float:
    with scripted(lambda body: "no JSON") as (url, _):
        async with Client(url) as client:
            found = await study(client, [series], 512, 10, Plan(96), workers=2)
    assert found["lost"] == []
    [row] = found["table"]
    return float(row[OURS] / row["seasonal naive"])


@here
@pytest.mark.full
@pytest.mark.timeout(1200)
async def test_ett_is_better_than_seasonal_naive() -> None:
    assert await ours_over_naive(read_series(ETT, "OT")) < 1.0


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["retail", "load", "sensor"])
async def test_generated_series_are_better_than_seasonal_naive(name: str) -> None:
    assert await ours_over_naive(MAKERS[name]()) < 0.9
