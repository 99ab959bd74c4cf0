"""Cases of the lossless matrix: requests, engines and the plain text each request must get."""

import itertools
import random
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from paceline.core.grammar import Grammar
from paceline.core.noise import TargetNoise
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.draft import DRAFTERS
from paceline.draft.companion import COMPANIONS
from paceline.draft.crossvocab import ForeignModel
from paceline.draft.head import HEADS
from paceline.draft.surfaces import Surfaces
from paceline.draft.vocabulary import DraftVocabulary
from paceline.engine.adapters import Adapters
from paceline.engine.config import EngineConfig
from paceline.engine.loop import Engine
from paceline.engine.own_drafts import OwnDrafts, with_own
from paceline.model.lora import LoraWeights
from paceline.sample.grammar import Grammars, vocabulary
from paceline.sample.sampler import Sampler
from paceline.schedule.policies import ORDERS, SCHEDULES
from tests.tiny import letters
from tests.toy import VOCAB, RecurrentToy, Toy, table

EOS = 6
MAX_LEN = 48
HAVE = {
    "draft", "foreign", "callable", "target:program", "draft:program", *HEADS.names(), *COMPANIONS.names()
}  # fmt: skip
"""What the engines of these tests are given."""


def sketches() -> dict[str, Any]:
    """A small random head of every format, and every companion of a draft model."""
    made = {name: copy(sketch(name)) for name in HEADS.names()}
    for kind in COMPANIONS.names():
        made[kind] = COMPANIONS.get(kind).sketch(2, len(kind))
        made[kind].vocab_size = VOCAB
    return made


@cache
def sketch(name: str) -> Any:
    return HEADS.get(name).sketch(2, VOCAB, len(name))


def toy_user(tokens: list[int], nodes: int) -> list[tuple[int, int]]:
    """A deterministic tree: a pseudo-random shape over pseudo-random tokens, siblings distinct."""
    rng = random.Random(hash(tuple(tokens[-3:])) ^ len(tokens))
    out: list[tuple[int, int]] = []
    for i in range(nodes):
        parent = rng.randrange(-1, i)
        taken = {t for t, p in out if p == parent}
        free = [t for t in range(VOCAB) if t not in taken]
        if free:
            out.append((rng.choice(free), parent))
        else:
            out.append((rng.randrange(VOCAB), -1 if i == 0 else i - 1))
    return out


def ban_last(prompt: Any, output: Any, logits: torch.Tensor) -> torch.Tensor:
    """A custom processor that depends on the path: the last two tokens cannot both repeat."""
    logits = logits.clone()
    if len(output) >= 2 and output[-1] == output[-2]:
        logits[output[-1]] = float("-inf")
    return logits


TURNS = {"": 0, "a": 2, "b": 5}
"""The model and its adapters: what each adds to the tokens that layers read."""
ADAPTERS = ("a", "b")
AUTOMATON: tuple[dict[int, int], ...] = ({0: 1, 4: 2, EOS: 0}, {1: 1, 2: 1, 3: 0}, {0: 3, 5: 3}, {4: 0}, {})
"""A toy regular language, (0 [12]* 3 | 4 [05] 4)*, as {token: next state} of each state. The text may end in state 0;
the last state is the dead one."""
REGEX = "(0[12]*3|4[05]4)*"
"""Pattern of the same language, over the texts that the toy's tokens spell."""
TOKENIZER = letters("012345.")
OTHER = letters("340125.")
"""Vocabulary of the same characters under other ids."""
GRAMMARS = Grammars(lambda: vocabulary(TOKENIZER, VOCAB, [EOS]), VOCAB)


def masked(prompt: Any, output: Any, logits: torch.Tensor) -> torch.Tensor:
    """A mask that follows the whole path: only tokens that the state after `output` allows."""
    state = 0
    for token in output:
        state = AUTOMATON[state].get(token, len(AUTOMATON) - 1)
    mask = torch.full_like(logits, float("-inf"))
    for token in AUTOMATON[state]:
        mask[token] = 0.0
    return logits + mask


