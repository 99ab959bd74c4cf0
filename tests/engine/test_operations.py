"""Operations at random steps: every token is the one that plain decoding of the text as it then is would draw, which is
what resubmitting the text would give. The log of it all replays."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from paceline.core.errors import InputError, PacelineError, RefusalError
from paceline.core.noise import TargetNoise
from paceline.core.operations import Abort, Branch, Close, Extend, Fork, Join, Park, Replace, Resume, Rewind, Submit
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.branches import BranchFamily
from paceline.engine.loop import Engine
from paceline.sample.sampler import Sampler
from paceline.simulate.log import Event
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from tests.draft.heads import WithHeads, registered
from tests.lossless.cases import Setting, run
from tests.toy import VOCAB, Toy, table


@pytest.fixture(autouse=True, scope="module")
def plugged_in() -> Iterator[None]:
    with registered():
        yield


def params(**changes: object) -> SamplingParams:
    base = {"temperature": 1.0, "seed": 5, "max_tokens": 20, "ignore_eos": True, "drafter": "model"}
    return SamplingParams(**{**base, **changes}).resolve({})  # type: ignore[arg-type]


def expected(toy: Toy, request: Request, at: int) -> int:
    """The token that plain decoding draws as the output's token `at`, from the request's text before it."""
    sampler = Sampler(VOCAB)
    text = [*request.prompt, *request.output[:at]]
    alone = Request(0, text, replace(request.params, processors=()), request.seed, lineage=request.lineage)
    sampler.admit(alone)
    row = [(alone, ())]
    key = TargetNoise(request.seed, request.lineage).key(len(text) + request.offset)
    scores = sampler.scores(row, toy.next_logits(text, len(text) - request.shift)[None])
    return sampler.draw(row, scores, [key])[0]


class Session:
    """An engine, and random operations on what it serves."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting, self.rng = setting, random.Random(seed)
        self.engines = [setting.engine(), setting.engine()]
        self.logs: list[list[Event]] = [[], []]
        for engine, log in zip(self.engines, self.logs):
            record(engine, log.append)
        self.home: dict[int, int] = {}
        self.live: list[tuple[Engine, Request]] = []
        self.toy, self.drawn, self.done = setting.target(), 0, dict[str, int]()

    def step(self) -> None:
        for engine in self.engines:
            mine = [request for owner, request in self.live if owner is engine]
            before = [len(request.output) for request in mine]
            if engine.busy:
                engine.step()
            for request, start in zip(mine, before):
                for at in range(start, len(request.output)):
                    assert request.output[at] == expected(self.toy, request, at)
                    self.drawn += 1
        self.live = [(engine, request) for engine, request in self.live if request.finish is None]
        for engine in self.engines:
            for family in list(engine.desk.branches.values()):
                if not family.live and self.rng.random() < 0.7:
                    self.join(engine, family)

    def join(self, engine: Engine, family: BranchFamily) -> None:
        """All branches have ended: some of them go on as one text, in any order."""
        chosen = self.rng.sample([*family.done], self.rng.randint(1, len(family.done)))
        tokens = [self.rng.randrange(VOCAB) for _ in range(self.rng.randint(1, 3))]
        try:
            engine.apply(Join(family.parent.id, chosen, tokens))
            self.done["join"] = self.done.get("join", 0) + 1
        except PacelineError:  # no room
            engine.apply(Abort(family.parent.id))
            self.live = [(owner, each) for owner, each in self.live if each.finish is None]

    def operate(self) -> None:
        engine, request = self.rng.choice(self.live)
        kind = self.rng.choice(["extend", "fork", "branch", "close", "rewind", "redraw", "replace", "park", "abort"])
        tokens = [self.rng.randrange(VOCAB) for _ in range(self.rng.randint(1, 4))]
        try:
            if kind == "extend":
                engine.apply(Extend(request.id, tokens))
            elif kind == "fork" and len(self.live) < 8:
                self.live += [(engine, child) for child in engine.apply(Fork(request.id, self.rng.randint(1, 2)))]
            elif kind == "branch" and len(self.live) < 8:
                wish = replace(request.params, max_tokens=self.rng.randint(1, 9))
                made = engine.apply(Branch(request.id, self.rng.randint(1, 3), wish))
                self.live += [(engine, child) for child in made]
            elif kind == "close":
                engine, request = self.rng.choice([each for each in self.live if each[1].common] or self.live)
                engine.apply(Close(request.id))
            elif kind in ("rewind", "redraw"):
                length = self.rng.randint(0, len(request.output))
                engine.apply(Rewind(request.id, length, redraw=kind == "redraw"))
            elif kind == "replace":
                engine.apply(Replace(request.id, tokens))
            elif kind == "park":
                packed = engine.apply(Park(request.id))
                self.live.remove((engine, request))
                other = self.rng.choice(self.engines)
                [again] = other.apply(Resume(packed))
                assert (again.tokens, again.lineage, again.offset) == (request.tokens, request.lineage, request.offset)
                self.live.append((other, again))
            elif kind == "abort" and self.rng.random() < 0.2:
                engine.apply(Abort(request.id))
                self.live = [(owner, each) for owner, each in self.live if each.finish is None]
            self.done[kind] = self.done.get(kind, 0) + 1
        except (InputError, RefusalError) as error:
            known = isinstance(error, InputError) or (kind == "branch" and "target" in self.setting.recurrent)
            assert known, error
            self.done["refused"] = self.done.get("refused", 0) + 1


