"""The seam between the chat end point and policies above tokens: a field of the request becomes a `Policy`, and what
that writes is followed like any generation.

A new one is a `Wire` model in a file of its own, a field of `ChatRequest` that is named in `POLICY_FIELDS`, and a line
in `POLICY_MAKERS`. Its report stands in the choice under the policy's name, its authors in the choice's `pieces`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core.params import SamplingParams
from paceline.engine.async_llm import AsyncLLM
from paceline.reason.runner import BASE, Policy, Runner
from paceline.serve import parallel, reasoning, retrieval
from paceline.serve.errors import ApiError
from paceline.serve.generation import Generation
from paceline.serve.protocol import ChatRequest
from paceline.serve.server import Server

Maker = Callable[[ChatRequest, Server, Runner, Mapping[str, Any]], Awaitable[Policy]]
"""From a request, the server of its model with the runner on its thread, and the variables of its chat template. Raises
ApiError or InputError."""
POLICY_MAKERS: dict[str, Maker] = {
    "reasoning": reasoning.policy, "retrieval": retrieval.make, "neighbours": retrieval.neighbours,
}  # fmt: skip
"""By the name of the request's field."""


async def policy_of(body: ChatRequest, server: Server, args: Mapping[str, Any]) -> Policy | None:
    """The policy that a request asks for. Raises ApiError for two of them."""
    names = body.extended
    if len(names) > 1:
        raise ApiError(400, f"{' and '.join(names)} cannot be combined; give one of them.", param=names[1])
    if body.reasoning is not None and body.reasoning.policy == "parallel":
        return await parallel.policy(body, server, args)
    return await POLICY_MAKERS[names[0]](body, server, runner_of(server.llm), args) if names else None


def runner_of(llm: AsyncLLM) -> Runner:
    """The runner on an engine's thread; made when first asked for."""
    for each in llm.beside:
        if isinstance(each, Runner):
            return each
    return llm.attach(lambda mine: Runner({BASE: mine.engine}, frozenset({BASE})))


@dataclass
class PolicyGeneration(Generation):
    """An answer that a policy writes: one choice."""

    policy: Policy | None = None
    runner: Runner | None = None

    @classmethod
    async def begin(
        cls, server: Server, ids: list[int], params: SamplingParams, policy: Policy, *, whole: bool
    ) -> "PolicyGeneration":
        """Raises InputError, RefusalError or CapacityError for what cannot be served."""
        runner = runner_of(server.llm)
        subscription = await server.llm.submit(
            [(ids, params)], whole=whole, by=lambda prompt, wish: runner.submit(prompt, wish, policy)
        )
        return cls(server.llm, subscription, 1, policy=policy, runner=runner)

    def usage(self, hidden: bool = False) -> dict[str, Any]:
        """Figures of `Generation`, and those of speculation above tokens."""
        assert self.policy is not None
        made = super().usage(hidden)
        return {**made, "speculation": {**made["speculation"], "above": self.policy.level.shown(self.policy.kind)}}

    def report(self) -> dict[str, Any]:
        assert self.policy is not None
        return {self.policy.name: self.policy.report}
