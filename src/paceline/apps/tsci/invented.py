"""Whether every number of a text is one of the results: a report may round, it may not invent."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

TSCI_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
SENTENCE = re.compile(r"(?<=[.!?])\s+")
TSCI_SMALL = 3
"""Whole numbers up to this one are words ("two models"), not results."""


def values(result: Any) -> Iterator[float]:
    """All numbers of a result, those in its texts and keys, too."""
    if isinstance(result, bool) or result is None:
        return
    if isinstance(result, int | float):
        yield float(result)
    elif isinstance(result, str):
        yield from (float(found) for found in TSCI_NUMBER.findall(result))
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from values(key)
            yield from values(value)
    elif isinstance(result, list | tuple):
        for value in result:
            yield from values(value)


def known(number: str, results: list[float]) -> bool:
    """Whether a result rounds to this number, as a number or as a percentage."""
    value = float(number)
    if value == int(value) and abs(value) <= TSCI_SMALL:
        return True
    decimals = len(number.partition(".")[2]) if "e" not in number.lower() else 12
    step = 10.0**-decimals
    digits = max(1, len(re.sub(r"[-+.]|[eE].*", "", number).lstrip("0")))
    return any(_rounds(found * scale, value, step, digits) for found in results for scale in (1.0, 100.0))


def _rounds(found: float, value: float, step: float, digits: int) -> bool:
    if not math.isfinite(found):
        return False
    near = abs(found - value) <= 0.5 * step * (1 + 1e-9)
    return (
        near or (found != 0 and float(f"{found:.{max(digits, 2)}g}") == value) or abs(abs(found) - value) <= 0.5 * step
    )


def invented(text: str, result: Any) -> list[str]:
    """The numbers of a text that no result rounds to."""
    results = list(values(result))
    return [number for number in TSCI_NUMBER.findall(text) if not known(number, results)]


def honest(text: str, result: Any) -> tuple[str, list[str]]:
    """The sentences without an invented number, and those left out: they repeat another or do not end, too."""
    kept: list[str] = []
    left: list[str] = []
    for sentence in SENTENCE.split(text.strip()):
        wrong = sentence in kept or not sentence.rstrip("\"')*_").endswith((".", "!", "?", ":"))
        (left if wrong or invented(sentence, result) else kept).append(sentence)
    return " ".join(kept), [sentence for sentence in left if sentence]
