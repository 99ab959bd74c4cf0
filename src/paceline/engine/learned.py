"""Acceptance rates that the planner has learned for a pair of models, kept from one start to the next. A later start
weighs them as a fixed number of rounds, so that texts of another kind soon change them."""

import hashlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import __version__
from paceline.native.store import home, trusted, write
from paceline.plan.belief import Beliefs

if TYPE_CHECKING:
    from paceline.engine.loop import Engine
    from paceline.engine.options import Options

log = logging.getLogger("paceline")


def place(options: "Options", what: str = "learned") -> Path:
    """The file of this pair of models for `what` is known of it."""
    models = str(options.model), options.revision, str(options.draft)
    facts = [*models, options.quantize, options.draft_quantize, options.draft_vocab, options.dtype, __version__]
    seal = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return home() / f"{what}-{seal}.json"


def recall(options: "Options") -> dict[str, Any] | None:
    """What an earlier start has learned, if it was kept."""
    path = place(options)
    if not options.keep_learned or not trusted(path):
        return None
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        Beliefs().recall(kept["beliefs"])
        return kept
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:  # a damaged file
        log.warning("What an earlier start has learned (%s) is of no use (%r); it is learned again.", path, error)
        return None


def keep(engine: "Engine", options: "Options") -> None:
    """Write what is known now. If the disk refuses, the next start merely learns again."""
    state = engine.desk.policy.state()
    if not options.keep_learned or state is None or not state["beliefs"]:
        return
    try:
        write(place(options), json.dumps(state))
    except OSError as error:
        log.warning("What was learned of drafters cannot be kept: %s", error)
