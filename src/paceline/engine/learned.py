"""What the planner has learned of a pair of models, kept from one start to the next: how often drafts are kept. A later
start weighs it as a fixed number of rounds, so that texts of another kind soon change it."""

import hashlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from paceline import __version__
from paceline.engine.loop import Engine
from paceline.native.store import home, trusted, write
from paceline.plan.choose import Goodput

if TYPE_CHECKING:
    from paceline.engine.options import Options

log = logging.getLogger("paceline")


def place(options: "Options") -> Path:
    """The file of this pair of models."""
    models = str(options.model), options.revision, str(options.draft)
    facts = [*models, options.quantize, options.draft_quantize, options.dtype, __version__]
    seal = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return home() / f"learned-{seal}.json"


def recall(engine: Engine, options: "Options") -> None:
    """Begin with what an earlier start has learned, if it was kept."""
    if (planner := chooser(engine, options)) is None:
        return
    path = place(options)
    if not trusted(path):
        return
    try:
        planner.acceptance.recall(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:  # a damaged file
        log.warning("What an earlier start learned (%s) cannot be used (%r); it is learned again.", path, error)


def keep(engine: Engine, options: "Options") -> None:
    """Write what is known now; a disk that refuses costs the next start a few tries, no more."""
    if (planner := chooser(engine, options)) is None or not planner.acceptance.means:
        return
    try:
        write(place(options), json.dumps(planner.acceptance.dump()))
    except OSError as error:
        log.warning("What was learned of drafters cannot be kept: %s", error)


def chooser(engine: Engine, options: "Options") -> Goodput | None:
    """The policy that learns, where it is to be remembered."""
    policy = engine.desk.policy
    return policy if options.keep_learned and isinstance(policy, Goodput) else None
