"""Speculative retrieval (RaLMSpec, Zhang et al. 2024) as a policy above tokens.

    verified text ─▶ stride, query, guess ─▶ stride, query, guess ─▶ ... ─▶ one call for all queries
                     (from the cache)                                        │ guesses right up to the m-th
                  ◀─ what was written with a wrong passage is dropped ───────┘

A stride is written by a request of its own that begins with the tokens so far (`Submit`, `Extend`); its noise goes on
at the place that the token has in the answer, whatever the passage's length. So a token depends on the tokens before
it and its passage alone, and the text is that of a retrieval at a time.
"""

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from paceline.core.errors import InputError, PacelineError
from paceline.core.operations import Abort, Extend, Submit
from paceline.core.params import SamplingParams
from paceline.engine.loop import Engine
from paceline.reason.level import Level
from paceline.reason.runner import BASE, Script, Stage
from paceline.retrieve.prompts import QuestionPrompts
from paceline.retrieve.retriever import Hit, PassageCache, Retriever
from paceline.retrieve.stride import Stride
from paceline.retrieve.wish import Retrieval


@dataclass(slots=True)
class PassageStretch:
    """Tokens written under one passage, `every` of them or up to the text's end."""

    hit: Hit
    tokens: list[int]
    ends: bool
    """Does the text end with this stretch?"""
    seconds: float
    error: str | None = None


@dataclass(slots=True)
class RetrievalFigures:
    """Counts of one answer."""

    batches: list[int] = field(default_factory=list)
    """Queries of each call of the knowledge base."""
    rounds: list[tuple[int, int]] = field(default_factory=list)
    """Retrievals speculated, and right, of each verification."""
    dropped: int = 0
    """Tokens written with a wrong passage."""
    overlapped: int = 0
    """Strides that were written while a verification ran, and kept."""
    model_s: float = 0.0
    """Seconds of strides that were kept."""
    strides: int = 0
    """Strides that were kept."""
    call_s: list[float] = field(default_factory=list)
    """Seconds of each call."""
    tokens: int = 0
    """Prompt and text that strides began with, all together."""
    cached: int = 0
    """Prompt tokens that were in the prefix cache."""

    @property
    def proposed(self) -> int:
        return sum(s for s, _ in self.rounds)

    @property
    def accepted(self) -> int:
        return sum(m for _, m in self.rounds)

    @property
    def one_at_a_time(self) -> float:
        """Seconds that a retrieval at a time would take, by estimate: each kept stride and a call for it."""
        return self.model_s + self.strides * min(self.call_s, default=0.0)