FEATURES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.0},
    "top-k": {"temperature": 1.3, "top_k": 3},
    "top-p": {"temperature": 1.0, "top_p": 0.7},
    "min-p": {"temperature": 1.2, "min_p": 0.2},
    "penalties": {
        "temperature": 0.9, "repetition_penalty": 1.4, "presence_penalty": 0.7, "frequency_penalty": 0.4,
    },
    "greedy penalties": {"temperature": 0.0, "frequency_penalty": 1.5, "repetition_penalty": 1.2},
    "bias": {"temperature": 1.0, "logit_bias": {0: 2.0, 5: -3.0}},
    "allowed": {"temperature": 1.0, "allowed_tokens": (0, 2, 3, 6)},
    "bad words": {"temperature": 1.0, "bad_words": ((1, 2), (4,))},
    "custom": {"temperature": 1.0, "processors": (ban_last,)},
    "mask": {"temperature": 1.2, "processors": (masked,)},
    "grammar": {"temperature": 1.2, "grammar": Grammar("regex", REGEX), "ignore_eos": False},
    "min tokens": {"temperature": 1.0, "min_tokens": 6},
    "logprobs": {"temperature": 1.0, "logprobs": 2},
    "stop ids": {"temperature": 1.0, "stop_token_ids": (3,)},
    "n > 1": {"temperature": 1.0, "n": 3},
}  # fmt: skip


@dataclass
class Wish:
    prompt: list[int]
    params: SamplingParams


