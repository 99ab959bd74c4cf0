"""What was worked out from a checkpoint's small files, kept for the next start: to import what parses them takes
seconds, and it says the same of the same files every time."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paceline.model.spec import (
    Attention,
    Both,
    Delta,
    Dense,
    Experts,
    Latent,
    Layer,
    Mamba,
    ModelSpec,
    Multipliers,
    Rope,
    ShortConv,
)
from paceline.native.store import home, trusted, write

log = logging.getLogger("paceline")
SPEC_KINDS = (
    Attention,
    Both,
    Delta,
    Dense,
    Experts,
    Layer,
    Latent,
    Mamba,
    ModelSpec,
    Multipliers,
    Rope,
    ShortConv,
)
KINDS = {kind.__name__: kind for kind in SPEC_KINDS}
MOST_MEMOS = 256
"""Files that are kept; the oldest go."""


def remembered(kind: str, facts: object, make: Callable[[], Any]) -> Any:
    """What `make` gives, from disk where it was kept for equal `facts`, the same readers and the same transformers.
    It consists of the dataclasses of spec.py, tuples, texts, numbers and None."""
    key = hashlib.sha256(repr((facts, readers())).encode()).hexdigest()[:24]
    path = home() / "memos" / f"{kind}-{key}.json"
    if trusted(path):
        try:
            return load(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("%s cannot be used (%r); it is made again.", path, error)
    made = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = sorted(path.parent.glob("*.json"), key=lambda it: it.stat().st_mtime)
        for old in kept[: len(kept) - MOST_MEMOS + 1]:
            old.unlink(missing_ok=True)
        write(path, json.dumps(dump(made)))
    except OSError as error:
        log.debug("%s cannot be kept: %s", path, error)
    return made


def states(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """What changes when a file does."""
    return [(str(it.resolve()), (s := it.stat()).st_size, s.st_mtime_ns) for it in files]


@cache
def readers() -> tuple[Any, ...]:
    """What changes when the code that reads checkpoints does: ours, and transformers'."""
    here = Path(__file__).parent
    return version("transformers"), states(sorted(here.rglob("*.py")))


def dump(value: Any) -> Any:
    """Value as JSON data."""
    if is_dataclass(value):
        return {"is": type(value).__name__, **{f.name: dump(getattr(value, f.name)) for f in fields(value)}}
    return [dump(item) for item in value] if isinstance(value, (tuple, list)) else value


def load(value: Any) -> Any:
    """What `dump` was given. KeyError or TypeError for what it never writes."""
    if isinstance(value, dict):
        return KINDS[value.pop("is")](**{name: load(item) for name, item in value.items()})
    return tuple(load(item) for item in value) if isinstance(value, list) else value
