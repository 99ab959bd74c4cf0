"""GET /stats: the engine's cumulative counters as one JSON object; a client that plots them takes the differences."""

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.core.request import SpecStats
from paceline.engine.drafters import AUTO
from paceline.engine.pair import paths
from paceline.reason.level import Level
from paceline.reason.runner import SMALL, Runner
from paceline.serve.server import ServedHost
from paceline.serve.settings import Settings
from paceline.verify import VERIFIERS

EVERY_S, HOUR_S = 5, 3600
CONSTANT = (
    "model",
    "models",
    "draft",
    "small",
    "drafters",
    "default_drafter",
    "verifiers",
    "about",
    "max_requests",
    "queue_limit",
    "cluster",
)
"""Not kept with each reading, and the engines of a cluster."""


def stats(host: ServedHost, settings: Settings, uptime: float) -> dict[str, Any]:
    """What the engines have done since the start; `uptime` in seconds."""
    now, llm = host.snapshot, host.first()
    total, cards = now.speculation, {} if llm is None else llm.llm.engine.drafters.cards
    draft = None if llm is None else paths(llm.llm.options)[1]
    return {
        "uptime_s": uptime,
        "model": host.model,
        "models": [card["id"] for card in host.cards()],
        "draft": None if draft is None else Path(draft).name,
        "small": small(host),
        "drafters": sorted(name for name in list(cards) if name != AUTO and not {"+", "|"} & set(name)),
        "default_drafter": AUTO if llm is None else llm.llm.engine.config.drafter,
        "verifiers": VERIFIERS.names(),
        "about": {name: card.summary for name, card in [*cards.items(), *VERIFIERS.items()]},
        "running": now.running,
        "waiting": now.waiting,
        "max_requests": host.max_requests,
        "queue_limit": settings.queue_limit,
        "kv": {"blocks": now.blocks, "used": now.used, "cached": now.cached},
        "tokens": {
            "prompt": now.totals.prompt,
            "generated": total.generated,
            "drafted": total.drafted,
            "accepted": total.accepted,
        },
        **speculation(total),
        "saved_s": now.totals.saved_s,
        "busy_s": now.totals.busy_s,
        "stopped": {"all": now.totals.stopped, "keys": now.totals.stopped_keys},
        "why": list(now.totals.why),
        "preemptions": now.totals.preemptions,
        **({"gpu": dict(now.gpu)} if now.gpu else {}),
        "drafter_errors": sum(now.totals.drafter_errors.values()),
        "above": {
            name: {"proposed": level.proposed, "accepted": level.accepted, "saved_s": level.saved_s}
            for name, level in levels(host).items()
        },
        "by_drafter": {
            name: {**speculation(each), "generated": each.generated} for name, each in now.totals.drafters.items()
        },
    }


def levels(host: ServedHost) -> dict[str, Level]:
    """By policy above tokens, of the first model's engine."""
    llm = host.first()
    runners = [] if llm is None else [each for each in llm.beside if isinstance(each, Runner)]
    return {name: level for runner in runners for name, level in dict(runner.levels).items()}


def small(host: ServedHost) -> str | None:
    """Name of the small model that runs next to the first."""
    llm = host.first()
    texts = [each.texts for each in llm.beside if isinstance(each, Runner)] if llm is not None else []
    return next((mine[SMALL].path.name for mine in texts if SMALL in mine), None)


class History:
    """The last hour of `/stats`, one reading every few seconds, for dashboards that are opened later."""

    def __init__(self) -> None:
        self.readings: deque[dict[str, Any]] = deque(maxlen=HOUR_S // EVERY_S)

    async def keep(self, read: Callable[[], dict[str, Any]]) -> None:
        """Until cancelled."""
        while True:
            self.readings.append({k: v for k, v in read().items() if k not in CONSTANT})
            await asyncio.sleep(EVERY_S)


def speculation(stats: SpecStats) -> dict[str, Any]:
    return {"passes": stats.passes, "tau": stats.tau, "offered": stats.offered, "kept": stats.kept}
