"""A program before it was run: what a generator makes, and the shape that all generators have."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..toolchains import Language


@dataclass(frozen=True)
class Draft:
    """Files, and the shell line that runs them; the truth is what it prints, on both streams."""

    language: str
    files: Mapping[str, str]
    command: str
    rule: str
    features: Mapping[str, Any] = field(default_factory=dict)


Template = Callable[[random.Random], Draft]


def single(language: Language, text: str, rule: str, **features: Any) -> Draft:
    """A program of one file, run as its language is."""
    return Draft(language.name, {language.file: text}, language.command, rule, features)


def numbers(draw: random.Random, count: int, low: int = 1, high: int = 50) -> list[int]:
    return [draw.randint(low, high) for _ in range(count)]
