"""From records to a table: scores by column, means, floors, and what confidence is worth."""

from collections.abc import Mapping, Sequence
from typing import Any

from .ask import SurgeRecord
from .items import SurgeItem
from .published import mean_of_columns
from .scorers import SCORERS


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def columns(records: Sequence[SurgeRecord]) -> dict[str, list[SurgeRecord]]:
    """Records by column, in the order in which they come."""
    found: dict[str, list[SurgeRecord]] = {}
    for record in records:
        found.setdefault(record.column, []).append(record)
    return found


def floors(items: Sequence[SurgeItem]) -> dict[str, float]:
    """By column, what the truth of the next item of it scores: what boilerplate in common is worth."""
    by: dict[str, list[SurgeItem]] = {}
    for item in items:
        by.setdefault(item.column, []).append(item)
    return {
        column: mean(
            [SCORERS[a.rule](b.truth, a.truth) for a, b in zip(rows, [*rows[1:], rows[0]]) if a.rule == b.rule]
        )
        if len(rows) > 1
        else 0.0
        for column, rows in by.items()
    }


def unanswered(items: Sequence[SurgeItem]) -> dict[str, float]:
    """By column, what an empty answer scores: the row without the model."""
    by: dict[str, list[float]] = {}
    for item in items:
        by.setdefault(item.column, []).append(SCORERS[item.rule]("", item.truth))
    return {column: mean(scores) for column, scores in by.items()}


def summary(records: Sequence[SurgeRecord], items: Sequence[SurgeItem]) -> dict[str, Any]:
    """Columns with their scores and floors, the mean over all columns, and the mean as published."""
    by, floor, alone = columns(records), floors(items), unanswered(items)
    scores = {column: mean([record.score for record in rows]) for column, rows in by.items()}
    as_published = {column: mean([record.published for record in rows]) for column, rows in by.items()}
    return {
        "columns": {
            column: {
                "items": len(rows),
                "score": scores[column],
                "right": sum(record.right for record in rows),
                "floor": floor.get(column, 0.0),
                "without the model": alone.get(column, 0.0),
                "published": as_published[column],
            }
            for column, rows in by.items()
        },
        "items": len(records),
        "mean": mean(list(scores.values())),
        "without the model": mean([alone.get(column, 0.0) for column in scores]),
        "floor": mean([floor.get(column, 0.0) for column in scores]),
        "published_mean": mean_of_columns(as_published),
        "right": sum(record.right for record in records),
        "unanswered": sum(record.problem is not None for record in records),
    }


THRESHOLDS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.01)


def unsure(records: Sequence[SurgeRecord]) -> list[dict[str, float]]:
    """Predict, then run when unsure: by threshold of confidence, the share that is run, and how much is right then.

    What is run is right, so `right` is 1 - the share of predictions that were kept and wrong.
    """
    rows = []
    for threshold in THRESHOLDS:
        kept = [r for r in records if r.confidence is not None and r.confidence >= threshold and r.problem is None]
        wrong = sum(not record.right for record in kept)
        rows.append(
            {
                "threshold": threshold,
                "run": 1 - len(kept) / len(records) if records else 0.0,
                "right": 1 - wrong / len(records) if records else 0.0,
                "kept_right": mean([float(record.right) for record in kept]),
            }
        )
    return rows


FEWEST_MEASURED = 20
"""Predictions from which a threshold is taken."""


def threshold_for(rows: Sequence[Mapping[str, Any]], right: float) -> float:
    """The least confidence from which at least a share `right` of a run's predictions were exactly right; above 1 where
    there is none, so that everything is run. Raises ValueError for too few predictions with a confidence."""
    pairs = [(float(row["confidence"]), row["score"] >= 1) for row in rows if row.get("confidence") is not None]
    if len(pairs) < FEWEST_MEASURED:
        raise ValueError(f"{len(pairs)} predictions have a confidence; {FEWEST_MEASURED} or more are needed.")
    found = NEVER_SURE
    for sure in sorted({sure for sure, _ in pairs}, reverse=True):
        kept = [good for other, good in pairs if other >= sure]
        if sum(kept) >= right * len(kept):
            found = sure
    return found


NEVER_SURE = 1.01


def line(sizes: Sequence[float], scores: Sequence[float]) -> tuple[float, float] | None:
    """Slope by decade of size and intercept of the least-squares line; None of fewer than two sizes."""
    import numpy as np

    if len(set(sizes)) < 2:
        return None
    slope, level = np.polyfit(np.log10(sizes), scores, 1)
    return float(slope), float(level)
