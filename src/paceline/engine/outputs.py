"""What a caller gets back."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.request import FinishReason, Request, SpecStats, TokenLogprob


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished (or aborted) sample of a prompt."""

    index: int
    """Which sample of the prompt: 0 .. n-1."""
    text: str
    """The output as text."""
    token_ids: list[int]
    """The output as token ids, with the one that ended it."""
    finish_reason: FinishReason
    """stop (end of sequence, stop text or id), length, abort, error, or parked (continued where it is resumed)."""
    seed: int
    """Seed that was used; with the same prompt and parameters it repeats the text."""
    stats: SpecStats
    """Counts of what speculation did for this sample."""
    logprobs: list[TokenLogprob] | None = None
    """One entry a token, where asked for."""
    drafted: Sequence[bool] = ()
    """Per token: was it drafted and accepted."""
    error: str | None = None
    """Why it has no proper end, where finish_reason is error."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """All samples of one prompt. `text`, `token_ids`, `stats`, ... are those of the first."""

    prompt: str | None
    """The prompt as it was given; None if it was given as token ids or as a conversation."""
    prompt_token_ids: list[int]
    """The prompt as token ids."""
    outputs: list[Completion]
    """The samples, by index."""
    prompt_logprobs: list[TokenLogprob | None] | None = None
    """One entry a token of the prompt, the first None; where asked for."""

    @property
    def text(self) -> str:
        """The first sample's."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """The first sample's."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """The first sample's."""
        return self.outputs[0].finish_reason

    @property
    def seed(self) -> int:
        """The first sample's."""
        return self.outputs[0].seed

    @property
    def stats(self) -> SpecStats:
        """The first sample's."""
        return self.outputs[0].stats


@dataclass(frozen=True, slots=True)
class Chunk:
    """News of one sample: what came since the last chunk."""

    index: int
    """Which sample: 0 .. n-1."""
    text: str
    """Text since the last chunk."""
    token_ids: list[int]
    """Tokens since the last chunk."""
    pieces: list[tuple[str, str | None]]
    """Pieces of the text with their source: (text, the drafter's name, or None for the model itself)."""
    done: Completion | None = None
    """The whole result, with the last chunk."""
    logprobs: Sequence[TokenLogprob] = ()
    """Log-probabilities of `token_ids`, if requested."""


def completion(request: Request, index: int) -> Completion:
    """The result of a finished request."""
    assert request.finish is not None
    wanted = request.params.logprobs is not None
    return Completion(
        index,
        request.text,
        list(request.output),
        request.finish,
        request.seed,
        request.stats,
        list(request.logprobs) if wanted else None,
        tuple(author is not None for author in request.authors),
        request.error,
    )


def output(requests: Sequence[Request], prompt: str | None) -> RequestOutput:
    """The result of one prompt from its finished samples."""
    first = requests[0]
    wanted = first.params.prompt_logprobs is not None
    return RequestOutput(
        prompt,
        list(first.prompt),
        [completion(r, i) for i, r in enumerate(requests)],
        list(first.prompt_logprobs) if wanted else None,
    )


class Follower:
    """Turns a growing request into chunks."""

    def __init__(self, request: Request, index: int, *, told: bool = False) -> None:
        """`told`: what it has so far is known."""
        self.request, self.index = request, index
        self._tokens = len(request.output) if told else 0
        self._text = len(request.text) if told else 0

    def begin_at(self, tokens: int, characters: int) -> None:
        """Take this part of the output as known."""
        self._tokens, self._text = tokens, characters

    def news(self) -> Chunk | None:
        """Output since the last call; None if there is nothing to show and the request continues."""
        request = self.request
        text, tokens = request.text[self._text :], request.output[self._tokens :]
        if not tokens and not text and request.finish is None:
            return None
        pieces: list[tuple[str, str | None]] = []
        start = self._text
        for at in range(self._tokens, len(request.output)):
            end = min(request.marks[at], len(request.text))
            if end > start:
                pieces.append((request.text[start:end], request.authors[at]))
                start = end
        if start < len(request.text):
            pieces.append((request.text[start:], None))
        logprobs = request.logprobs[self._tokens : len(request.output)]
        self._tokens, self._text = len(request.output), len(request.text)
        done = completion(request, self.index) if request.finish else None
        return Chunk(self.index, text, tokens, pieces, done, logprobs)
