import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from paceline.attend import reference
from paceline.bench import profile as module
from paceline.bench.profile import (
    DISPATCH,
    FORWARD,
    PROFILE_PARTS,
    PROFILED_ROWS,
    PartClock,
    Profile,
    StepMedians,
    chain,
    measure,
    profile,
    timed,
)
from paceline.bench.svg import Chart, tick
from paceline.core.errors import InputError, RefusalError
from paceline.core.params import SamplingParams
from paceline.engine.build import build
from paceline.engine.config import EngineConfig
from paceline.engine.loop import Engine
from paceline.engine.options import Options
from paceline.model.native import NativeDecoder
from paceline.native.build import library
from paceline.native.structs import NATIVE_PARTS as NATIVE
from tests.tiny import tiny_checkpoint
from tests.toy import Toy, table

GREEDY = SamplingParams(temperature=0.0, seed=0)


def options(target: Path, **more: Any) -> Options:
    return Options(target, **{"dtype": "float32", "blocks": 600, "threads": 1, **more})


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds, and no half second of reading or of looking at the machine."""
    for reader in module, module.contexts:
        monkeypatch.setattr(reader, "read_speed", lambda *args: 1e9)
    monkeypatch.setattr(module.CpuWatch, "before", lambda watch: None)
    measured = measure
    monkeypatch.setattr(module, "measure", lambda *args, **more: measured(*args, rounds=2, **more))


@pytest.fixture
def found(target: Path, short: None) -> Profile:
    return profile(options(target), GREEDY)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.skipif(
    library() is None, reason="no native library here"))])  # fmt: skip
def test_the_parts_of_every_step_sum_to_it(
    dtype: str, target: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a second clock around the step. Scheduling between the two readings is allowed for."""
    seen: list[tuple[float, dict[str, float], bool]] = []

    def watched(engine: Engine, request: Any, rows: int, *rest: Any) -> dict[str, float]:
        before, forwards = engine.timer.step, engine.timer.steps
        seconds = timed(engine, request, rows, *rest)
        assert engine.timer.steps == forwards + 1
        seen.append((engine.timer.step - before, seconds, isinstance(engine.model, NativeDecoder)))
        return seconds

    monkeypatch.setattr(module, "timed", watched)
    profile(options(target, dtype=dtype), GREEDY)
    assert len(seen) == 3 * len(PROFILED_ROWS)
    for step, seconds, native in seen:
        assert list(seconds) == list(PROFILE_PARTS) and native is (dtype == "bfloat16")
        assert all(spent > 0 for spent in seconds.values()), seconds
        assert sum(seconds.values()) >= step - 1e-6
    excess = sorted(sum(seconds.values()) - step for step, seconds, _ in seen)
    assert excess[0] < 1e-3


def test_every_row_count_is_there(found: Profile) -> None:
    assert [it.rows for it in found.steps] == list(PROFILED_ROWS) and found.context == 300
    for it in found.steps:
        assert it.count == 2 and list(it.parts_ms) == list(PROFILE_PARTS)
        assert it.step_ms > 0 and min(it.parts_ms.values()) >= 0


def test_the_steps_have_the_rows_that_they_are_said_to_have() -> None:
    model, seen = Toy(table(0)), list[int]()
    forward = model.forward
    model.forward = lambda rows: seen.append(len(rows.token)) or forward(rows)  # type: ignore[method-assign,func-returns-value]
    machine = Engine(
        model, EngineConfig(64, block_size=4, max_requests=1, row_budget=64, drafter="user"), callable=chain
    )
    context, steps = measure(machine, GREEDY.resolve({}), rows=(1, 2, 5), rounds=2)
    assert context == 64 - 8 - 5 and [it.rows for it in steps] == [1, 2, 5]
    assert sorted(n for n in seen if n in (1, 2, 5)).count(5) == 3, "the warm-up and two rounds"
    assert not machine.busy and machine.drafters.errors == []
    machine.cache.check_integrity()


