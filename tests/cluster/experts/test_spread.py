"""Mixtures over several processes: the bits of one process whatever the table says, and one sentence where one dies."""

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.core.errors import InputError, LostError, PacelineError, RefusalError
from paceline.model.blocks import Mixture
from paceline.model.checkpoint import read_config
from paceline.model.load import load_model
from paceline.model.spread import exchange, ranks
from paceline.model.spread.exchange import Exchange
from paceline.model.spread.mixture import MixturePart
from paceline.model.spread.table import RouteTable, assign, mixtures_of, most_rows, read_table
from tests.tiny import tiny_checkpoint

SMALL: dict[str, Any] = {"dtype": "float32", "threads": 1, "blocks": 64, "max_requests": 4, "weights_cache": False}
PROMPTS = [[5, 9, 200, 17, 33, 8, 9, 200], [60, 61, 62, 63, 64, 65, 66, 67, 68, 5, 9, 200]]
DRAWN = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
FAMILIES = ("mixtral", "qwen2_moe", "glm4_moe", "gpt_oss")
"""Softmax over all; a gated shared expert; groups and a correction; biases and clamped gates."""


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    had = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(had)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("experts") / "mixture", "qwen2_moe", layers=3)


def together(parts: list[dict[int, MixturePart]], homes: dict[int, torch.Tensor], x: torch.Tensor) -> Any:
    """What rank 0 gets of each layer, and the bytes of every rank; each rank is a thread."""
    out: dict[int, torch.Tensor] = {}
    sent: list[Any] = [None] * len(parts)
    errors: list[BaseException] = []

    def rank(me: int, meeting: Path) -> None:
        try:
            mine = Exchange(meeting, me, len(parts))
            with torch.inference_mode():
                for layer, home in homes.items():
                    y, _ = parts[me][layer].run(mine, home, x if me == 0 else None)
                    if y is not None:
                        out[layer] = y
            sent[me] = mine.sent
        except BaseException as error:
            errors.append(error)

    with tempfile.TemporaryDirectory() as folder:
        those = [threading.Thread(target=rank, args=(me, Path(folder) / "meeting")) for me in range(len(parts))]
        for thread in those:
            thread.start()
        for thread in those:
            thread.join(60)
    assert not errors, errors
    return out, sent


