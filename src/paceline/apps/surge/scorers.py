"""The scoring rules, each (answer, truth) to [0, 1]: 1 exactly for the truth, and never more for a worse answer.

They correct the published ones: missing numbers count as wrong, not as zero; extra numbers cost;
inverses of matrices are numbers; a sorted list must hold the list's numbers; JSON may stand in a fence; words that come
twice count twice. `published.py` has the published formulas, for comparison.
"""

import difflib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from .extract import FENCED_BLOCK, trimmed

SURGE_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\b(?:inf|nan)\b", re.IGNORECASE)


def exact(answer: str, truth: str) -> float:
    """Score 1 if both texts are equal, apart from blanks at the ends of lines; else 0."""
    return float(trimmed(answer) == trimmed(truth))


def similar(answer: str, truth: str) -> float:
    """The share of lines and letters in common (difflib), for long outputs that are right in parts."""
    a, b = trimmed(answer), trimmed(truth)
    return 1.0 if a == b else min(0.999, difflib.SequenceMatcher(None, a, b, autojunk=False).ratio())


def numbers_in(text: str) -> list[float]:
    return [float(found) for found in SURGE_NUMBER.findall(text)]


def numbers(answer: str, truth: str) -> float:
    """1 - the mean relative error, each at most 1; a number that is missing or too many is an error of 1."""
    ours, theirs = numbers_in(_value(answer)), numbers_in(_value(truth))
    if not theirs:
        return exact(answer, truth)
    length = max(len(ours), len(theirs))
    wrong = sum(_relative(a, b) for a, b in zip(ours, theirs)) + abs(len(ours) - len(theirs))
    return max(0.0, 1 - wrong / length)


def _value(text: str) -> str:
    """Behind the last colon of a single line: "Estimate of pi: 3.14" is 3.14."""
    return text.rpartition(":")[2] if "\n" not in text.strip() else text


def _relative(ours: float, theirs: float) -> float:
    if math.isnan(theirs) or math.isinf(theirs):
        return float(str(ours) != str(theirs))
    gap = abs(ours - theirs)
    return 0.0 if gap == 0 else min(1.0, gap / (abs(theirs) + 1e-10)) if math.isfinite(gap) else 1.0


def ranking(answer: str, truth: str) -> float:
    """Score of a sorted list: the share of its numbers that are present, times the share of neighbours in the right
    order."""
    ours, theirs = numbers_in(answer), numbers_in(truth)
    if not theirs:
        return exact(answer, truth)
    if not ours:
        return 0.0
    shared = sum((Counter(ours) & Counter(theirs)).values()) / max(len(ours), len(theirs))
    falling = len(theirs) > 1 and theirs[0] > theirs[-1]
    pairs = list(itertools.pairwise(ours))
    ordered = sum((a >= b) if falling else (a <= b) for a, b in pairs) / len(pairs) if pairs else 1.0
    return shared * ordered


def words(text: str) -> Counter[str]:
    return Counter(text.lower().split())


def tokens(answer: str, truth: str) -> float:
    """Jaccard's index of the words, as often as they come, for diagnostics whose order says little."""
    ours, theirs = words(answer), words(truth)
    union = sum((ours | theirs).values())
    return sum((ours & theirs).values()) / union if union else 1.0


def errors(answer: str, truth: str) -> float:
    """Score of a checker's verdict (JSON {"pass", "errors": [{"pos": {"line"}, "data"}]}).

    0 if "pass" is wrong; 1 if both pass; else the mean over errors, true and predicted, of the similarity of the
    messages on the same line.
    """
    ours, theirs = verdict(answer), verdict(truth)
    if theirs is None:
        raise ValueError("The truth of an item scored by errors is a JSON object with pass and errors.")
    if ours is None or bool(ours.get("pass")) != bool(theirs.get("pass")):
        return 0.0
    if theirs.get("pass"):
        return 1.0
    mine, true = _by_line(ours), _by_line(theirs)
    count = max(sum(map(len, mine.values())), sum(map(len, true.values())))
    if not count:
        return 1.0
    return sum(_best(mine.get(line, []), said) for line, said in true.items()) / count


def verdict(text: str) -> dict[str, Any] | None:
    """The JSON object of a reply, fenced or not; None if there is none."""
    fenced = FENCED_BLOCK.search(text)
    try:
        found = json.loads(fenced.group(1) if fenced else text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _by_line(found: dict[str, Any]) -> dict[Any, list[str]]:
    lines: dict[Any, list[str]] = {}
    listed = found.get("errors")
    for error in listed if isinstance(listed, list) else []:
        if isinstance(error, dict) and isinstance(error.get("pos"), dict):
            lines.setdefault(error["pos"].get("line"), []).append(str(error.get("data", "")))
    return lines


def _best(ours: list[str], theirs: list[str]) -> float:
    """Each true message with the likest of ours that is left."""
    left, total = list(ours), 0.0
    for said in theirs:
        if left:
            best = max(left, key=lambda mine: tokens(mine, said))
            total += tokens(best, said)
            left.remove(best)
    return total


SCORERS: dict[str, Callable[[str, str], float]] = {
    "exact": exact,
    "similar": similar,
    "numbers": numbers,
    "ranking": ranking,
    "tokens": tokens,
    "errors": errors,
}
