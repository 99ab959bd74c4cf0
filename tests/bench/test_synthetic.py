"""`--synthetic-acceptance`: how much is kept is what was asked for, and the text is plain decoding's."""

from pathlib import Path
from typing import Any

import pytest

from paceline.bench.run import Bench, bench
from paceline.core.errors import InputError
from paceline.engine.options import Options


def rows(target: Path, questions: Path, chance: float, **changes: Any) -> dict[str, Any]:
    wish = Bench(
        questions, **{"methods": ["none"], "max_tokens": 96, "repeat": 1, **changes}, synthetic_acceptance=chance
    )  # type: ignore[arg-type]
    report = bench(Options(target, None, dtype="float32", memory="100M", nodes=3), wish)
    assert report.passed
    return {row.method: row for row in report.rows}


@pytest.mark.parametrize(("chance", "tau"), [(0.0, 1.0), (0.6, 1 + 0.6 + 0.36 + 0.216), (1.0, 4.0)])
def test_so_much_is_kept(target: Path, questions: Path, chance: float, tau: float) -> None:
    found = rows(target, questions, chance)
    assert found["user"].identical is True
    assert found["user"].tau == pytest.approx(tau, rel=0.12)  # the last draft of a text is cut at its end


def test_a_sampled_text_is_known_too(target: Path, questions: Path) -> None:
    found = rows(target, questions, 1.0, temperatures=[1.0], batches=[2])
    assert found["user"].identical is True and found["user"].tau > 3


def test_what_it_cannot_know_is_refused(target: Path, questions: Path) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        rows(target, questions, 1.5)
    with pytest.raises(InputError, match="one temperature"):
        rows(target, questions, 0.5, temperatures=[0.0, 1.0])