@dataclass
class Setting:
    """An engine around the toy: the draft is the same table with noise mixed in."""

    model_seed: int = 0
    sharpness: float = 2.0
    draft_noise: float = 0.7
    blocks: int = 64
    block_size: int = 4
    max_requests: int = 4
    row_budget: int = 16
    nodes: dict[str, int] = field(default_factory=dict)
    prefix_cache: bool = True
    schedule: str = "chunked"
    order: str = "fcfs"
    tbt_target_ms: float | None = None
    group_size: int | None = None
    layer_groups: int | None = None
    patience_ms: float = 0.0
    check: bool = True
    words: int = 0
    """Tokens of the draft vocabulary, of the draft model and of the target's lower layers; 0: all. It changes now and
    then."""
    recurrent: frozenset[str] = frozenset()
    """Models with recurrent layers, among target and draft."""
    snapshots: int | None = None
    """States that are kept for other texts to go on from; None: one for each block."""
    max_loras: int = 4
    """Adapters in memory; more than one place less than there are names lets requests wait."""
    settings: dict[str, float | str] = field(default_factory=dict)
    """What was set of drafters."""
    ruled: bool = True
    """Can the target apply rules between the passes of a run?"""
    clock: int = 0
    """Seed of the times that parts of a step seem to take: the planner's choice is arbitrary, and repeats."""

    def made(self, name: str, logits: torch.Tensor) -> Toy:
        """The model of this name."""
        return (RecurrentToy if name in self.recurrent else Toy)(logits, MAX_LEN)

    def target(self, adapter: str = "") -> Toy:
        """The model, or its twin with an adapter in its weights."""
        made = self.made("target", table(self.model_seed, self.sharpness))
        made.turn = TURNS[adapter]
        return made

    def engine(self, *, user: Any = toy_user) -> Engine:
        logits = table(self.model_seed, self.sharpness)
        draft = self.made("draft", logits + self.draft_noise * table(self.model_seed + 1, self.sharpness))
        blocks = max(self.blocks, -(-MAX_LEN // self.block_size))
        config = EngineConfig(
            blocks=blocks, block_size=self.block_size, max_requests=self.max_requests,
            row_budget=max(self.row_budget, self.max_requests), nodes=self.nodes,
            prefix_cache=self.prefix_cache, schedule=self.schedule, order=self.order, group_size=self.group_size,
            layer_groups=self.layer_groups if self.schedule == "layered" else None,
            tbt_target_ms=self.tbt_target_ms, patience_ms=self.patience_ms, check=self.check, settings=self.settings,
            snapshots=self.snapshots,
        )  # fmt: skip
        target = self.target()
        target.abilities -= frozenset() if self.ruled else {"rules"}
        foreign = ForeignModel(copy(draft), Surfaces(OTHER, VOCAB), Surfaces(TOKENIZER, VOCAB), VOCAB)
        components = {"draft": draft, "foreign": foreign, **sketches()}
        engine = Engine(target, config, components=components, callable=user, tokenizer=TOKENIZER,
                        eos=(EOS,), clock=clock(self.clock))  # fmt: skip
        engine.session.adapters = ToyLoras(target, self.max_loras, drafts=OwnDrafts(components, lambda heads: None))
        for name in ADAPTERS:
            engine.session.adapters.enter(name, Path(name), lora(name))
        if self.words:
            engine.vocabulary = Changing([(target, False), (draft, True)], self.words, self.clock)
        return engine


class ToyLoras(Adapters):
    """Adapters of a toy, which are not read from files."""

    def lora(self, path: Path) -> LoraWeights:
        return lora(path.name)


def lora(name: str) -> LoraWeights:
    """An adapter; one has a draft of its own, which thinks as it does."""
    made = LoraWeights({}, f"digest of {name}", TURNS[name])
    return with_own(made, made) if name == "b" else made


class Changing(DraftVocabulary):
    """A draft vocabulary that is another one after each step, whatever is read."""

    def __init__(self, models: Sequence[tuple[Toy, bool]], size: int, seed: int) -> None:
        self.models, self.size, self.rng = models, size, random.Random(seed)
        self.read([])

    def read(self, tokens: Sequence[int]) -> None:
        words = torch.tensor(sorted(self.rng.sample(range(VOCAB), self.size)))
        for model, drafts in self.models:
            model.narrow(words, drafts)


def clock(seed: int) -> Callable[[], float]:
    """A clock on which no two stretches are alike."""
    rng, now = random.Random(seed), [0.0]

    def tell() -> float:
        now[0] += rng.expovariate(1.0) ** 3
        return now[0]

    return tell


def plain(toy: Toy, prompt: list[int], params: SamplingParams, lineage: tuple[int, ...] = ()) -> list[int]:
    """Plain decoding by definition: no engine, no cache, one token at a time."""
    sampler = Sampler(VOCAB, grammars=GRAMMARS)
    assert params.seed is not None
    request = Request(0, list(prompt), params, params.seed, eos=frozenset({EOS}), lineage=lineage)
    sampler.admit(request)
    noise = TargetNoise(params.seed, lineage)
    room = MAX_LEN - len(prompt)
    limit = min(room, params.max_tokens or room)
    stops = {EOS} if not params.ignore_eos else set()
    while len(request.output) < limit:
        row = [(request, ())]
        scores = sampler.scores(row, toy.next_logits(request.tokens)[None])
        token = sampler.draw(row, scores, [noise.key(len(request.tokens))])[0]
        if token < 0:
            break
        request.append(token)
        sampler.commit(request, [token])
        if len(request.output) >= params.min_tokens and token in stops | set(params.stop_token_ids):
            break
    return request.output


def run(engine: Engine, wishes: list[Wish], rng: random.Random | None = None) -> list[list[Request]]:
    """All requests to their end; with `rng`, submissions are spread over the steps and drafter slots are dropped."""
    queue = list(wishes)
    groups: list[list[Request]] = []
    for _ in itertools.count():
        while queue and (rng is None or not engine.busy or rng.random() < 0.3):
            wish = queue.pop(0)
            groups.append(engine.submit(wish.prompt, wish.params))
        if not engine.busy and not queue:
            break
        engine.step()
        if rng is not None and rng.random() < 0.2:
            for slots in engine.drafters.slots.values():
                slots.clear()
    engine.cache.check_integrity()
    return groups


def laws(setting: Setting, wish: Wish, request: Request) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """At each place of a request's output the distribution [V] and the log-probabilities [V] that plain decoding has
    there."""
    toy, sampler = setting.target(wish.params.adapter), Sampler(VOCAB, grammars=GRAMMARS)
    twin = Request(0, list(wish.prompt), wish.params, request.seed, eos=frozenset({EOS}), lineage=request.lineage)
    sampler.admit(twin)
    p, log_p = [], []
    for token in request.output:
        row = [(twin, ())]
        scores = sampler.scores(row, toy.next_logits(twin.tokens)[None])
        p.append(sampler.probs(row, scores)[0])
        log_p.append(scores[0].log_softmax(-1) if wish.params.greedy else scores[0])
        twin.append(token, False)
        sampler.commit(twin, [token])
    return p, log_p


def check_end(wish: Wish, request: Request) -> None:
    """It ended at the first token that may end it, or at its limit."""
    params, output = wish.params, request.output
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    ends = [i for i, token in enumerate(output, 1) if i >= params.min_tokens and token in stops]
    limit = min(MAX_LEN - len(wish.prompt), params.max_tokens or MAX_LEN)
    assert (request.finish, ends) in (("stop", [len(output)]), ("length", [])), (request.finish, request.error, ends)
    assert len(output) <= limit and (ends or len(output) == limit)


def check_stats(request: Request) -> None:
    """Every pass gives at least one token, one of them not drafted; the last one may be cut by the end of the text."""
    stats, drafted = request.stats, sum(author is not None for author in request.authors)
    assert stats.generated == len(request.output) == len(request.authors)
    assert len(request.output) - stats.passes <= drafted <= stats.accepted <= stats.drafted
    assert stats.accepted - drafted <= len(stats.kept) and stats.passes >= max(stats.kept, default=0)
    assert stats.kept == sorted(stats.kept, reverse=True)
    assert all(kept <= offered for kept, offered in zip(stats.kept, stats.offered))


def check_logprobs(wish: Wish, request: Request, log_p: list[torch.Tensor]) -> None:
    assert [entry.token for entry in request.logprobs] == request.output
    for entry, row in zip(request.logprobs, log_p):
        best = sorted(((x, -t) for t, x in enumerate(row.tolist()) if x > float("-inf")), reverse=True)
        want = {-t: x for x, t in best[: wish.params.logprobs]}
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-12)
        assert entry.top == pytest.approx(want, abs=1e-12)


def check(setting: Setting, wishes: list[Wish], rng: random.Random | None = None) -> Engine:
    """Every sample equals plain decoding, log-probabilities too, and its statistics add up; no drafter failed."""
    engine = setting.engine()
    groups = run(engine, wishes, rng)
    assert engine.drafters.errors == []
    for wish, group in zip(wishes, groups):
        for i, request in enumerate(group):
            lineage = (i,) if wish.params.n > 1 else ()
            assert request.lineage == lineage
            want = plain(setting.target(wish.params.adapter), wish.prompt, wish.params, lineage)
            assert request.output == want, (wish, request.output, want)
            check_end(wish, request)
            check_stats(request)
            if wish.params.logprobs is not None:
                check_logprobs(wish, request, laws(setting, wish, request)[1])
    return engine


SET: dict[str, st.SearchStrategy[float | str]] = {
    f"{name}.{setting.name}": st.sampled_from(setting.choices or (setting.low, setting.high))
    for name, card in DRAFTERS.items()
    for setting in card.settings
}
settings_st = st.builds(
    Setting,
    model_seed=st.integers(0, 5),
    sharpness=st.sampled_from([0.5, 2.0, 4.0]),
    draft_noise=st.sampled_from([0.0, 0.3, 1.0]),
    blocks=st.integers(1, 40),
    block_size=st.sampled_from([1, 2, 3, 4, 8]),
    max_requests=st.integers(1, 5),
    row_budget=st.sampled_from([1, 5, 9, 33]),
    nodes=st.fixed_dictionaries({name: st.integers(1, 12) for name in DRAFTERS.names() if name != "none"}),
    prefix_cache=st.booleans(),
    schedule=st.sampled_from(SCHEDULES),
    order=st.sampled_from(list(ORDERS)),
    group_size=st.sampled_from([None, None, 1, 2]),
    layer_groups=st.sampled_from([None, 2, 3, 99]),
    patience_ms=st.sampled_from([0.0, 1e9]),
    words=st.sampled_from([0, 1, 3, 5]),
    max_loras=st.sampled_from([1, 4]),
    settings=st.fixed_dictionaries({}, optional=SET),
    clock=st.integers(0, 2**16),
)


@st.composite
def wish_st(
    draw: Any, features: list[str], drafters: list[str], verifier: str = "exact", adapters: Sequence[str] = tuple(TURNS)
) -> Wish:
    params: dict[str, Any] = dict(FEATURES[draw(st.sampled_from(features))])
    params["seed"] = draw(st.integers(0, 2**64 - 1))
    params["drafter"] = draw(st.sampled_from(drafters))
    params["verifier"] = verifier
    params["adapter"] = draw(st.sampled_from(adapters))
    params["max_tokens"] = draw(st.integers(max(1, params.get("min_tokens", 0)), 24))
    params["n"] = params.get("n") or draw(st.sampled_from([1, 1, 1, 3]))
    params.setdefault("ignore_eos", draw(st.booleans()))
    prompt = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20))
    return Wish(
        prompt, SamplingParams(top_p=params.pop("top_p", 1.0), top_k=params.pop("top_k", 0), **params).resolve({})
    )
