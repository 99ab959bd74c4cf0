"""The parts of the trainer: objectives, data, hidden states, evaluation."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core.errors import InputError
from paceline.train.data import Sample, answered, given, parts, read_lines, usable
from paceline.train.evaluate import chain, walked
from paceline.train.features import FeatureSource
from paceline.train.files import writing
from paceline.train.objective import DIVERGENCES, Objective
from paceline.train.target import TrainingTarget
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TrainingTarget:
    return TrainingTarget(tiny_checkpoint(tmp_path_factory.mktemp("train") / "target", seed=1), "float32")


# -- objectives --------------------------------------------------------------------------------------------------------


def two_laws() -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    return torch.randn(6, 9, generator=stream, dtype=torch.float64), torch.randn(
        6, 9, generator=stream, dtype=torch.float64
    )


def test_divergences_are_their_formulas() -> None:
    a, b = two_laws()
    p, q = a.softmax(-1), b.softmax(-1)
    m = (p + q) / 2
    want = {
        "kl": (p * (p / q).log()).sum(-1),
        "reverse": (q * (q / p).log()).sum(-1),
        "jsd": ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)) / 2,
        "tvd": 1 - torch.minimum(p, q).sum(-1),
        "lk": -torch.minimum(p, q).sum(-1).log(),
    }
    for name, f in DIVERGENCES.items():
        assert torch.allclose(f(a.log_softmax(-1), b.log_softmax(-1)), want[name]), name
        assert torch.allclose(f(a.log_softmax(-1), a.log_softmax(-1)), torch.zeros(6, dtype=a.dtype), atol=1e-7), name


@pytest.mark.parametrize("name", [*DIVERGENCES, "ce"])
def test_descending_any_of_them_brings_the_laws_together(name: str) -> None:
    a, b = two_laws()
    goal, token, logits = Objective.parse(name), a.argmax(-1), b.clone().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        goal.places(teacher=a, logits=logits, token=token).sum().backward()
        optimizer.step()
    if name == "ce":
        assert (logits.argmax(-1) == token).all()
    else:
        assert (a.softmax(-1) - logits.softmax(-1)).abs().sum(-1).max() < 0.2


def test_terms_are_weighed_and_named() -> None:
    a, b = two_laws()
    token, h = torch.zeros(6, dtype=torch.int64), torch.randn(6, 4)
    both = Objective.parse("ce:0.5+smooth:2").places(teacher=a, logits=b, token=token, hidden=h, out=h + 2)
    ce = -b.float().log_softmax(-1)[:, 0]
    assert torch.allclose(both, 0.5 * ce + 2 * 1.5, atol=1e-5)
    for text, message in (("kl+huber", "'huber' is not known"), ("kl:much", "not a weight")):
        with pytest.raises(InputError, match=message):
            Objective.parse(text)


# -- data --------------------------------------------------------------------------------------------------------------

CHAT = [{"role": "user", "content": "two and two?"}, {"role": "assistant", "content": "four"}]


def test_kinds_of_lines() -> None:
    assert parts({"text": "once"}) == ("", "once")
    assert parts({"prompt": "a", "completion": "b"}) == parts({"instruction": "a", "output": "b"}) == ("a", "b")
    assert parts({"question": "a"}) == parts({"turns": ["a", "z"]}) == ("a", None)
    assert parts({"instruction": "a", "input": "x", "output": "b"}) == ("a\n\nx", "b")
    assert parts({"messages": CHAT}) == (CHAT[:1], "four") and parts({"messages": CHAT[:1]}) == (CHAT[:1], None)
    assert parts({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}) == (
        [{"role": "user", "content": "a"}], "b",
    )  # fmt: skip
    assert parts({"other": 1}) is None and parts({"prompt": "a", "input": ["x"], "output": "b"}) is None
    assert parts({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]}) == (
        [{"role": "user", "content": "ab"}], None,
    )  # fmt: skip
    for turn in "hello", None, {"role": "user"}, {"role": "user", "content": None}, {"role": "user", "content": [{}]}:
        assert parts({"messages": [turn]}) is None


def test_lines_that_cannot_be_learned_from_are_counted(
    target: TrainingTarget, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"prompt": "a", "completion": "b"}
    odd: list[dict[str, Any]] = [{"messages": [None]}, {"text": "\ud800"}, {"prompt": "c"}, {"messages": ["x"]}]
    assert usable([good, *odd], answers=False) == [good] and "4 of 5 lines" in caplog.text
    assert usable([good, *odd], answers=True) == [good, odd[2]]
    long: dict[str, Any] = {"prompt": "Tom has 3 apples " * 40, "answer": "and"}
    assert len(list(given(target, [{"text": "Tom has 3 apples"}, long], 64))) == 1
    assert "1 of 2 lines are left out: nothing to learn is within 64 tokens" in caplog.text
    with pytest.raises(InputError, match="no prompt for the target"):
        answered(target, [long], 64)
    assert "1 of 1 prompts are left out: they leave no room in 64 tokens" in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="limits of files are those of POSIX")
def test_a_disk_without_room_ends_in_a_sentence(target: TrainingTarget, tmp_path: Path) -> None:
    """For the cache of hidden states before anything is computed, for a checkpoint with what was there before."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    samples = [Sample(tuple(range(5, 45)), 1)] * 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(InputError, match=r"has no room for [\d,]+ bytes"):
            FeatureSource(target, samples, ("post_norm",), tmp_path / "cache", 1 << 30)
        state = tmp_path / "state.part"
        with (
            pytest.raises(InputError, match=r"cannot be written .* goes on from what it has"),
            writing(tmp_path, state),
        ):
            torch.save(torch.zeros(100_000), state)
        assert not state.exists()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    FeatureSource(target, samples, ("post_norm",), tmp_path / "cache", 1 << 30).states(0)