@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.full if 8 <= n < 22 else ()) for n in range(24)])
def test_texts_are_those_of_resubmitting(seed: int) -> None:
    rng = random.Random(seed)
    drafter = ["model", "ngram", "auto", "topk", "heads", "none", "ngram+topk", "heads"][seed % 8]
    kind = WithHeads if drafter == "heads" else Setting
    states = frozenset(["target", "draft"][: seed % 3]) if seed >= 16 else frozenset()
    setting = kind(
        model_seed=seed % 4, blocks=rng.choice([14, 40]), block_size=rng.choice([2, 4]), max_requests=4, row_budget=33,
        patience_ms=rng.choice([0.0, 1e9]), prefix_cache=seed % 5 > 0, clock=seed, recurrent=states,
    )  # fmt: skip
    session, left = Session(setting, seed), 14
    for _ in range(400):
        while left and len(session.live) < 4:
            wish = params(drafter=drafter, seed=100 * seed + left, temperature=rng.choice([0.0, 1.0]))
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))]
            engine = rng.choice(session.engines)
            session.live += [(engine, request) for request in engine.apply(Submit(prompt, wish))]
            left -= 1
        if not session.live:
            break
        if rng.random() < 0.4:
            session.operate()
        session.step()
    assert session.drawn > 100 and len(session.done) >= 3, session.done
    for engine, log in zip(session.engines, session.logs):
        engine.cache.check_integrity()
        assert not engine.drafters.errors and replay(log).difference is None


def test_a_fork_is_a_resubmission_with_its_branch() -> None:
    engine = Setting().engine()
    [request] = engine.submit([1, 2, 3], params())
    while len(request.output) < 6:
        engine.step()
    at = list(request.output)
    [first, second] = engine.apply(Fork(request.id, 2))
    while engine.busy:
        engine.step()
    assert request.output[: len(at)] == first.output[: len(at)] == second.output[: len(at)] == at
    assert len({tuple(r.output) for r in (request, first, second)}) == 3
    other = Setting().engine()
    again = other.submit([1, 2, 3, *at], params(max_tokens=20 - len(at)), lineage=(1,))
    while other.busy:
        other.step()
    assert again[0].output == second.output[len(at) :]


def test_a_rewound_text_is_said_again_unless_it_is_redrawn() -> None:
    engine = Setting().engine()
    plain = run(Setting().engine(), [])  # nothing: the engines below are compared with one another
    assert plain == []
    [kept, redrawn] = [engine.submit([1, 2, 3], params())[0] for _ in range(2)]
    while min(len(kept.output), len(redrawn.output)) < 8:
        engine.step()
    before = list(kept.output)
    engine.apply(Rewind(kept.id, 2))
    engine.apply(Rewind(redrawn.id, 2, redraw=True))
    while engine.busy:
        engine.step()
    assert kept.output[: len(before)] == before and redrawn.output[:2] == before[:2]
    assert redrawn.output != kept.output and redrawn.lineage == (0,)


def test_a_parked_request_brings_its_kv() -> None:
    """Its sealed blocks are found in the other engine's prefix cache, and are not computed again."""
    one, two = Setting(block_size=2).engine(), Setting(block_size=2).engine()
    [request] = one.submit([1, 2, 3, 4, 5, 6, 0], params())
    one.step()
    packed = one.apply(Park(request.id))
    assert not one.busy and one.cache.room() == one.cache.num_blocks
    [again] = two.apply(Resume(packed))
    while two.busy:
        two.step()
    assert again.stats.cached >= 6 and not two.drafters.errors
    [[whole]] = run(Setting(block_size=2).engine(), [type("W", (), {"prompt": request.prompt, "params": params()})()])
    assert again.output == whole.output


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda r: Extend(99, [1]), "no request 99"),
        (lambda r: Extend(r.id, [VOCAB]), "outside the vocabulary"),
        (lambda r: Extend(r.id, [1] * 30), "do not fit"),
        (lambda r: Fork(r.id, 0), "at least one"),
        (lambda r: Rewind(r.id, 40), "cannot be rewound"),
        (lambda r: Replace(r.id, []), "empty"),
        (lambda r: Replace(r.id, [1] * 40), "more than the context"),
        (lambda r: Resume(b"nonsense"), "not a parked request"),
        (lambda r: Resume(b"PACELN\x00\x09" + bytes(8)), "format 9"),
        (lambda r: "abort", "not an operation"),
    ],
)
def test_bad_operations_change_nothing(make: object, message: str) -> None:
    engine = Setting().engine()
    [request] = engine.submit([1, 2, 3], params())
    engine.step()
    before = (list(request.tokens), len(engine.desk.running), len(engine.desk.waiting))
    with pytest.raises(PacelineError, match=message):
        engine.apply(make(request))  # type: ignore[operator]
    assert before == (request.tokens, len(engine.desk.running), len(engine.desk.waiting))
    while engine.busy:
        engine.step()
    engine.apply(Submit([1], params()))
    with pytest.raises(InputError, match="has ended"):
        engine.apply(Rewind(request.id, 0))


def test_a_parked_request_of_another_model_or_with_functions_is_refused() -> None:
    engine = Setting().engine()
    [request] = engine.submit([1, 2, 3], params())
    engine.step()
    packed = engine.apply(Park(request.id))
    for bad in (packed[:-4], packed[:20]):
        with pytest.raises(InputError, match=r"cut|damaged"):
            engine.apply(Resume(bad))
    other = Engine(Toy(table(0)[:2]), Setting().engine().config)
    with pytest.raises(InputError, match="engine of another model"):
        other.apply(Resume(packed))
    [custom] = engine.submit([1], params(processors=(lambda prompt, output, logits: logits,)))
    with pytest.raises(RefusalError, match="processors"):
        engine.apply(Park(custom.id))
    [told] = engine.submit([1], params(logprobs=1))
    with pytest.raises(RefusalError, match="log-probabilities"):
        engine.apply(Extend(told.id, [1]))
