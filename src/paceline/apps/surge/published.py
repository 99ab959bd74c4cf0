"""The published formulas (arXiv 2502.11167), kept to compare: scorers.py explains what they reward wrongly."""

import json
from collections.abc import Callable
from typing import Any

from .scorers import exact, numbers_in, similar


def numbers(answer: str, truth: str) -> float:
    """1 - the mean relative error, clipped as a whole; missing numbers are read as 0, further ones cut off."""
    ours, theirs = numbers_in(answer), numbers_in(truth)
    if not theirs or not ours:
        return 0.0
    ours = (ours + [0.0] * len(theirs))[: len(theirs)]
    mean = sum(abs(a - b) / (abs(b) + 1e-10) for a, b in zip(ours, theirs)) / len(theirs)
    return min(1.0, max(0.0, 1 - mean))


def ranking(answer: str, truth: str) -> float:
    """Spearman's correlation by place; 0 for lists of different length."""
    from scipy.stats import spearmanr

    ours, theirs = numbers_in(answer), numbers_in(truth)
    if len(ours) != len(theirs) or len(ours) < 2 or len(set(ours)) < 2 or len(set(theirs)) < 2:
        return 0.0
    return max(0.0, float(spearmanr(ours, theirs).correlation))


def tokens(answer: str, truth: str) -> float:
    """Jaccard's index of the sets of words."""
    ours, theirs = set(answer.lower().split()), set(truth.lower().split())
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 1.0


def errors(answer: str, truth: str) -> float:
    """As published, a fenced object does not parse and scores 0."""
    try:
        ours, theirs = json.loads(answer), json.loads(truth)
        if ours["pass"] != theirs["pass"]:
            return 0.0
        if theirs["pass"]:
            return 1.0
        return sum(_matched(ours["errors"], error) for error in theirs["errors"]) / max(1, len(theirs["errors"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0.0


def _matched(ours: list[dict[str, Any]], error: dict[str, Any]) -> float:
    said = [mine["data"] for mine in ours if mine["pos"]["line"] == error["pos"]["line"]]
    return max((tokens(text, error["data"]) for text in said), default=0.0)


PUBLISHED: dict[str, Callable[[str, str], float]] = {
    "exact": exact,
    "similar": similar,
    "numbers": numbers,
    "ranking": ranking,
    "tokens": tokens,
    "errors": errors,
}


def mean_of_columns(columns: dict[str, float]) -> float:
    """The published average: columns of 0 are skipped, which flatters weak models."""
    kept = [value for value in columns.values() if value > 0]
    return sum(kept) / len(kept) if kept else 0.0
