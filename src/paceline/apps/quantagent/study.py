"""Study of many windows: decided, traded and scored, compared with baselines."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..common.client import AppClient
from ..common.dag import gather
from .agents import QuantDecision, Rules, decide
from .backtest import Fills, Ints, Orders, levels, run
from .bars import Floats
from .cases import WALK, QuantCase, futures
from .indicators import atr
from .metrics import ahead_of, coins, score
from .rules import by_rule

QUANT_ALONE = "without the model"
"""The rule of `rules.py`: the sign of what trend, indicators and patterns lean to."""


async def decisions(
    client: AppClient, rows: Sequence[QuantCase], rules: Rules, width: int, step: Callable[[], None] = lambda: None
) -> list[QuantDecision]:
    """A decision for each case, from its past alone, `width` cases at a time."""

    async def one(case: QuantCase) -> QuantDecision:
        made = await decide(client, case.asset, case.past, rules)
        step()
        return made

    return await gather(one, rows, width)


def mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def traded(rows: Sequence[QuantCase], side: Ints, distance: Floats, ratio: Floats, cost: float) -> Fills:
    """Each case traded from its last close."""
    entry = np.array([float(case.past.close[-1]) for case in rows])
    stop, target = levels(side, entry, distance, ratio)
    return run(Orders(side, entry, stop, target), futures(rows), cost)


def results(rows: Sequence[QuantCase], made: Sequence[QuantDecision], cost: float, seed: int) -> dict[str, Any]:
    """Scores by asset and over all, of the decisions and of the baselines, and each trade."""
    side = np.array([decision.side for decision in made], np.int64)
    usual = np.array([float(atr(case.past)[-1] / case.past.close[-1]) for case in rows])
    distance = np.array([decision.distance for decision in made])
    ratio = np.array([decision.ratio for decision in made])
    entry = np.array([float(case.past.close[-1]) for case in rows])
    move = np.array([float(case.future.close[-1]) for case in rows]) - entry
    sides = {
        "always long": np.ones(len(rows), np.int64),
        "coins": coins(len(rows), seed),
        QUANT_ALONE: by_rule(rows),
    }
    fills = {"QuantAgent": traded(rows, side, distance, ratio, cost)}
    plain = np.full(len(rows), 1.5)
    fills.update({name: traded(rows, other, usual, plain, cost) for name, other in sides.items()})
    sides = {"QuantAgent": side, **sides}
    groups = {asset: np.array([case.asset == asset for case in rows]) for asset in dict.fromkeys(c.asset for c in rows)}
    if len(groups.keys() - {WALK}) > 1:
        groups["all"] = np.array([case.asset != WALK for case in rows])
    return {
        "scores": [
            {"asset": asset, **score(name, sides[name][at], move[at], fills[name].gain[at]).row()}
            for asset, at in groups.items()
            for name in sides
        ],
        "against_always_long": {
            asset: ahead_of(side[at], sides["always long"][at], move[at]) for asset, at in groups.items()
        },
        "no_trade": int(np.sum(side == 0)),
        "long_share": float(np.mean(side == 1)),
        "leaning": mean_of([decision.leaning for decision in made]),
        "gains": {name: fills[name].gain.tolist() for name in sides if name != "coins"},
        "cost": cost,
        "trades": [
            {
                "asset": case.asset,
                "window": case.window,
                "time": case.past.time[-1],
                "move": float(moved),
                "exit": str(reason),
                "gain": float(gain),
                **decision.row(),
            }
            for case, decision, moved, reason, gain in zip(
                rows, made, move, fills["QuantAgent"].reason, fills["QuantAgent"].gain, strict=True
            )
        ],
    }