def shared_out(mixture: Mixture, place: torch.Tensor, rank: int, hidden: int) -> MixturePart:
    held = {i: mixture.experts[i] for i in range(mixture.form.count) if int(place[i]) == rank}
    return MixturePart(mixture.form, mixture.router, mixture.correction, place, held, hidden, torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
def test_bits_are_those_of_one_process_for_any_table(family: str, tmp_path: Path) -> None:
    """Placements and homes at random, everything at one rank, and fewer rows than ranks; three ranks."""
    decoder = load_model(
        tiny_checkpoint(tmp_path, family, layers=2, with_tokenizer=False), dtype="float32", cache=False
    )
    layer, mixture = next((i, b.ffn) for i, b in enumerate(decoder.weights.blocks) if isinstance(b.ffn, Mixture))
    stream = torch.Generator().manual_seed(1)
    homes, places, rows = {}, {}, (1, 2, 7, 40, 23)
    for number, count in enumerate(rows):
        homes[number] = torch.randint(3, (count,), generator=stream) * (number != 4)
        places[number] = torch.randint(3, (mixture.form.count,), generator=stream)
    places[3] = torch.full_like(places[3], 2)
    x = torch.randn(40, decoder.width, generator=stream)
    with torch.inference_mode():
        for number, home in homes.items():
            parts = [{number: shared_out(mixture, places[number], rank, decoder.width)} for rank in range(3)]
            own = x[: rows[number]].clone()
            found, _ = together(parts, {number: home}, own)
            assert torch.equal(mixture.add_shared(own, found[number]), mixture(own)), (layer, number)


def test_bytes_are_those_of_the_routes(tmp_path: Path) -> None:
    """Each kind is counted by hand; where all experts of a row are at its home, none are dispatched or combined."""
    decoder = load_model(tiny_checkpoint(tmp_path, "mixtral", with_tokenizer=False), dtype="float32", cache=False)
    mixture, width = decoder.weights.blocks[0].ffn, decoder.width
    assert isinstance(mixture, Mixture)
    x, seen = torch.randn(30, width, generator=torch.Generator().manual_seed(0)), list[torch.Tensor]()
    mixture.record = seen.append
    with torch.inference_mode():
        mixture(x)
    mixture.record = None
    place, home = torch.tensor([0, 1, 0, 1]), torch.arange(30) % 2
    at, size = place[seen[0]], 4 * width
    foreign = at != home[:, None]
    expected = {
        "shuffle": 15 * size, "gather": 15 * size, "routes": 30 * 2 * 4,
        "dispatch": int(foreign.any(1).sum()) * size, "combine": int(foreign.sum()) * size,
    }  # fmt: skip
    _, sent = together([{0: shared_out(mixture, place, rank, width)} for rank in range(2)], {0: home}, x)
    assert sent[0] + sent[1] == expected
    one = torch.zeros(4, dtype=torch.int64)
    _, sent = together([{0: shared_out(mixture, one, rank, width)} for rank in range(2)], {0: home * 0}, x)
    assert {kind: n for kind, n in (sent[0] + sent[1]).items() if n} == {"routes": 30 * 2 * 4}


def test_the_same_text_from_two_processes_by_a_lying_table(model: Path, tmp_path: Path) -> None:
    """Drafts, a seed and a table that is wrong about every token; bytes of both are counted; a bare end is seen."""
    with LLM(model, drafter="ngram", **SMALL) as llm:
        texts = [answer.token_ids for answer in llm.generate(PROMPTS, DRAWN, progress=False)]
        reads = llm.engine.snapshot().expert_loads
    spec = read_config(model)
    stream = torch.Generator().manual_seed(0)
    lies = RouteTable(
        2, 1.0, {layer: torch.randint(2, (it.count,), generator=stream) for layer, it in mixtures_of(spec).items()},
        {layer: torch.rand(spec.vocab, 2, generator=stream) * 9 - 3 for layer in mixtures_of(spec)},
        {layer: torch.full((2, 2, 2), float("nan")) for layer in mixtures_of(spec)},
    )  # fmt: skip
    lies.save(tmp_path / "lies")
    with LLM(model, drafter="ngram", expert_parallel=2, expert_table=tmp_path / "lies", **SMALL) as llm:
        found = llm.generate(PROMPTS, DRAWN, progress=False)
        assert [answer.token_ids for answer in found] == texts
        assert llm.engine.snapshot().expert_loads == reads > 0
        processes = llm.engine.model.spread
        assert min(processes.traffic().values()) > 0
        os.kill(processes.processes[0].pid, signal.SIGKILL)
        with pytest.raises(LostError, match="Process 1 of 2 of the experts has ended"):
            llm.generate(PROMPTS, DRAWN, progress=False)
        with pytest.raises(LostError, match="start again"):
            llm.generate(PROMPTS, DRAWN, progress=False)
    assert all(process.returncode is not None for process in processes.processes)


def test_a_process_that_is_silent_counts_as_ended(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped, not dead: the request fails with one sentence, the process is ended, and nobody hangs."""
    for module in (exchange, ranks):
        monkeypatch.setattr(module, "SILENCE_S", 5.0)
    monkeypatch.setattr(ranks, "END_S", 0.2)
    with LLM(model, drafter="none", expert_parallel=2, **SMALL) as llm:
        spread = llm.engine.model.spread
        os.kill(spread.processes[0].pid, signal.SIGSTOP)
        with pytest.raises(LostError, match="silent for 5 s; start again") as caught:
            llm.generate(PROMPTS, DRAWN, progress=False)
        assert "\n" not in str(caught.value)
        assert spread.processes[0].returncode == -signal.SIGKILL


def test_what_cannot_be_is_refused(model: Path, tmp_path: Path) -> None:
    """Before a process is started: wrong tables, wrong counts, and options that cannot be combined."""
    spec = read_config(model)
    plain = RouteTable.plain(spec, 2)
    wrong = {
        "is for 3 processes": RouteTable.plain(spec, 3),
        "capacity 0": RouteTable(2, 0.0, plain.places),
        "made for another model": RouteTable(2, 1.0, {0: plain.places[0]}),
        "places 3 experts": RouteTable(2, 1.0, {layer: torch.tensor([0, 1, 0]) for layer in plain.places}),
        "outside of the 2 processes": RouteTable(2, 1.0, {layer: p + 1 for layer, p in plain.places.items()}),
        "has tokens of shape": RouteTable(2, 1.0, plain.places, {0: torch.zeros(7, 2)}),
        "has follows of shape": RouteTable(2, 1.0, plain.places, {}, {0: torch.zeros(2, 2)}),
    }
    for says, table in wrong.items():
        table.save(tmp_path / "table")
        with pytest.raises(InputError, match=says):
            LLM(model, expert_parallel=2, expert_table=tmp_path / "table", **SMALL)
    (tmp_path / "table").write_bytes(b"no table")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"expert_parallel": 2, "expert_table": tmp_path / "table"}, "cannot be read as a table"),
        ({"expert_parallel": 2, "expert_table": tmp_path / "none"}, "cannot be read as a table"),
        ({"expert_parallel": 2, "expert_table": model / "model.safetensors"}, "is not a table of routes"),
        ({"expert_table": tmp_path / "table"}, "expert_parallel is 1"),
        ({"expert_parallel": 0}, "must be 1 to"),
        ({"expert_parallel": 5}, "has only 4 experts"),
        ({"expert_parallel": 2, "dtype": "bfloat16", "quantize": "int8"}, "and quantize cannot"),
        ({"expert_parallel": 2, "dtype": "bfloat16", "kv_dtype": "int8"}, "kv_dtype int8 cannot"),
        ({"expert_parallel": 2, "lora": {"a": model}}, "lora cannot"),
    ]
    for options, says in cases:
        with pytest.raises(PacelineError, match=says):
            LLM(model, **{**SMALL, **options})
    dense = tiny_checkpoint(tmp_path / "dense", "llama")
    with pytest.raises(RefusalError, match="has no experts"):
        LLM(dense, expert_parallel=2, **SMALL)


def test_rows_are_assigned_within_the_capacity() -> None:
    """To their best process; of too many the surest stay; unknown ones fill what is left."""
    stream = torch.Generator().manual_seed(0)
    for rows, devices in ((1, 2), (5, 4), (33, 3), (64, 8)):
        shares = torch.rand(rows, devices, generator=stream) * (torch.rand(rows, 1, generator=stream) > 0.2)
        most = most_rows(rows, devices, 1.0)
        home = assign(shares, most)
        counts = torch.bincount(home, minlength=devices)
        assert int(counts.sum()) == rows and int(counts.max()) <= most
        loose = assign(shares, rows)
        known = shares.max(1).values > 0
        assert torch.equal(loose[known], shares.argmax(1)[known])
    full = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.0, 0.0]])
    assert assign(full, 2).tolist() == [0, 1, 0, 1]
    assert RouteTable(4).homes(0, torch.tensor([3, 4]), None).tolist() == [0, 0]


def test_a_table_is_read_as_it_was_saved(model: Path, tmp_path: Path) -> None:
    table = RouteTable(2, 1.5, {1: torch.tensor([1, 0])}, {1: torch.rand(9, 2)}, {1: torch.rand(2, 2, 2)})
    table.save(tmp_path / "table")
    back = read_table(tmp_path / "table")
    assert (back.devices, back.capacity) == (2, 1.5)
    for part in ("places", "tokens", "follows"):
        assert torch.equal(getattr(back, part)[1], getattr(table, part)[1])