def test_every_part_of_a_pass_is_charged_to_its_name(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order in which the PyTorch decoder's parts begin, in a model of two layers."""
    engine, _ = build(options(target, drafter=chain))
    begun: list[str] = []
    wrap = PartClock.wrap
    monkeypatch.setattr(
        PartClock, "wrap", lambda clock, part, f: wrap(clock, part, lambda *a, **k: (begun.append(part), f(*a, **k))[1])
    )
    measure(engine, GREEDY.resolve({}), rows=[3], rounds=1)
    step = begun[len(begun) - 1 - begun[::-1].index("planning") :]
    layer = ["norms and element-wise", "linear layers", "rope", "attention", "linear layers"]
    layer += ["norms and element-wise", *["linear layers"] * 2]
    assert step == [
        "planning", "drafting and layout", "cache book-keeping", "operator dispatch", "embedding", "attention", "rope",
        *layer, *layer, "head", "norms and element-wise", "sampling", "cache book-keeping", "detokenising, emit",
    ]  # fmt: skip


def test_nothing_stays_wrapped(target: Path) -> None:
    engine, _ = build(options(target, drafter=chain))
    model: Any = engine.model
    before = (
        reference.rotate_,
        model.weights.norm,
        model.weights.blocks,
        model.weights.blocks[0].mixer.qkv,
        engine.model.forward,
    )
    measure(engine, GREEDY.resolve({}), rounds=1)
    after = (
        reference.rotate_,
        model.weights.norm,
        model.weights.blocks,
        model.weights.blocks[0].mixer.qkv,
        engine.model.forward,
    )
    assert before == after


def test_the_clock_charges_the_innermost_call_also_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(module, "perf_counter", lambda: float(next(now)))
    clock = PartClock(torch.device("cpu"))

    def fail() -> None:
        raise ValueError

    def outer() -> None:
        clock.wrap("inner", lambda: None)()
        with pytest.raises(ValueError):
            clock.wrap("inner", fail)()

    clock.wrap("outer", outer)()
    assert clock.seconds == {"": 1.0, "outer": 3.0, "inner": 2.0} and clock.part == ""


def test_native_seconds_are_taken_from_the_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock ticks at each change: planning, forward, planning, end. The pass says 6 x 1/8 of its one second."""
    machine = Engine(
        Toy(table(0)), EngineConfig(64, block_size=4, max_requests=1, row_budget=64, drafter="user"), callable=chain
    )
    wish = replace(GREEDY.resolve({}), drafter="user", max_nodes=0, max_tokens=9)
    (request,) = machine.submit([1, 2, 3], wish)
    machine.step()
    clock, native, forward = PartClock(torch.device("cpu")), torch.zeros(len(FORWARD)), machine.model.forward
    now = iter(range(100))
    monkeypatch.setattr(module, "perf_counter", lambda: float(next(now)))
    machine.model.forward = clock.wrap(DISPATCH, lambda rows: (native.fill_(0.125), forward(rows))[1])  # type: ignore[method-assign]
    seconds = timed(machine, request, 3, clock, native)
    spent = dict.fromkeys(PROFILE_PARTS, 0.0) | dict.fromkeys(FORWARD, 0.125) | {"planning": 2.0, DISPATCH: 0.25}
    assert seconds == spent and "" not in seconds


def test_medians() -> None:
    taken = [dict.fromkeys(PROFILE_PARTS, 0.001) | {DISPATCH: spent} for spent in (0.004, 0.002, 0.009)]
    it = StepMedians.of(8, taken)
    assert it.parts_ms[DISPATCH] == pytest.approx(4) and it.step_ms == pytest.approx(len(PROFILE_PARTS) - 1 + 4)


def test_parts_are_named_in_the_native_order() -> None:
    assert [name.removesuffix(" and element-wise") for name in FORWARD] == list(NATIVE)


def test_what_is_shown_and_written(found: Profile, tmp_path: Path) -> None:
    linear, head = (found.steps[0].parts_ms[part] / found.floor_ms for part in ("linear layers", "head"))
    assert found.floor_ms == pytest.approx(found.weight_bytes / 1e6)
    assert f"{linear:.2f} ({linear + head:.2f} with the head) at 1 row," in found.summary()
    assert "at 16 rows" in found.summary() and found.table().row_count == len(PROFILE_PARTS) + 1
    found.write(tmp_path / "out.json", {"rows": []})
    assert json.loads((tmp_path / "out.json").read_text()) == {"rows": [], "profile": asdict(found)}
    for save in (found.plot, lambda path: found.write(path, {})):
        with pytest.raises(InputError, match="cannot be written"):
            save(tmp_path / "missing" / "file")


def test_the_plot_is_xml_with_every_part_of_every_bar(found: Profile, tmp_path: Path) -> None:
    found.plot(tmp_path / "plot.svg")
    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    space = {"svg": "http://www.w3.org/2000/svg"}
    parts = root.findall("svg:rect[@class='part']", space)
    assert len(parts) == len(PROFILE_PARTS) * len(PROFILED_ROWS) and all(
        float(part.get("height", "-1")) >= 0 for part in parts
    )
    words = {text.text for text in root.iter(f"{{{space['svg']}}}text")}
    assert {
        *PROFILE_PARTS,
        *map(str, PROFILED_ROWS),
        "rows of the step",
        "ms (medians)",
        "reading the weights",
    } <= words


def test_bars_are_stacked_to_scale() -> None:
    chart = Chart("a < b", "x", "y", ["1"], {"low": [1.0], "high": [3.0]}, (2.0, "line"))
    root = ElementTree.fromstring(chart.svg())
    low, high = ([float(r.get(k, "nan")) for k in ("y", "height")] for r in root.findall("{*}rect[@class='part']"))
    assert high[1] == pytest.approx(3 * low[1], rel=1e-3) and high[0] + high[1] == pytest.approx(low[0], abs=0.02)
    line = next(r for r in root.findall("{*}line[@class='floor']"))
    assert float(line.get("y1", "nan")) == pytest.approx(low[0] - low[1], abs=0.2)


@pytest.mark.parametrize("most", [0.004, 0.9, 1.0, 1.7, 2.0, 23.0, 99.0, 1e4])
def test_ticks(most: float) -> None:
    assert 4 <= most / tick(most) <= 10


def test_bad_input(target: Path, tmp_path: Path, short: None) -> None:
    with pytest.raises(InputError, match="too short to profile steps of 64 rows; use one of at least 192"):
        profile(options(target, max_model_len=100), GREEDY)
    with pytest.raises(RefusalError):
        profile(options(target, verifier="chain"), GREEDY)


def test_a_short_context_is_said(tmp_path: Path, short: None) -> None:
    assert profile(options(tiny_checkpoint(tmp_path / "tiny", max_position_embeddings=256)), GREEDY).context == 65


def test_a_long_context_is_told_of(tmp_path: Path, short: None) -> None:
    found = profile(options(tiny_checkpoint(tmp_path / "tiny", max_position_embeddings=700)), GREEDY)
    assert found.long is not None and found.long.tokens == 675
    assert found.summary().endswith(found.long.summary())