def test_samples_begin_where_the_answer_does(target: TrainingTarget) -> None:
    entries = [{"text": "Tom has 3 apples"}, {"prompt": "Tom has", "answer": "3 apples"}, {"messages": CHAT}, {"x": 1}]
    text, pair, chat = given(target, entries, 64)
    assert text.start == 1
    for sample, answer in ((pair, "3 apples"), (chat, "four")):
        assert target.text.decode(sample.ids[sample.start :]) == f"{answer}<eos>"
    assert "two and two?" in target.text.decode(chat.ids[: chat.start])


@pytest.mark.parametrize(("content", "message"), [
    ("", "no usable line"), ("[1, 2]", "entry 1 is 1, not an object"), ('{"a": 1}\n\n"b"\n', 'entry 2 is "b"'),
    ('{"a": 1}\nnot json\n', "line 2 does not parse"), ("[1", "does not parse"),
])  # fmt: skip
def test_unusable_files(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_text(content)
    with pytest.raises(InputError, match=message):
        read_lines(tmp_path / "data")


def test_answers_are_the_targets_own_and_kept(target: TrainingTarget, tmp_path: Path) -> None:
    from paceline import LLM, SamplingParams

    entries = [{"prompt": f"Tom has {n} apples and"} for n in range(5)]
    made = answered(target, entries, 64, cache=tmp_path, answer=12)
    with LLM(target.path, dtype="float32", memory="100M") as llm:
        for sample in made:
            params = SamplingParams(temperature=0.0, max_tokens=12, drafter="none")
            [output] = llm.generate([list(sample.ids[: sample.start])], params, progress=False)
            assert output.token_ids == list(sample.ids[sample.start :])
    [file] = tmp_path.glob("answers-*.jsonl")
    whole = file.read_text()
    file.write_text(whole[: len(whole) // 2])  # as it lies when a run is killed
    assert answered(target, entries, 64, cache=tmp_path, answer=12) == made and file.read_text() == whole
    file.write_text(whole.replace("[[", "[[7, "))
    assert [s.ids[0] for s in answered(target, entries, 64, cache=tmp_path, answer=12)] == [7] * 5, "they are read"
    assert len(answered(target, entries[:2], 64, cache=tmp_path, answer=12)) == 2, "other prompts, other answers"
    with pytest.raises(InputError, match="no prompt"):
        answered(target, [{"text": "no prompt"}], 64)


# -- hidden states -----------------------------------------------------------------------------------------------------

TEXTS = [Sample(tuple(range(5, 5 + n)), 2) for n in (9, 4, 13)]


def test_batches_hold_states_of_the_whole_text(target: TrainingTarget) -> None:
    source = FeatureSource(target, TEXTS, ("post_norm", "input:1"))
    batch = source.batch([0, 2])
    assert batch.ids.shape == (2, 13) and batch.hidden["input:1"].shape == (2, 13, 32)
    assert batch.learn.sum().item() == 7 + 11 and batch.length.tolist() == [9, 13]
    logits = target.head(batch.hidden["post_norm"][1, :13])
    direct = target.decoder.head(source.computed(TEXTS[2].ids)["post_norm"])
    assert torch.allclose(logits, direct, atol=1e-4)
    with pytest.raises(InputError, match="input:9"):
        FeatureSource(target, TEXTS, ("input:9",))


def test_a_cache_gives_the_same_and_keeps_to_its_limit(target: TrainingTarget, tmp_path: Path) -> None:
    live = FeatureSource(target, TEXTS, ("post_norm",)).batch([0, 1, 2])
    for limit in (1 << 20, 15 * 32 * 2):  # the last has room for the first two texts
        path = tmp_path / str(limit)
        first = FeatureSource(target, TEXTS, ("post_norm",), path, limit).batch([0, 1, 2])
        source = FeatureSource(target, TEXTS, ("post_norm",), path, limit)
        again = source.batch([0, 1, 2])
        assert torch.equal(first.hidden["post_norm"], again.hidden["post_norm"])
        assert torch.allclose(live.hidden["post_norm"], again.hidden["post_norm"], atol=0.05, rtol=0.01)
        assert source.kept is not None and (source.kept.read(2) is None) == (limit < 1 << 20)
        assert source.kept.read(0) is not None
        assert sum(file.stat().st_size for file in path.glob("*.bin")) <= limit


def test_a_cache_of_another_target_or_text_is_refused(target: TrainingTarget, tmp_path: Path) -> None:
    FeatureSource(target, TEXTS, ("post_norm",), tmp_path / "cache")
    with pytest.raises(InputError, match="another data"):
        FeatureSource(target, TEXTS[:2], ("post_norm",), tmp_path / "cache")
    other = TrainingTarget(tiny_checkpoint(tmp_path / "other", seed=2), "float32")
    assert other.fingerprint != target.fingerprint
    with pytest.raises(InputError, match="another target"):
        FeatureSource(other, TEXTS, ("post_norm",), tmp_path / "cache")


# -- evaluation --------------------------------------------------------------------------------------------------------


def test_a_walk_over_ranks() -> None:
    """Rows of an answer of six tokens: the first comes of the prompt, five are left."""
    table = [[0, 1], [9, 9], [0, 0], [0, 0], [0, 0], [9, 9], [-1, -1]]
    tau, rounds, conditional = walked([table], chain(2))
    # row 0: one kept, 2 tokens; row 2: both kept, 3 tokens
    assert (tau, rounds) == (2.5, 2) and conditional == (1.0, 0.5)
    tau, rounds, _ = walked([table], (((), ()),))  # the second guess at depth 1 is in the tree
    assert (tau, rounds) == (2.5, 2)
    assert walked([[[0], [0], [-1]]], chain(1)) == (1.0, 1, (0.0,)), "nothing is drafted for the last token"


@pytest.mark.parametrize("method", ["hydra", "clover"])
def test_only_rows_that_draft_a_wanted_token_are_computed(method: str, target: TrainingTarget) -> None:
    from paceline.train import TRAINERS

    made: Any = TRAINERS.get(method)(target, {"depth": 3})
    ids = torch.randint(0, target.spec.vocab, (2, 14), generator=torch.Generator().manual_seed(0)).tolist()
    samples = [Sample(tuple(ids[0]), 8), Sample(tuple(ids[1][:11]), 6)]
    batch = FeatureSource(target, samples, made.taps).batch([0, 1])
    wanted = made.wanted(batch)
    assert len(made.rows_of(wanted, 2, 14)[0]) < len(made.rows_of(None, 2, 14)[0])
    for depth, (every, few) in enumerate(zip(made.unroll(batch), made.unroll(batch, wanted), strict=True)):
        mine = wanted[:, 1 + depth : 1 + depth + few.out.shape[1]]
        assert mine.any() and torch.allclose(few.out[mine], every.out[mine], atol=1e-5)
