"""Branches that are joined: the text goes on as it would behind one pass under the training mask."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline import LLM, SamplingParams
from paceline.cache import cache as cache_module
from paceline.core import joined as joined_module
from paceline.core.errors import InputError, PacelineError, RefusalError
from paceline.core.operations import Abort, Branch, Extend, Fork, Join, Park, Replace, Resume, Rewind
from paceline.core.request import Request
from paceline.draft.crossvocab import FOREIGN
from paceline.engine import desk as desk_module
from paceline.engine import layout as layout_module
from paceline.engine import operations as operations_module
from paceline.native.build import library
from paceline.simulate.log import Event
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from tests.reason.dense import Text, logits, tokens
from tests.tiny import tiny_checkpoint

PROMPT = [11, 45, 23, 87, 200, 31, 64, 9, 150, 77, 21]
PROMPTS = [PROMPT, [4, 99, 210, 33, 8, 17, 5], [60 + i for i in range(14)]]
GREEDY = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)
STEPS = 2000

MORE = ("ngram", "topk", "swift", "del", "pearl", "auto")


@pytest.fixture(scope="module")
def dense(pair: tuple[Path, Path]) -> Any:
    return AutoModelForCausalLM.from_pretrained(pair[0], attn_implementation="eager", dtype=torch.float32).eval()


def engine_of(pair: tuple[Path, Path], **changes: Any) -> Any:
    options = {"dtype": "float32", "blocks": 200, "block_size": 4, "check": True, "max_requests": 8, "row_budget": 64}
    return LLM(*pair, **{**options, **changes}).engine


def until(engine: Any, done: Callable[[], bool]) -> None:
    for _ in range(STEPS):
        if done():
            return
        engine.step()
    raise AssertionError("it does not end")


def grow(engine: Any, request: Request, length: int) -> None:
    """Grow the output of a request to exactly `length` tokens."""
    until(engine, lambda: len(request.output) >= length)
    if len(request.output) > length:
        engine.apply(Rewind(request.id, length))


def branch(engine: Any, request: Request, headers: list[list[int]], lengths: list[int]) -> list[Request]:
    """Branches that begin with these tokens, with their total lengths at the end."""
    made = list[Request]()
    for header, length in zip(headers, lengths, strict=True):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        made += engine.apply(Branch(request.id, 1, params))
        engine.apply(Extend(made[-1].id, header))
    return made


def ended(engine: Any, branches: list[Request]) -> None:
    until(engine, lambda: all(child.finish for child in branches))


def own(child: Request) -> list[int]:
    """The tokens that a branch adds."""
    return child.tokens[child.common :]


def nested(engine: Any, prompt: list[int] = PROMPT, order: Sequence[int] = (0, 1, 2)) -> tuple[Request, Text]:
    """Two blocks, one in the other's second branch; the text before the conclusion's own tokens."""
    [request] = engine.submit(prompt, GREEDY)
    grow(engine, request, 6)
    before = list(request.tokens)
    one, two, three = branch(engine, request, [[5, 6], [7], [8, 9, 10]], [9, 40, 14])
    grow(engine, two, 6 + 5)
    inside = list(two.tokens[two.common :])
    parts = branch(engine, two, [[15], [16, 17]], [7, 12])
    ended(engine, parts)
    engine.apply(Join(two.id, [child.id for child in parts], [18, 19]))
    ended(engine, [one, two, three])
    size = sum(len(own(child)) for child in parts)
    behind = Text(own(two)[len(inside) + size :])
    block = Text(inside, [Text(own(child)) for child in parts], behind)
    branches, texts = [one, two, three], [Text(own(one)), block, Text(own(three))]
    engine.apply(Join(request.id, [branches[i].id for i in order], [20, 21, 22]))
    return request, Text(before, [texts[i] for i in order], Text([20, 21, 22]))


def follows(dense: Any, request: Request, text: Text) -> None:
    """The tokens behind the join are the greedy ones of one dense forward."""
    start = len(tokens(text))
    assert text.behind is not None and request.tokens[:start] == tokens(text)
    text.behind.before += request.tokens[start:]
    best = logits(dense, text).argmax(-1).tolist()
    assert best[start - 1 : -1] == request.tokens[start:] and len(request.tokens) > start


@pytest.mark.parametrize(
    "drafter",
    ["none", "model", "early_exit", *(pytest.param(name, marks=pytest.mark.full) for name in MORE)],
)
def test_a_joined_text_goes_on_as_behind_one_pass_under_the_training_mask(
    pair: tuple[Path, Path], dense: Any, drafter: str
) -> None:
    engine = engine_of(pair, drafter=drafter)
    log = list[Event]()
    record(engine, log.append)
    request, text = nested(engine)
    until(engine, lambda: request.finish is not None)
    follows(dense, request, text)
    assert replay(log).difference is None
    assert engine.cache.room() == engine.cache.num_blocks and not engine.desk.branches
    assert not engine.drafters.errors


def test_a_draft_of_another_vocabulary_drafts_in_branches_and_behind_a_join(
    pair: tuple[Path, Path], dense: Any, tmp_path: Path
) -> None:
    """`crossvocab` reads a joined text as bytes, in the order of its tokens; what it guesses changes no token."""
    engine = engine_of((pair[0], tiny_checkpoint(tmp_path, "qwen2", vocab=400, seed=3)), drafter="crossvocab")
    request, text = nested(engine)
    assert request.finish is None and request.shift > 0
    before = request.stats.drafted
    until(engine, lambda: request.finish is not None)
    follows(dense, request, text)
    assert request.stats.drafted > before > 0 and not engine.drafters.errors
    cache = engine.components[FOREIGN].cache
    cache.check_integrity()
    assert cache.room() == cache.num_blocks and engine.cache.room() == engine.cache.num_blocks


def passed(engine: Any) -> list[tuple[int, Any]]:
    """(rows, logits) of every pass from now on."""
    found, forward = list[tuple[int, Any]](), engine.model.forward

    def watched(rows: Any) -> Any:
        out = forward(rows)
        found.append((rows.count, out.logits))
        return out

    engine.model.forward = watched
    return found


def test_the_logits_behind_a_join_are_those_of_the_dense_pass(pair: tuple[Path, Path], dense: Any) -> None:
    engine = engine_of(pair, drafter="none")
    request, text = nested(engine)
    passes = passed(engine)
    engine.step()
    [(count, found)] = passes
    assert count == 3  # the conclusion's header: nothing is computed again
    wanted = logits(dense, text)[-1]
    assert torch.allclose(found[-1], wanted, atol=1e-5), (found[-1] - wanted).abs().max()
    assert request.shift > 0


def test_the_order_of_branches_does_not_matter_to_what_follows(pair: tuple[Path, Path]) -> None:
    found = []
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        engine = engine_of(pair, drafter="none")
        nested(engine, order=order)
        passes = passed(engine)
        engine.step()
        found.append(passes[0][1][-1])
    assert torch.allclose(found[0], found[1], atol=1e-5) and torch.allclose(found[0], found[2], atol=1e-5)


@pytest.mark.parametrize("drafter", ["none", "model"])
def test_a_joined_text_that_lost_its_kv_is_computed_again_under_the_mask(
    pair: tuple[Path, Path], dense: Any, drafter: str
) -> None:
    engine = engine_of(pair, drafter=drafter)
    request, text = nested(engine)
    grow(engine, request, len(request.output) + 4)
    engine.desk.restart(request)
    engine.cache.drop_prefix()
    passes = passed(engine)
    until(engine, lambda: request.finish is not None)
    assert max(count for count, _ in passes) > 10
    follows(dense, request, text)


def test_under_pressure_whoever_is_preempted_gets_the_same_text(pair: tuple[Path, Path], dense: Any) -> None:
    """Blocks for one of three at a time, and a half."""
    engine = engine_of(pair, drafter="model", blocks=44, max_requests=3)
    log = list[Event]()
    record(engine, log.append)
    running = [engine.submit(PROMPTS[1], GREEDY)[0] for _ in range(2)]
    made = [nested(engine, prompt) for prompt in PROMPTS]
    until(engine, lambda: not engine.busy)
    for request, text in made:
        follows(dense, request, text)
    assert engine.snapshot().totals.preemptions and replay(log).difference is None
    assert engine.cache.room() == engine.cache.num_blocks and all(r.finish for r in running)


@pytest.mark.parametrize("prefix", [True, False])
def test_a_joined_request_is_parked_and_goes_on_in_another_engine(
    pair: tuple[Path, Path], dense: Any, prefix: bool
) -> None:
    one, two = engine_of(pair, drafter="ngram"), engine_of(pair, drafter="ngram", prefix_cache=prefix)
    request, text = nested(one)
    grow(one, request, len(request.output) + 2)
    [again] = two.apply(Resume(one.apply(Park(request.id))))
    until(two, lambda: again.finish is not None)
    follows(dense, again, text)
    assert one.cache.room() == one.cache.num_blocks and again.stats.cached > 20


def plain_again(engine: Any, dense: Any) -> bool:
    """Does a request of a joined text's tokens, as a plain prompt, get the plain text behind it?"""
    request, _ = nested(engine)
    until(engine, lambda: request.finish is not None)
    [plain] = engine.submit(list(request.tokens), SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    until(engine, lambda: plain.finish is not None)
    best = logits(dense, Text(plain.tokens)).argmax(-1).tolist()
    return best[len(request.tokens) - 1 : -1] == plain.output


def test_a_plain_text_of_the_same_tokens_does_not_find_joined_blocks(pair: tuple[Path, Path], dense: Any) -> None:
    assert plain_again(engine_of(pair, drafter="none"), dense)


def same_under(engine: Any, dense: Any) -> bool:
    """Does a joined text that lost its K/V go on as it should?"""
    request, text = nested(engine)
    grow(engine, request, len(request.output) + 4)
    engine.desk.restart(request)
    engine.cache.drop_prefix()
    until(engine, lambda: request.finish is not None)
    try:
        follows(dense, request, text)
    except AssertionError:
        return False
    return True


def names_without_layout(patch: pytest.MonkeyPatch) -> None:
    for module in (cache_module, joined_module):
        patch.setattr(module, "named", lambda *_: [])


def positions_are_slots(patch: pytest.MonkeyPatch) -> None:
    placed = layout_module.placed
    patch.setattr(layout_module, "placed", lambda *where: {**placed(*where), "shift": 0})


def branches_see_one_another(patch: pytest.MonkeyPatch) -> None:
    placed = layout_module.placed
    patch.setattr(layout_module, "placed", lambda *where: {**placed(*where), "hidden": ()})


def positions_go_on_behind_the_last_branch(patch: pytest.MonkeyPatch) -> None:
    original = desk_module.joined

    def joined(fork: int, branches: Any) -> Any:
        made = original(fork, branches)
        length, layout = branches[-1]
        return (*made[:-1], made[-1]._replace(shift=made[-1].start - length + joined_module.shift_of(layout)))

    patch.setattr(desk_module, "joined", joined)


def copies_come_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operations_module, "move", lambda *_: None)


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (names_without_layout, plain_again),
        (positions_are_slots, same_under),
        (branches_see_one_another, same_under),
        (positions_go_on_behind_the_last_branch, same_under),
    ],
)
def test_mutants_die(
    mutant: Any, check: Any, pair: tuple[Path, Path], dense: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert not check(engine_of(pair, drafter="none"), dense)


def test_rows_that_are_not_copied_change_the_text(
    pair: tuple[Path, Path], dense: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies_come_late(monkeypatch)
    engine = engine_of(pair, drafter="none")
    request, text = nested(engine)
    until(engine, lambda: request.finish is not None)
    with pytest.raises(AssertionError):
        follows(dense, request, text)


def test_four_branches_take_the_passes_of_the_longest(pair: tuple[Path, Path]) -> None:
    engine = engine_of(pair, drafter="none")
    [request] = engine.submit(PROMPT, GREEDY)
    grow(engine, request, 4)
    children = branch(engine, request, [[5], [6], [7], [8]], [20, 32, 25, 40])
    passes = passed(engine)
    ended(engine, children)
    engine.apply(Join(request.id, [child.id for child in children], [9]))
    until(engine, lambda: len(request.output) > 4 + 20 + 32 + 25 + 40 + 1)
    assert len(passes) <= 1.05 * 40, len(passes)


def test_branches_go_with_their_request(pair: tuple[Path, Path]) -> None:
    engine = engine_of(pair, drafter="model")
    [request] = engine.submit(PROMPT, GREEDY)
    grow(engine, request, 4)
    one, two = branch(engine, request, [[5], [6]], [5, 40])
    ended(engine, [one])
    [deep] = engine.apply(Branch(two.id, 1))
    engine.step()
    engine.apply(Abort(request.id))
    assert [r.finish for r in (request, one, two, deep)] == ["abort", "length", "abort", "abort"]
    assert not engine.busy and not engine.desk.branches and not engine.session.requests
    assert engine.cache.room() == engine.cache.num_blocks


def test_a_request_whose_branches_were_all_aborted_goes_on(pair: tuple[Path, Path]) -> None:
    texts = []
    for wanted in (0, 2):
        engine = engine_of(pair, drafter="none")
        [request] = engine.submit(PROMPT, GREEDY)
        grow(engine, request, 4)
        for child in branch(engine, request, [[5], [6]][:wanted], [30, 30][:wanted]):
            engine.step()
            engine.apply(Abort(child.id))
        until(engine, lambda request=request: request.finish is not None)  # type: ignore[misc]
        texts.append(request.output)
    assert texts[0] == texts[1]


def test_branches_that_are_left_out_end(pair: tuple[Path, Path], dense: Any) -> None:
    engine = engine_of(pair, drafter="none")
    [request] = engine.submit(PROMPT, GREEDY)
    grow(engine, request, 4)
    before = list(request.tokens)
    one, two, three = branch(engine, request, [[5], [6], [7]], [5, 40, 8])
    ended(engine, [one, three])
    engine.apply(Join(request.id, [three.id], [9]))
    assert two.finish == "abort"
    until(engine, lambda: request.finish is not None)
    follows(dense, request, Text(before, [Text(own(three))], Text([9])))
    assert engine.cache.room() == engine.cache.num_blocks and request.shift == 0


def test_the_longest_branch_counts_towards_max_tokens(pair: tuple[Path, Path]) -> None:
    engine = engine_of(pair, drafter="none")
    [request] = engine.submit(PROMPT, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    grow(engine, request, 4)
    children = branch(engine, request, [[5], [6], [7]], [12, 20, 9])
    ended(engine, children)
    engine.apply(Join(request.id, [child.id for child in children], [9]))
    until(engine, lambda: request.finish is not None)
    assert len(request.output) == 30 + 12 + 9 and request.finish == "length"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda r, done, live: Join(r.id, [], [1]), "at least one branch"),
        (lambda r, done, live: Join(r.id, [done.id, done.id], [1]), "twice"),
        (lambda r, done, live: Join(r.id, [live.id], [1]), "has not ended"),
        (lambda r, done, live: Join(r.id, [99], [1]), "not a branch of request"),
        (lambda r, done, live: Join(r.id, [r.id], [1]), "not a branch of request"),
        (lambda r, done, live: Join(r.id, [done.id], []), "at least one token"),
        (lambda r, done, live: Join(r.id, [done.id], [1 << 30]), "outside the vocabulary"),
        (lambda r, done, live: Join(r.id, [done.id], [1] * 200), "needs room for one"),
        (lambda r, done, live: Join(live.id, [done.id], [1]), "no branches to join"),
        (lambda r, done, live: Join(done.id, [live.id], [1]), "has ended"),
        (lambda r, done, live: Extend(r.id, [1]), "waits for its branches"),
        (lambda r, done, live: Fork(r.id), "waits for its branches"),
        (lambda r, done, live: Rewind(r.id, 0), "waits for its branches"),
        (lambda r, done, live: Replace(r.id, [1]), "waits for its branches"),
        (lambda r, done, live: Park(r.id), "waits for its branches"),
        (lambda r, done, live: Rewind(live.id, 1), "before it became a branch"),
        (lambda r, done, live: Replace(live.id, [1]), "is a branch"),
        (lambda r, done, live: Branch(live.id, 0), "at least one branch"),
        (lambda r, done, live: Branch(live.id, 1, SamplingParams(n=2)), "n of 1"),
        (lambda r, done, live: Branch(live.id, 1, SamplingParams(logprobs=1)), "log-probabilities"),
        (lambda r, done, live: Branch(live.id, 1, SamplingParams(verifier="chain")), "verifier"),
    ],
)
def test_bad_operations_change_nothing(make: Any, message: str, pair: tuple[Path, Path], dense: Any) -> None:
    engine = engine_of(pair, drafter="none")
    [request] = engine.submit(PROMPT, GREEDY)
    grow(engine, request, 4)
    before = list(request.tokens)
    done, live = branch(engine, request, [[5], [6]], [5, 20])
    ended(engine, [done])
    with pytest.raises(PacelineError, match=message):
        engine.apply(make(request, done, live))
    ended(engine, [live])
    engine.apply(Join(request.id, [live.id, done.id], [9]))
    with pytest.raises(InputError, match="inside branches"):
        engine.apply(Rewind(request.id, 4 + 20 + 2))
    until(engine, lambda: request.finish is not None)
    follows(dense, request, Text(before, [Text(own(live)), Text(own(done))], Text([9])))


