"""KNN-LM served speculatively (RaLMSpec, section 5): every token's distribution is lambda p_kNN + (1 - lambda) p_LM.

    cache of entries ─▶ s tokens, each with neighbours from the cache ─▶ one call with all s contexts
                        the token that the true neighbours make is drawn again from the kept logits with the same noise;
                        the first that differs takes the place of what was written, and the rest is dropped

Verification is of the token, not of the neighbours: a cache that misses some of them may still be right.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.errors import InputError
from paceline.core.operations import Abort, Extend, Submit
from paceline.core.request import Request
from paceline.reason.level import Level
from paceline.reason.runner import BASE, Script, Stage
from paceline.retrieve.datastore import Datastore, keys_of
from paceline.retrieve.dense import Vectors
from paceline.retrieve.policy import RetrievalFigures, timed
from paceline.retrieve.retriever import Hit, PassageCache
from paceline.retrieve.stride import Stride

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.core.params import SamplingParams
    from paceline.engine.loop import Engine


@dataclass(frozen=True, slots=True)
class Knn:
    """How a datastore joins the model's distribution."""

    weight: float = 0.25
    """Lambda: the share of the neighbours."""
    k: int = 16
    """Neighbours of a token."""
    temperature: float = 0.1
    """A neighbour weighs exp(cosine / temperature)."""
    stride: int | None = None
    """Tokens that are written before one call verifies them; None: the optimal number."""
    following: int = 10
    """Entries after each one found that join the request's cache: texts go on as they did."""
    cap: float = 0.9
    most: int = 16

    def __post_init__(self) -> None:
        if not 0 < self.weight < 1:
            raise InputError(f"weight is {self.weight!r}, but it must be above 0 and below 1.")
        if not self.temperature > 0:
            raise InputError(f"temperature is {self.temperature!r}, but it must be above 0.")
        for name, least in (("k", 1), ("following", 0), ("most", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)!r}, but it must be at least {least}.")
        if self.stride is not None and self.stride < 1:
            raise InputError(f"stride is {self.stride!r}, but it must be at least 1.")


def mixed(store: Datastore, wish: Knn, logits: Tensor, hits: Sequence[Hit]) -> Tensor:
    """[V] Logits of the mixture, from the model's [V] and the neighbours. The same neighbours make the same bits."""
    if not hits:
        return logits
    closeness = torch.tensor([score / store.unit for _, score in hits], dtype=torch.float64)
    share = torch.zeros(len(logits), dtype=torch.float64)
    values = torch.from_numpy(store.values[[number for number, _ in hits]].astype(np.int64))
    share.index_add_(0, values, (closeness / wish.temperature).softmax(0))
    law = logits.double().softmax(-1) * (1 - wish.weight) + share * wish.weight
    return law.log().to(logits.dtype)


def plainly(store: Datastore, wish: Knn) -> Any:
    """A processor of logits that asks the datastore for each token: the reference form, which any request may use."""

    def process(prompt: Sequence[int], output: Sequence[int], logits: Tensor) -> Tensor:
        [hits] = store.search([query_of(logits)], wish.k)
        return mixed(store, wish, logits, hits)

    return process


def query_of(logits: Tensor) -> Vectors:
    made: Vectors = keys_of(logits[None])[0].astype(np.float32)
    return made


