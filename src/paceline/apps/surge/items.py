"""An item: a program, how it is run, what it then prints, and by which rule a prediction is scored."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SURGE_KINDS = {
    "ML": "small programs in many languages",
    "CL": "competition tasks",
    "RL": "repositories of several files",
    "SC": "scientific computing",
    "TC": "long computations",
    "BG": "buggy programs",
    "DR": "one program under compilers, standards and levels",
    "FL": "formal languages: does it check, and where does it not",
}
SURGE_RULES = ("exact", "similar", "numbers", "ranking", "tokens", "errors")
NUMERIC = ("gd_", "rk_", "qr_", "lu_", "power_method_", "heat_eq_", "euler_", "fft_", "mc_", "matrix_inv")
BY_NUMBER = dict(enumerate(SURGE_KINDS, start=1))


@dataclass(frozen=True)
class SurgeItem:
    """`files` by name and `command` (a shell line in their folder) make `truth`; `question` shows both to a model.

    An item of the original's files has a question and a truth alone: it cannot be run again.
    """

    id: str
    kind: str
    language: str
    question: str
    truth: str
    rule: str
    files: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    features: Mapping[str, Any] = field(default_factory=dict)

    @property
    def column(self) -> str:
        """The column of the table: the kind, by language where the original splits it."""
        return f"{self.kind}/{self.language}" if self.kind in ("ML", "BG") else self.kind


def question(files: Mapping[str, str], command: str) -> str:
    """Files and command as a model is shown them."""
    parts = [f"{name}\n```\n{text.rstrip()}\n```" for name, text in files.items()]
    return "\n\n".join([*parts, f"Command: {command}"])


def write(items: Iterable[SurgeItem], path: Path) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(item)) + "\n" for item in items), encoding="utf-8")


def read(path: Path) -> list[SurgeItem]:
    """Items of a file that `write` made, or of one of the original's. Raises ValueError that names the record."""
    text = path.read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        return [original(record, f"{path}, record {number}") for number, record in enumerate(json.loads(text), start=1)]
    return [
        _item(line, f"{path}, line {number}") for number, line in enumerate(text.splitlines(), start=1) if line.strip()
    ]


def _item(line: str, place: str) -> SurgeItem:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place} is not JSON ({error}); give one item a line.") from None
    if "gt" in record:
        return original(record, place)
    try:
        item = SurgeItem(**record)
    except TypeError as error:
        raise ValueError(f"{place} is not an item ({error}).") from None
    if item.kind not in SURGE_KINDS or item.rule not in SURGE_RULES:
        raise ValueError(
            f"{place} has kind {item.kind} and rule {item.rule}; "
            f"expected are {', '.join(SURGE_KINDS)} and {SURGE_RULES}."
        )
    return item


def original(record: Mapping[str, Any], place: str) -> SurgeItem:
    """A record of the original's files, its slips put right: a misspelt key, competition tasks filed as small ones."""
    try:
        features = record["custom_features"] or {}
        number = int(record.get("custom_category", record.get("custom_categoey", 0)))
        kind = "CL" if number == 1 and "difficulty" in features else BY_NUMBER[number]
        truth = record["gt"] if isinstance(record["gt"], str) else json.dumps(record["gt"])
        text = record["question"] if isinstance(record["question"], str) else json.dumps(record["question"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{place} is not a record of SURGE ({type(error).__name__}: {error}).") from None
    language = str(features.get("language") or features.get("lang") or "text")
    return SurgeItem(place, kind, language, text, truth, rule_of(kind, features), features=features)


def rule_of(kind: str, features: Mapping[str, Any]) -> str:
    """The rule that the original's dispatch names; inverses of matrices by number too, not letter by letter."""
    name = str(features.get("fid") or features.get("repo") or "")
    if kind in ("BG", "DR"):
        return "tokens"
    if kind == "FL":
        return "errors"
    if kind in ("SC", "TC"):
        return "ranking" if "sort" in name else "numbers" if any(part in name for part in NUMERIC) else "exact"
    if kind == "RL":
        return "exact" if str(features.get("task", "")).startswith("TUOJ") else "similar"
    return "exact"
