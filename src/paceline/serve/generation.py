"""One HTTP request's work in the engine: some prompts, their samples, their news, and what they cost."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.params import SamplingParams
from paceline.core.request import Request, SpecStats
from paceline.engine.async_llm import AsyncLLM, Subscription
from paceline.engine.outputs import Chunk, Completion
from paceline.serve.errors import ApiError


@dataclass
class Generation:
    """All samples of all prompts of one HTTP request; choice i is sample i % n of prompt i // n."""

    llm: AsyncLLM
    subscription: Subscription
    n: int
    authors: list[str] = field(init=False)
    """Drafter of each choice. Kept here because a drafter that fails is taken off its request."""
    made: int = 0
    """Tokens of the chunks so far."""

    def __post_init__(self) -> None:
        self.authors = [r.drafter for r in self.requests]

    @classmethod
    async def start(
        cls, llm: AsyncLLM, prompts: Sequence[list[int]], params: Sequence[SamplingParams], *, whole: bool
    ) -> "Generation":
        """`whole`: no news but each sample's end."""
        return cls(llm, await llm.submit(list(zip(prompts, params, strict=True)), whole=whole), params[0].n)

    @property
    def requests(self) -> list[Request]:
        return self.subscription.requests

    async def news(self) -> AsyncIterator[list[Chunk]]:
        """Chunks as they come, all that are there at once. Raises ApiError for a sample that failed."""
        while chunks := await self.subscription.news_to_come():
            for chunk in chunks:
                self.made += len(chunk.token_ids)
                if chunk.done is not None:
                    check(chunk.done)
            yield chunks

    def report(self) -> dict[str, Any]:
        """Fields of a finished choice other than its text."""
        return {}

    def close(self) -> None:
        """End what is unfinished."""
        self.llm.abort(self.subscription)

    def pieces(self, chunk: Chunk) -> list[tuple[str, str]]:
        """The chunk's text by author: "target" or the drafter's name."""
        return [(text, author or "target") for text, author in chunk.pieces]

    def usage(self, hidden: bool = False) -> dict[str, Any]:
        """OpenAI's `usage`, with what speculation did. Only once all samples are finished. `hidden`: the output was not
        asked for."""
        return {
            **self.counts(0 if hidden else sum(len(r.output) for r in self.requests)),
            "prompt_tokens_details": {"cached_tokens": sum(r.stats.cached for r in self.requests[:: self.n])},
            "speculation": {"drafter": self.authors[0], **figures([r.stats for r in self.requests])},
        }

    def counts(self, completion: int) -> dict[str, Any]:
        """Tokens of the prompts and of the output, if it has `completion` tokens."""
        prompt = sum(len(r.prompt) for r in self.requests[:: self.n])
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def figures(stats: Sequence[SpecStats]) -> dict[str, Any]:
    """Speculation of several samples together."""
    total = SpecStats()
    for each in stats:
        total.passes += each.passes
        total.generated += each.generated
        total.count(each.offered, each.kept)
    return {
        "drafted": total.drafted,
        "accepted": total.accepted,
        "target_passes": total.passes,
        "tau": total.tau,
        "offered": total.offered,
        "kept": total.kept,
    }


def check(done: Completion) -> None:
    """Raise ApiError for a sample that has no proper end."""
    if done.finish_reason == "error":
        raise ApiError(400, done.error or "No token could be drawn.", code="no_token_left")
    if done.finish_reason == "abort":
        raise ApiError(503, "The request was aborted by the server; send it again.", code="aborted")
    if done.finish_reason == "parked":
        raise ApiError(
            503, "The request was taken out of this server to go on elsewhere; send it again.", code="parked"
        )
