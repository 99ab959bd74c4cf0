"""KNN-LM: a datastore of the model's own contexts, the mixture, and the same text as a search for each token."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import LLM, InputError, SamplingParams
from paceline.retrieve import knn_generate
from paceline.retrieve.datastore import Datastore, keys_of
from paceline.retrieve.knn import Knn, mixed, plainly
from tests.retrieve.scenes import WORDS

PROMPT = "Tom counts apple river"
PARAMS = SamplingParams(temperature=0.8, max_tokens=25, drafter="none")


@pytest.fixture(scope="module")
def store(llm: LLM) -> Datastore:
    draw = np.random.default_rng(0)
    return Datastore.build(llm, [" ".join(draw.choice(WORDS.split(), 12)) for _ in range(12)])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 32), stride=st.sampled_from([None, 1, 2, 5]), k=st.sampled_from([1, 4, 16]),
    weight=st.sampled_from([0.1, 0.5, 0.9]), following=st.sampled_from([0, 3, 10]), greedy=st.booleans(),
    top_p=st.sampled_from([None, 0.9]), stop=st.sampled_from([(), ("e",)]), drafter=st.sampled_from(["none", "ngram"]),
    penalty=st.sampled_from([0.0, 0.5]),
)  # fmt: skip
def test_every_stride_writes_the_text_of_a_search_for_each_token(
    llm: LLM, store: Datastore, seed: int, stride: int | None, k: int, weight: float, following: int, greedy: bool,
    top_p: float | None, stop: tuple[str, ...], drafter: str, penalty: float,
) -> None:  # fmt: skip
    wish = Knn(weight, k, 0.2, stride, following)
    params = replace(
        PARAMS, seed=seed, stop=stop, top_p=top_p, temperature=0.0 if greedy else 0.8, presence_penalty=penalty
    )
    [want] = llm.generate(PROMPT, replace(params, processors=(plainly(store, wish),)), progress=False)
    got = knn_generate(llm, PROMPT, store, replace(params, drafter=drafter), wish)
    assert got.output.token_ids == want.token_ids and got.text == want.text
    assert got.report["calls"] == got.report["rounds"] and sum(got.report["batches"]) == got.report["proposed"]


def test_guesses_are_right_and_wrong(llm: LLM, store: Datastore) -> None:
    wish, right, wrong = Knn(0.5, 4, 0.2, 5), 0, 0
    for seed in range(8):
        report = knn_generate(llm, PROMPT, store, replace(PARAMS, seed=seed), wish).report
        right, wrong = right + report["accepted"], wrong + report["dropped_tokens"]
    assert right and wrong


def test_keys_are_of_each_row_alone() -> None:
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(1))
    together = keys_of(logits)
    assert (together == np.concatenate([keys_of(row[None]) for row in logits])).all()


def test_the_mixture_is_the_formula() -> None:
    store = Datastore(keys_of(torch.eye(3, 5) * 4), np.array([1, 4, 1], np.int32))
    hits = [(0, int(0.9 * store.unit)), (1, int(0.5 * store.unit)), (2, int(0.1 * store.unit))]
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    weights = np.exp(np.array([0.9, 0.5, 0.1]) / 0.2)
    share = np.array([0, weights[0] + weights[2], 0, 0, weights[1]]) / weights.sum()
    want = 0.75 * torch.softmax(logits, 0).numpy() + 0.25 * share
    assert np.allclose(mixed(store, Knn(0.25, 3, 0.2), logits, hits).exp().numpy(), want, atol=1e-6)
    assert mixed(store, Knn(), logits, []) is logits


def test_a_datastore_is_read_as_it_was_written(store: Datastore, tmp_path: Path) -> None:
    store.save(tmp_path / "store.npz")
    again = Datastore.load(tmp_path / "store.npz")
    query = store.keys[5]
    assert (again.values == store.values).all() and again.search([query], 5) == store.search([query], 5)
    assert store.search([query], 1)[0][0][1] > 0.99 * store.unit


def test_what_is_refused(llm: LLM, store: Datastore) -> None:
    with pytest.raises(InputError, match="no text of two tokens"):
        Datastore.build(llm, ["", "a"])
    for bad in ({"weight": 1.0}, {"k": 0}, {"temperature": 0.0}, {"stride": 0}):
        with pytest.raises(InputError, match=next(iter(bad))):
            Knn(**bad)  # type: ignore[arg-type]
    other = Datastore(store.keys.astype(np.int16), store.values + 10_000)
    with pytest.raises(InputError, match="does not know"):
        knn_generate(llm, PROMPT, other, PARAMS)
