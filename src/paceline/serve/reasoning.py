"""From a chat request's `reasoning` to a policy."""

from collections.abc import Mapping
from typing import Any

from paceline.reason.ensemble import PolicySettings, make
from paceline.reason.mentor import MentorSettings
from paceline.reason.runner import Policy, Runner, need_small
from paceline.reason.steps import StepSettings
from paceline.serve.errors import ApiError
from paceline.serve.prompts import plain, template
from paceline.serve.protocol import ChatRequest
from paceline.serve.reasoning_wire import ReasoningWish
from paceline.serve.server import Server

OF: dict[str, tuple[type[PolicySettings], tuple[str, ...]]] = {
    "steps": (
        StepSettings,
        (
            "tau",
            "score",
            "scale",
            "shift",
            "first",
            "step_tokens",
            "repeats",
            "speculate",
            "budget",
            "deadline_s",
            "separator",
        ),
    ),
    "mentor": (
        MentorSettings,
        ("peek", "verify", "begin", "always", "choose", "check", "budget", "deadline_s", "separator"),
    ),
}
"""Settings of each policy."""


def settings_of(wish: ReasoningWish) -> PolicySettings:
    """The policy's settings. ApiError for one that it has not."""
    kind, names = OF[wish.policy]
    given = wish.model_dump(exclude_none=True, exclude={"policy"})
    for name in given:
        if name not in names:
            message = f"reasoning.{name} is not of policy {wish.policy}, which knows {', '.join(names)}; remove it."
            raise ApiError(400, message, param=f"reasoning.{name}")
    return kind(**given)


async def policy(body: ChatRequest, server: Server, runner: Runner, args: Mapping[str, Any]) -> Policy:
    """Raises ApiError, InputError or RefusalError for what this server cannot do."""
    assert body.reasoning is not None
    wish = settings_of(body.reasoning)
    need_small(runner.engines)
    if body.tools and args.get("tools"):
        raise ApiError(400, "tools and reasoning cannot be combined; leave one of them out.", param="reasoning")
    developer = "developer" if "developer" in template(server.text) else "system"
    messages = [plain(message, developer) for message in body.messages]
    return await server.pools.texts.run(lambda: make(runner, server.text, wish, messages))
