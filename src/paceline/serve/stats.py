"""GET /stats: the engine's cumulative counters as one JSON object; whoever draws them takes the differences."""

from pathlib import Path
from typing import Any

from paceline.core.request import SpecStats
from paceline.engine.build import paths
from paceline.engine.loop import AUTO
from paceline.serve.server import Host
from paceline.serve.settings import Settings
from paceline.verify import VERIFIERS


def stats(host: Host, settings: Settings, uptime: float) -> dict[str, Any]:
    """What the engines have done since the start; `uptime` in seconds."""
    now, llm = host.snapshot, host.first()
    total, cards = now.speculation, {} if llm is None else llm.llm.engine.cards
    draft = None if llm is None else paths(llm.llm.options)[1]
    return {
        "uptime_s": uptime,
        "model": host.model,
        "models": [card["id"] for card in host.cards()],
        "draft": None if draft is None else Path(draft).name,
        "drafters": sorted(name for name in list(cards) if name != AUTO and not {"+", "|"} & set(name)),
        "default_drafter": AUTO if llm is None else llm.llm.engine.config.drafter,
        "verifiers": VERIFIERS.names(),
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
        "preemptions": now.totals.preemptions,
        "drafter_errors": sum(now.totals.drafter_errors.values()),
        "by_drafter": {
            name: {**speculation(each), "generated": each.generated} for name, each in now.totals.drafters.items()
        },
    }


def speculation(stats: SpecStats) -> dict[str, Any]:
    return {"passes": stats.passes, "tau": stats.tau, "offered": stats.offered, "kept": stats.kept}