class KnnWriting:
    """Writes one answer with a datastore. A `Policy`."""

    name = kind = "neighbours"
    deadline_s: float | None = None

    def __init__(self, store: Datastore, wish: Knn, pool: Executor) -> None:
        self.store, self.wish, self.pool = store, wish, pool
        self.cache = PassageCache(store)
        self.stride = Stride(wish.stride, most=wish.most, cap=wish.cap)
        self.figures, self.report, self.level = RetrievalFigures(), dict[str, Any](), Level()
        self._seen: dict[tuple[int, ...], tuple[Vectors, Tensor]] = {}
        """By output: the context's key, and the model's logits after it."""
        self._begun = 0.0

    def check(self, params: "SamplingParams", engines: "Mapping[str, Engine]") -> None:
        if self.store.values.max() >= engines[BASE].model.vocab_size:
            raise InputError("The datastore has token ids that this model does not know; build it with this model.")

    def script(self, stage: Stage) -> Script:
        self._begun = stage.clock()
        text = stage.transcript
        while text.open:
            count = min(self.stride.next()[0], text.left)
            begun, self._seen = stage.clock(), {}
            request = self._submit(stage, count)
            try:
                yield from stage.written(request)
            finally:
                if request.finish is None:
                    stage.engines[BASE].apply(Abort(request.id))
            seconds = (stage.clock() - begun) / count
            call: Future[Any] = self.pool.submit(timed, self.store, self._queries(text.tokens, request), self.wish.k)
            yield call
            self._judge(stage, request, call, seconds)

    def _submit(self, stage: Stage, count: int) -> Request:
        text, engine = stage.transcript, stage.engines[BASE]
        wish = replace(
            stage.params, max_tokens=len(text.tokens) + count, seed=text.request.seed,
            processors=(*stage.params.processors, self._mix),
        )  # fmt: skip
        [request] = engine.apply(Submit(text.prompt, wish))
        if text.tokens:
            engine.apply(Extend(request.id, list(text.tokens)))
        made: Request = request
        return made

    def _mix(self, prompt: Sequence[int], output: Sequence[int], logits: Tensor) -> Tensor:
        query = query_of(logits)
        self._seen[tuple(output)] = query, logits.clone()
        return mixed(self.store, self.wish, logits, self._near(query))

    def _near(self, query: Vectors) -> list[Hit]:
        ids = self.cache.ids
        scores = self.store.scores(query, ids) if ids else np.empty(0, np.int64)
        order = np.lexsort((np.array(ids, np.int64), -scores))[: self.wish.k]
        return [(ids[i], int(scores[i])) for i in order]

    def _queries(self, before: Sequence[int], request: Request) -> list[Vectors]:
        return [self._seen[tuple(request.output[:at])][0] for at in range(len(before), len(request.output))]

    def _judge(self, stage: Stage, request: Request, call: "Future[Any]", seconds: float) -> None:
        """Draw each token again with its true neighbours, and accept up to the first that differs, corrected."""
        found, call_s = call.result()
        text, before = stage.transcript, len(stage.transcript.tokens)
        written = request.output[before:]
        truth = self._truth(stage, request, written, found)
        right = next((i for i, (a, b) in enumerate(zip(written, truth)) if a != b), len(written))
        for hits in found[: right + 1]:
            self.cache.add([n for at, _ in hits for n in range(at, min(at + self.wish.following + 1, self.store.size))])
        taken = text.add(truth[: right + 1], BASE)
        f = self.figures
        f.batches.append(len(written))
        f.rounds.append((len(written), right))
        f.call_s.append(call_s)
        f.strides += taken
        f.model_s += seconds * taken
        f.dropped += len(written) - min(right + 1, len(written))
        self.stride.learn(len(written), right, seconds, call_s)

    def _truth(
        self, stage: Stage, request: Request, written: Sequence[int], found: Sequence[Sequence[Hit]]
    ) -> list[int]:
        """The tokens that the true neighbours make after what was written, by the engine's own chain behind the
        processors: temperature, filters, noise."""
        p, before = request.params, len(request.output) - len(written)
        own = type(p)(temperature=p.temperature, top_k=p.top_k, top_p=p.top_p, min_p=p.min_p).resolve({})
        probe = replace(request, id=stage.engines[BASE].session.number(), params=own, output=[], eos=frozenset())
        sampler = stage.engines[BASE].judge.sampler
        logits = [
            mixed(self.store, self.wish, self._seen[tuple(request.output[: before + i])][1], hits)
            for i, hits in enumerate(found)
        ]
        start = len(request.prompt) + before + request.offset
        keys = [request.target_noise.key(start + i) for i in range(len(written))]
        sampler.admit(probe)
        try:
            rows = [(probe, ())] * len(written)
            return sampler.draw(rows, sampler.scores(rows, torch.stack(logits)), keys)
        finally:
            sampler.drop(probe)

    def ended(self, stage: Stage) -> None:
        f, elapsed = self.figures, stage.clock() - self._begun
        self.level = Level(f.proposed, f.accepted, f.strides, elapsed, expensive=f.strides, expensive_s=f.one_at_a_time)
        self.report.update(
            calls=len(f.batches), batches=f.batches, rounds=len(f.rounds), verified=[list(each) for each in f.rounds],
            proposed=f.proposed, accepted=f.accepted, dropped_tokens=f.dropped, strides=f.strides,
            model_seconds=f.model_s, call_seconds=sum(f.call_s), seconds_saved=self.level.saved_s,
            entries=self.store.size,
        )  # fmt: skip