def test_a_model_with_windows_is_refused(tmp_path: Path) -> None:
    engine = LLM(tiny_checkpoint(tmp_path, "mistral"), dtype="float32", blocks=20).engine
    [request] = engine.submit(PROMPT, GREEDY)
    with pytest.raises(RefusalError, match="window"):
        engine.apply(Branch(request.id, 2))


@pytest.mark.skipif(library() is None, reason="this machine has no AVX2, or no compiler")
def test_natively_speculation_and_runs_change_no_bit(pair: tuple[Path, Path]) -> None:
    """In bfloat16, where runs of several passes serve branches and what follows them."""
    texts = []
    for drafter, patience in (("none", 0.0), ("none", 1.0), ("model", 1.0), ("ngram", 1.0), ("topk", 0.0)):
        engine = engine_of(pair, drafter=drafter, dtype="bfloat16")
        engine.desk.policy.patience, runs, run = patience, list[int](), engine.model.run

        def watched(rows: Any, passes: int, *rest: Any, run: Any = run, runs: list[int] = runs) -> Any:
            runs.append(passes)
            return run(rows, passes, *rest)

        engine.model.run = watched
        request, _ = nested(engine)
        until(engine, lambda request=request: request.finish is not None)  # type: ignore[misc]
        texts.append(request.output)
        assert not engine.drafters.errors and bool(runs) == bool(patience)
    assert all(text == texts[0] for text in texts)
