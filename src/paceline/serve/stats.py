"""GET /stats: the engine's cumulative counters as one JSON object; whoever draws them takes the differences."""

from pathlib import Path
from typing import Any

from paceline.core.request import SpecStats
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.build import paths
from paceline.engine.drafters import AUTO
from paceline.serve.server import served_name
from paceline.serve.settings import Settings
from paceline.verify import VERIFIERS


def stats(llm: AsyncLLM, settings: Settings, uptime: float) -> dict[str, Any]:
    """What the engine has done since its start; `uptime` in seconds."""
    engine, now = llm.llm.engine, llm.snapshot
    total = now.speculation
    return {
        "uptime_s": uptime,
        "model": served_name(llm, settings),
        "draft": Path(draft).name if (draft := paths(llm.llm.options)[1]) is not None else None,
        "drafters": sorted(name for name in list(engine.drafters.cards) if name != AUTO and not {"+", "|"} & set(name)),
        "default_drafter": engine.config.drafter,
        "verifiers": VERIFIERS.names(),
        "running": now.running,
        "waiting": now.waiting,
        "max_requests": engine.config.max_requests,
        "queue_limit": settings.queue_limit,
        "kv": {"blocks": now.blocks, "used": now.used, "cached": now.cached},
        "tokens": {
            "prompt": now.totals.prompt,
            "generated": total.generated,
            "drafted": total.drafted,
            "accepted": total.accepted,
        },
        **speculation(total),
        "preemptions": now.totals.preemptions,
        "drafter_errors": sum(now.totals.drafter_errors.values()),
        "by_drafter": {
            name: {**speculation(each), "generated": each.generated} for name, each in now.totals.drafters.items()
        },
    }


def speculation(stats: SpecStats) -> dict[str, Any]:
    return {"passes": stats.passes, "tau": stats.tau, "offered": stats.offered, "kept": stats.kept}
