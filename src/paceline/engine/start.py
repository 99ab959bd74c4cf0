"""The start of an engine: what its memory holds, and what its steps cost on this machine."""

import logging
from typing import Any

import torch

from paceline.core.plan import Work
from paceline.draft import DRAFTERS
from paceline.engine.budget import prices
from paceline.engine.components import stateful
from paceline.engine.loop import Engine
from paceline.engine.options import Options
from paceline.engine.pair import drafter_of

log = logging.getLogger("paceline")


def start(engine: Engine, options: Options) -> None:
    """Measure the machine where the planner needs that; where the first token is wanted soon, only look at what was
    measured before (`measure_late`)."""
    if not planned(engine, options):
        return
    from paceline.engine import calibrate

    about = facts(options, *engine.components.values())
    known = calibrate.kept(calibrate.place(about)) if options.late_weights else calibrate.calibrated(engine, about)
    if known is not None:
        engine.table.times.become(known)
        if known.measured and known.doubt == 1.0 and calibrate.kept(prices(options)) is None:
            calibrate.keep(prices(options), known)
        if options.tbt_target_ms and (plain := 1e3 * known.predict(Work(1, 1, 0, 0, 1))) > options.tbt_target_ms:
            log.warning(
                "tbt_target_ms is %g, but a plain step of one request takes %.3g ms here: while others decode, prompts "
                "get the fewest rows a step, and the time between two steps is longer than that.",
                options.tbt_target_ms, plain,
            )  # fmt: skip


def measure_late(engine: Engine, options: Options) -> None:
    """Measure the machine for the next start, where `start` put that off; the engine must be idle."""
    from paceline.engine import calibrate

    engine.table.times.become(calibrate.calibrated(engine, facts(options, *engine.components.values())))


def unmeasured(engine: Engine, options: Options) -> bool:
    """Does the planner need to know what steps cost here, and does no table say so?"""
    from paceline.engine import calibrate

    return (
        planned(engine, options)
        and calibrate.kept(calibrate.place(facts(options, *engine.components.values()))) is None
    )


def planned(engine: Engine, options: Options) -> bool:
    """Does the planner need to know what steps cost here?"""
    serves = options.keep_learned and not options.late_weights  # prompts come while others decode
    timed = bool(DRAFTERS.card(drafter_of(options)[0]).arms) or options.tbt_target_ms or serves
    return bool(timed) and engine.desk.policy.state() is not None


def facts(options: Options, *models: Any) -> dict[str, Any]:
    """What step times depend on."""
    sizes = [(m.describe(), m.weight_bytes, m.kv_bytes_per_token, m.vocab_size) for m in models if m is not None]
    shape = (options.block_size, options.row_budget, options.max_requests, torch.get_num_threads(), torch.__version__)
    return {"models": sizes, "shape": shape, "drafter": options.drafter, "overlap": options.overlap}


def say_memory(engine: Engine) -> None:
    """One line of what lies in memory, in words; a warning where the cache keeps less than the model's context."""
    tokens, context = engine.config.blocks * engine.config.block_size, engine.model.max_len
    weights = sum(getattr(it, "weight_bytes", 0) for it in engine.components.values()) / 1e9
    line = f"Weights take {weights:.2f} GB; the K/V cache holds {tokens:,} tokens; the model's context is {context:,}."
    states = sum(it.state_bytes for it in stateful(engine.components).values())
    if states:
        line += f" A text's state takes {states / 1e6:.1f} MB; "
        kept = engine.cache.pool.snapshots
        line += (
            f"one lies with each {engine.config.block_size:,} tokens."
            if kept is None
            else (f"{kept.limit:,} are kept for texts that go on from them, {kept.limit * states / 1e6:.1f} MB.")
        )
    if tokens < context:
        line += f" No text can be longer than {tokens:,} tokens: give more memory or blocks, or take a smaller model."
    log.log(logging.WARNING if tokens < context else logging.INFO, "%s", line)
