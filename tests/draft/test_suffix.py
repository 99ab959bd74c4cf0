"""The suffix automaton against brute force, and the drafter on the toy."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.params import SamplingParams
from paceline.draft import suffix
from paceline.draft.automaton import MAX_SUFFIX_TOKENS, Automaton
from paceline.draft.suffix import SuffixDrafter, SuffixReader, merged
from paceline.engine.loop import Engine
from tests.lossless.cases import FEATURES, Setting, Wish, check, run
from tests.toy import VOCAB

Text = list[int]
texts_st = st.lists(st.lists(st.integers(0, 2), max_size=2 * MAX_SUFFIX_TOKENS), min_size=1, max_size=4)


def readers(texts: list[Text], turns: random.Random | None = None) -> list[SuffixReader]:
    """The texts in one automaton, one after the other or in turns."""
    automaton = Automaton()
    out = [SuffixReader(automaton, True) for _ in texts]
    queue = [i for i, text in enumerate(texts) for _ in text]
    if turns:
        turns.shuffle(queue)
    done = [0] * len(texts)
    for i in queue:
        out[i].read(texts[i][done[i]], True)
        done[i] += 1
    return out


def occurrences(texts: list[Text], part: Text) -> int:
    return sum(text[i : i + len(part)] == part for text in texts for i in range(len(text) - len(part) + 1))


def walk(automaton: Automaton, part: Text) -> int | None:
    state: int | None = 0
    for token in part:
        state = None if state is None else automaton.after[state].get(token)
    return state


@settings(max_examples=150, deadline=None)
@given(texts_st, st.randoms(use_true_random=False))
def test_every_substring_is_counted(texts: list[Text], turns: random.Random) -> None:
    automaton = readers(texts, turns)[0].automaton
    parts = {tuple(t[i:j]) for t in texts for i in range(len(t)) for j in range(i + 1, min(len(t), i + 8) + 1)}
    parts |= {
        tuple(t[i : i + n])
        for t in texts
        for n in (MAX_SUFFIX_TOKENS, MAX_SUFFIX_TOKENS + 1)
        for i in range(len(t) - n + 1)
    }
    for part in parts:
        state = walk(automaton, list(part))
        assert state is not None
        assert automaton.count[state] == occurrences(texts, list(part))
        follow = {t: occurrences(texts, [*part, t]) for t in range(3)}
        if len(part) <= MAX_SUFFIX_TOKENS and automaton.after[state]:
            total = sum(follow.values())
            assert automaton.shares(state) == {t: n / total for t, n in follow.items() if n}
    assert len(automaton) <= 2 * sum(map(len, texts)) + 1
    assert walk(automaton, [0, 3]) is None


@settings(max_examples=150, deadline=None)
@given(texts_st, st.randoms(use_true_random=False))
def test_the_match_is_the_longest_suffix_with_a_continuation(texts: list[Text], turns: random.Random) -> None:
    for text, reader in zip(texts, readers(texts, turns)):
        lengths = range(min(MAX_SUFFIX_TOKENS, len(text)), 0, -1)
        known = (n for n in lengths if any(occurrences(texts, [*text[-n:], t]) for t in range(3)))
        a = reader.automaton
        assert a.match(*a.fit(reader.state, reader.n))[1] == next(known, 0)


def test_texts_do_not_run_into_one_another() -> None:
    automaton = readers([[0, 1], [2, 0]])[0].automaton
    assert walk(automaton, [1, 2]) is None


def test_a_copy_is_drafted_and_a_period_goes_on() -> None:
    (reader,) = readers([[5, 6, 7, 8, 9, 1, 5, 6, 7]])
    reader.hits = reader.tries
    assert list(reader.tree(2)) == [(8,), (8, 9)]
    (reader,) = readers([[1, 2, 3] * 12])
    path = max(reader.tree(15), key=len)
    assert path == tuple([1, 2, 3] * 5)[: len(path)]
    assert len(path) == 15


def test_a_tree_shares_its_nodes_by_chance() -> None:
    """After 1: three times 2 and then 3, once 4."""
    (reader,) = readers([[1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 4, 0, 1]])
    reader.state, reader.n = reader.automaton.after[0][1], 1
    reader.hits = [0.5 * tries for tries in reader.tries]
    tree = reader.tree(3)
    assert [*tree] == [(2,), (2, 3), (2, 3, 0)]
    assert tree[2,] == 0.5 * 0.75
    assert (4,) in reader.tree(15)


def test_the_larger_chance_counts() -> None:
    assert merged([{(1,): 0.5, (1, 2): 0.3}, {(3,): 0.4, (1,): 0.2}], 3) == [(1,), (3,), (1, 2)]
    assert merged([{(1,): 0.5, (1, 2): 0.5}, {}], 1) == [(1,)]


def test_a_text_that_does_not_repeat_drafts_nothing() -> None:
    (reader,) = readers([[t for i in range(30) for t in (1, 10 + i)] + [1]])
    assert reader.tree(15) == {}


def test_a_sampled_text_drafts_only_after_a_guess_would_have_been_right() -> None:
    reader = SuffixReader(Automaton(), greedy=False)
    for token in [1, 2, 3, 4, 1]:
        reader.read(token, True)
    assert reader.tree(15) == {}
    for token in [2, 3, 4, 1, 2, 3, 4, 1]:
        reader.read(token, True)
    assert (2, 3, 4) in reader.tree(15)


def wish(drafter: str = "suffix", **params: object) -> Wish:
    base: dict = {"top_p": 1.0, "top_k": 0, "seed": 3, "drafter": drafter, "max_tokens": 24, "ignore_eos": True}
    return Wish([1, 2, 3], SamplingParams(**(base | params)).resolve({}))


def suffix_of(engine: Engine) -> SuffixDrafter:
    drafter = engine.drafters.drafters["suffix"]
    assert isinstance(drafter, SuffixDrafter)
    return drafter


def test_requests_share_what_they_wrote() -> None:
    """The second of two equal greedy requests is drafted from the first one's output."""
    engine = Setting(row_budget=40).engine()
    first, second = [run(engine, [wish(temperature=0.0)])[0][0] for _ in range(2)]
    assert first.output == second.output
    assert second.stats.tau > 1.5 * first.stats.tau
    assert second.stats.tau > 4