class Retrieving:
    """Writes one answer with retrieval."""

    name = kind = "retrieval"
    deadline_s: float | None = None

    def __init__(self, prompts: QuestionPrompts, retriever: Retriever, wish: Retrieval, pool: Executor) -> None:
        """`pool`: threads on which the knowledge base is searched."""
        self.prompts, self.retriever, self.wish, self.pool = prompts, retriever, wish, pool
        self.cache = PassageCache(retriever)
        self.stride = Stride(wish.stride, wish.overlap, wish.most, wish.cap, wish.window)
        self.figures, self.report = RetrievalFigures(), dict[str, Any]()
        self.level = Level()
        self._room, self._begun = 0, 0.0
        self._next: Hit = (0, 0)
        """The passage that the next round begins with."""

    def check(self, params: SamplingParams, engines: Mapping[str, Engine]) -> None:
        session = engines[BASE].session
        self._room = session.model.max_len - self.prompts.longest
        if self._room < 1 or (params.max_tokens or 1) > self._room:
            raise InputError(
                f"Question and passage may have {self.prompts.longest} tokens and the answer {params.max_tokens or 1}, "
                f"but the context holds {session.model.max_len}; shorten the question, passage_tokens or max_tokens."
            )
        session.check_capacity(self.prompts.longest, params.max_tokens or self._room)

    def script(self, stage: Stage) -> Script:
        self._begun = stage.clock()
        text = stage.transcript
        first = self._ask([self.retriever.query(self.prompts.query([]))])
        yield first
        hit, ahead = self._answers(first)[0][0], None
        while text.open:
            ahead = yield from self._round(stage, hit, ahead)
            hit = self._next

    def _round(
        self, stage: Stage, hit: Hit, ahead: PassageStretch | None
    ) -> Generator["Future[Any] | None", None, PassageStretch | None]:
        """Strides from the verified passage on, then one call for their queries. The stretch written meanwhile, where
        it can stay."""
        text, made = stage.transcript, list[PassageStretch]()
        tokens, queries, guesses = list(text.tokens), list[Any](), list[Hit]()
        steps, overlap = self.stride.next()
        for _ in range(steps):
            stretch = ahead or (yield from self._write(stage, tokens, hit))
            made, ahead = [*made, stretch], None
            if len(made) == 1:
                self._keep(stage, stretch)  # its passage is verified
            tokens += stretch.tokens
            if stretch.ends:
                break
            queries.append(self.retriever.query(self.prompts.query(tokens)))
            hit = self.cache.top(queries[-1]) or hit
            guesses.append(hit)
        if not text.open or not queries:
            return None
        call = self._ask(queries)
        if overlap and not made[-1].ends:
            ahead = yield from self._write(stage, tokens, hit)
        if not call.done():
            yield call
        return self._judge(stage, made, guesses, call, ahead)

    def _judge(
        self,
        stage: Stage,
        made: Sequence[PassageStretch],
        guesses: Sequence[Hit],
        call: "Future[Any]",
        ahead: PassageStretch | None,
    ) -> PassageStretch | None:
        """Keep what was written with right passages."""
        truth = [hits[0] for hits in self._answers(call, guesses)]
        right = 0
        while right < len(guesses) and guesses[right][0] == truth[right][0]:
            right += 1
        for stretch in made[1 : right + 1]:
            self._keep(stage, stretch)
        dropped = [*made[right + 1 :], *([ahead] if ahead is not None and right < len(guesses) else [])]
        self.figures.dropped += sum(len(stretch.tokens) for stretch in dropped)
        self.figures.rounds.append((len(guesses), right))
        self.stride.learn(len(guesses), right, sum(s.seconds for s in made) / len(made), self.figures.call_s[-1])
        self._next = truth[min(right, len(truth) - 1)]
        if right < len(guesses):
            return None
        self.figures.overlapped += ahead is not None
        return ahead

    def _write(
        self, stage: Stage, tokens: Sequence[int], hit: Hit
    ) -> Generator["Future[Any] | None", None, PassageStretch]:
        """The next tokens under a passage."""
        engine, text, begun = stage.engines[BASE], stage.transcript, stage.clock()
        limit = min(text.request.max_tokens, self._room)
        most = min(limit, len(tokens) + self.wish.every)
        prompt = self.prompts.of(hit[0])
        wish = replace(stage.params, max_tokens=most, seed=text.request.seed)
        [request] = engine.apply(Submit(prompt, wish, offset=len(text.prompt) - len(prompt)))
        try:
            if tokens:
                engine.apply(Extend(request.id, list(tokens)))
            while request.finish is None:  # one that failed counts only if its passage was right
                yield None
        finally:
            if request.finish is None:
                engine.apply(Abort(request.id))
        self.figures.tokens += len(prompt) + len(tokens)
        self.figures.cached += request.stats.cached
        count(text.request.stats, request.stats)
        ends = request.finish != "length" or len(request.output) >= limit
        error = (request.error or "The model made no token.") if request.finish == "error" else None
        return PassageStretch(hit, request.output[len(tokens) :], ends, stage.clock() - begun, error)

    def _keep(self, stage: Stage, stretch: PassageStretch) -> None:
        if stretch.error is not None:
            raise PacelineError(stretch.error)
        text = stage.transcript
        text.add(stretch.tokens, BASE, passage=stretch.hit[0], score=stretch.hit[1] / self.retriever.unit)
        self.figures.strides += 1
        self.figures.model_s += stretch.seconds
        if stretch.ends and text.open:
            text.end("length", "context")

    # -- the knowledge base ------------------------------------------------------------------------------------------

    def _ask(self, queries: Sequence[Any]) -> "Future[Any]":
        self.figures.batches.append(len(queries))
        return self.pool.submit(timed, self.retriever, list(queries), self.wish.prefetch)

    def _answers(self, call: "Future[Any]", guesses: Sequence[Hit] = ()) -> list[list[Hit]]:
        """What a call found; the cache learns what was looked at, up to the first wrong guess."""
        answers, seconds = call.result()
        self.figures.call_s.append(seconds)
        for i, hits in enumerate(answers):
            self.cache.add([number for number, _ in hits])
            if i < len(guesses) and guesses[i][0] != hits[0][0]:
                break
        return list(answers)

    def ended(self, stage: Stage) -> None:
        f, text, elapsed = self.figures, stage.transcript, stage.clock() - self._begun
        self.level = Level(f.proposed, f.accepted, f.strides, elapsed, expensive=f.strides, expensive_s=f.one_at_a_time)
        used = {segment.notes["passage"]: segment.notes["score"] for segment in text.segments}
        passages = [
            {"id": i, "title": self.prompts.passages[i].title, "text": self.prompts.passages[i].text, "score": score}
            for i, score in used.items()
        ]
        self.report.update(
            passages=passages, segments=text.shown(), calls=len(f.batches), batches=f.batches, rounds=len(f.rounds),
            verified=[list(round) for round in f.rounds],
            proposed=f.proposed, accepted=f.accepted, dropped_tokens=f.dropped, overlapped=f.overlapped,
            strides=f.strides, stride_tokens=f.tokens, cached_tokens=f.cached, model_seconds=f.model_s,
            call_seconds=sum(f.call_s), seconds_saved=self.level.saved_s,
            retriever=self.retriever.kind,
        )  # fmt: skip


def timed(retriever: Retriever, queries: Sequence[Any], k: int) -> tuple[list[list[Hit]], float]:
    """A call of the knowledge base, and its seconds."""
    begun = perf_counter()
    return retriever.search(queries, k), perf_counter() - begun


def count(whole: Any, part: Any) -> None:
    """Token-level speculation of a stride joins the answer's."""
    whole.passes += part.passes
    whole.count(part.offered, part.kept)
