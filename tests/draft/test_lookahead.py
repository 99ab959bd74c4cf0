"""Lookahead decoding: the window against the paper's rules, the pool, and what both bring."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.cache.cache import Cache
from paceline.core.forest import Forest, Role, join
from paceline.core.params import SamplingParams
from paceline.core.plan import Item
from paceline.core.request import Request
from paceline.core.rows import Out
from paceline.draft.lookahead import RETRY_ROUNDS, GuessPool, Lookahead
from paceline.engine.config import EngineConfig
from paceline.engine.layout import Layout, lay_out, tree_words
from paceline.engine.loop import Engine
from tests.lossless.cases import FEATURES, Setting, Wish, check
from tests.toy import Ints, Toy, table

W, N, G = 3, 4, 2
TEXT = [5, 1, 2, 3, 4, 0, 6, 2, 4, 5]


def drafted(pool: list[tuple[int, ...]], prompt: list[int] = TEXT) -> Forest:
    """The forest of one request: the guesses of `pool`, then a window of W columns."""
    state, forest = Lookahead(prompt, level=N, guesses=G), Forest()
    for guess in pool:
        state.pool.add(prompt[-1], guess, window=False)
    state.guess(forest, 0, prompt[-1], G * (N - 1))
    state.look(forest, 0, W)
    return forest


def passed(part: Forest) -> tuple[Forest, Layout, Out]:
    """The forest joined, laid out and run through the toy."""
    cache, request = Cache(16, 4), Request(0, TEXT, SamplingParams(), 0)
    request.lease = lease = cache.open(request.tokens)
    item = Item(request, len(TEXT), len(part), "lookahead", "exact")
    forest, toy = join([TEXT], [part], [len(part)]), Toy(table(0))
    toy.allocate(16, 4)
    layout = lay_out(forest, [item], [cache.begin(lease, item.given, item.nodes)])
    return forest, layout, toy.forward(layout.builder.build())


def test_the_window_sees_what_the_paper_says() -> None:
    """Masks and positions by the rules of the paper, for W = 3, N = 4, G = 2."""
    names: list[tuple[str, int, int]] = [("guess", k, j) for k in range(G) for j in range(N - 1)]
    for i in range(W):
        names += [("w", 0, i - 1)] * (i > 0) + [("w", row, i) for row in range(1, N - 1)]

    def sees(query: tuple[str, int, int], key: tuple[str, int, int]) -> bool:
        (kind, row, i), (other, above, j) = query, key
        if kind != other:
            return False
        if kind == "guess":
            return row == above and j <= i
        if row == 0:
            return above == 0 and j <= i
        return (above == 0 and j < i) or (1 <= above <= row and j == i)

    def position(name: tuple[str, int, int]) -> int:
        kind, row, i = name
        return 1 + i if kind == "guess" or row == 0 else row + i

    forest = join([[TEXT[-1]]], [drafted([(1, 2, 3), (4, 5, 6)])], [len(names)])
    nodes = range(1, len(forest))
    assert [forest.role[n] for n in nodes] == [Role.CANDIDATE] * G * (N - 1) + [Role.PROBE] * (W * (N - 1) - 1)
    want = [sum(1 << j for j, key in enumerate(names) if sees(query, key)) for query in names]
    assert tree_words(forest, nodes) == want
    assert [forest.depth[n] for n in nodes] == [position(name) for name in names]


def test_every_branch_is_computed_as_if_it_were_alone() -> None:
    forest, layout, out = passed(drafted([(1, 2, 3), (1, 2, 6)]))
    probes = iter(layout.probes[0])
    for node, path in forest.paths(range(len(forest))).items():
        if forest.role[node] is not Role.GIVEN:
            line = next(probes) if forest.role[node] is Role.PROBE else layout.line[node]
            assert torch.equal(out.logits[line], Toy(table(0)).next_logits([*TEXT, *path]))


def test_the_window_does_not_depend_on_the_guesses() -> None:
    seen = []
    for pool in ([], [(0, 0, 0)], [(5, 1, 2), (6, 6, 6)]):
        forest, layout, out = passed(drafted(pool))
        tokens = [t for t, role in zip(forest.token, forest.role) if role is Role.PROBE]
        seen.append((tokens, out.logits[layout.probes[0]].tolist()))
    assert seen[0] == seen[1] == seen[2]


def test_guesses_that_begin_alike_share_their_rows() -> None:
    forest = drafted([(1, 2, 3), (1, 2, 6)])
    guesses = [i for i, role in enumerate(forest.role) if role is Role.CANDIDATE]
    assert list(forest.paths(guesses).values()) == [(1,), (1, 2), (1, 2, 6), (1, 2, 3)], "the latest first"


@given(st.integers(1, 4), st.integers(3, 5), st.lists(st.integers(0, 5), min_size=1, max_size=6), st.randoms())
@settings(max_examples=100, deadline=None)
def test_columns_slide_as_the_papers_rows_shift(width: int, level: int, rounds: list[int], rng: random.Random) -> None:
    """Rows move up by one, `new` becomes the last, A accepted tokens drop A columns; each n-gram is pooled."""
    prompt = [rng.randrange(50) for _ in range(9)]
    state = Lookahead(prompt, level=level, guesses=99)
    for accepted in rounds:
        state.look(Forest(), 0, width)
        w = [[c[0] for c in state.columns[1:]], *([c[row] for c in state.columns] for row in range(1, level - 1))]
        new, root = [rng.randrange(50) for _ in range(width)], rng.randrange(50)
        state.learn(root, [50] * accepted, 51, new)
        for i in range(width):
            key = root if i == 0 else w[0][i - 1]
            assert (*(w[row][i] for row in range(1, level - 1)), new[i]) in state.pool.guesses[key]
        shifted = [w[1][1:], *w[2:], new]
        columns = state.columns
        assert [c[0] for c in columns[1:]] == shifted[0][accepted:]
        assert [[c[row] for c in columns] for row in range(1, level - 1)] == [row[accepted:] for row in shifted[1:]]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.booleans()), max_size=60), st.integers(1, 4))
def test_the_pool_keeps_the_latest_of_each_key(entries: list[tuple[int, int, bool]], most: int) -> None:
    pool, model = GuessPool(most), {key: [] for key in range(3)}
    for key, token, window in entries:
        pool.add(key, (token,), window)
        model[key] = [*(t for t in model[key] if t != token), token][-most:]
    assert {key: [t for (t,) in pool.guesses.get(key, {})] for key in range(3)} == model


def test_a_guess_that_the_text_has_is_not_owed_to_the_window() -> None:
    pool = GuessPool(G)
    pool.add(1, (2, 3, 4), window=True)
    assert (pool.right(1, [2, 3, 9], True), pool.right(1, [2, 3, 9], False)) == (2, 0)
    pool.add(1, (2, 3, 4), window=False)
    pool.add(1, (2, 3, 4), window=True)
    assert (pool.right(1, [2, 3, 9], True), pool.right(1, [2, 3, 9], False)) == (0, 2)


@pytest.mark.parametrize("feature", FEATURES)
def test_lossless_with_any_number_of_nodes(feature: str) -> None:
    rng = random.Random(feature)
    for nodes in range(1, 21):
        params = {
            "seed": nodes,
            "drafter": "lookahead",
            "max_tokens": 16,
            "n": 1 + (nodes % 4 == 0),
            **FEATURES[feature],
        }
        prompt = [rng.randrange(7) for _ in range(1 + nodes % 9)]
        wishes = [Wish(prompt, SamplingParams(**params).resolve({})), Wish(TEXT, SamplingParams(**params).resolve({}))]
        setting = Setting(model_seed=nodes % 6, nodes={"lookahead": nodes}, row_budget=rng.choice([9, 64]))
        check(setting, wishes, rng if nodes % 3 == 0 else None)


def served(toy: Toy, prompt: list[int], tokens: int, vocab: int = 7) -> Request:
    toy.vocab_size = vocab
    engine = Engine(toy, EngineConfig(64, drafter="lookahead", check=True))
    params = SamplingParams(temperature=0.0, max_tokens=tokens, drafter="lookahead").resolve({})
    (request,) = engine.submit(prompt, params)
    while engine.busy:
        engine.step()
    assert engine.drafters.errors == []
    return request


@pytest.mark.parametrize("seed", [1, 9, 14])
def test_a_text_that_repeats_is_accepted(seed: int) -> None:
    logits = table(seed)
    logits[:] = logits[0]  # by the last three tokens alone: the greedy text soon runs in a circle of about ten
    request = served(Toy(logits, 400), TEXT, 200)
    assert request.stats.accepted / request.stats.passes > 1


class Counting(Toy):
    """After x comes x + 1, of 64 tokens."""

    @staticmethod
    def code(context: Ints) -> Ints:
        return context[:, -1]

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot((hidden[:, 1].long() + 1) % 64, 64).to(torch.float64)


def test_the_window_knows_what_the_text_has_never_said() -> None:
    """No token of the output has come before, so the text's own n-grams guess nothing."""
    request = served(Counting(table(0), 200), [40, 50, 12, 33, 25, 20, 7], 20, vocab=64)
    assert request.output == list(range(8, 28))
    assert request.stats.accepted >= 3


def test_rows_are_spent_while_they_pay() -> None:
    state, spent = Lookahead(TEXT), []
    for _ in range(200):
        width = state.width(15)
        forest = Forest()
        state.guess(forest, 0, TEXT[-1], 15)
        state.look(forest, 0, width)
        spent.append(len(forest))
        state.learn(TEXT[-1], [], 99, [7] * width)
    assert spent[0] == 8 and sum(spent[-RETRY_ROUNDS * state.level :]) == 8 * state.level
    state.rounds = 100
    assert state.width(15) == 0
    for _ in range(10):
        state.learn(TEXT[-1], [7, 7], 7, [])
    forest = Forest()
    state.guess(forest, 0, TEXT[-1], 15)
    assert forest.token[:1] == [7] and state.width(15) == 3


def test_fewer_nodes_make_a_narrower_window_or_none() -> None:
    state = Lookahead(TEXT)
    assert [state.width(nodes) for nodes in (1, 4, 5, 8, 9, 15, 63)] == [0, 0, 1, 1, 2, 3, 11]
    for nodes in range(1, 65):
        assert nodes - state.rows(state.width(nodes)) >= min(nodes, state.level - 1), "room for a guess"