def test_past_outputs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MAX_GENERATION_STATES", 200)
    engine = Setting(row_budget=40).engine()
    sizes = []
    for seed in range(16):
        run(engine, [wish(temperature=1.0, seed=seed)] * 2)
        sizes.append([len(age) for age in suffix_of(engine).ages])
    assert max(map(max, sizes)) < 200 + 2 * 24
    assert max(map(len, sizes)) == 2
    assert min(size[0] for size in sizes[4:]) > 40, "the generation in use is never empty"


def test_a_dropped_slot_enters_nothing_twice() -> None:
    """But for the few tokens that the rest of the text follows on from."""
    engine = Setting(row_budget=40).engine()
    (request,) = engine.submit([1], wish(temperature=0.0, max_tokens=40).params)
    while engine.busy:
        engine.step()
        engine.drafters.slots["suffix"].clear()
    counts = suffix_of(engine).ages[0].count
    assert len(request.output) == 40
    assert counts[0] >= 40
    assert counts[0] <= 41 + request.stats.passes * MAX_SUFFIX_TOKENS


@pytest.mark.parametrize("feature", FEATURES)
def test_lossless(feature: str) -> None:
    rng = random.Random(feature)
    for seed in range(2):
        params = {"top_p": 1.0, "top_k": 0, **FEATURES[feature], "max_tokens": 24, "drafter": "suffix"}
        wishes = [
            Wish([rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))],
                 SamplingParams(seed=seed, **{"n": rng.choice([1, 3]), "ignore_eos": True, **params}).resolve({}))
            for _ in range(4)
        ]  # fmt: skip
        setting = Setting(seed, sharpness=4.0, blocks=rng.randint(1, 40), row_budget=rng.choice([5, 9, 33]))
        check(setting, wishes, rng if seed % 2 else None)
