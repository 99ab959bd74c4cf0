"""Time on a device that works behind the host: passes are priced by what they took there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from paceline.core.params import SamplingParams
from paceline.core.rows import Out, Rows
from paceline.engine.config import EngineConfig
from paceline.engine.loop import Engine
from paceline.engine.watch import EventWatch, HostWatch, watch_for
from tests.toy import Toy, table

LAUNCH_S, ROW_S = 0.001, 0.01


class Device:
    """One queue: a call costs the host its launch, and the device more; who waits is brought forward to its end."""

    def __init__(self) -> None:
        self.now, self.free = 0.0, 0.0

    def work(self, seconds: float) -> None:
        self.free = max(self.free, self.now) + seconds
        self.now += LAUNCH_S

    def wait(self, until: float | None = None) -> None:
        self.now = max(self.now, self.free if until is None else until)


class FakeEvent:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, -1.0

    def record(self) -> None:
        self.at = max(self.device.now, self.device.free)

    def synchronize(self) -> None:
        self.device.wait(self.at)

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert self.device.now >= end.at, "not recorded yet"
        return (end.at - self.at) * 1e3


class Late(Toy):
    """A toy on such a device."""

    behind: Device

    def forward(self, rows: Rows) -> Out:
        self.behind.work(ROW_S * rows.count)
        return super().forward(rows)


def engine_on(device: Device, watch: Callable[[Engine], Any]) -> Engine:
    model = Late(table(0, 2.0))
    model.behind = device
    engine = Engine(model, EngineConfig(blocks=64, block_size=4, patience_ms=0.0), clock=lambda: device.now)
    engine.compute.watch = watch(engine)
    judge = engine.judge.judge

    def judged(*args: Any) -> Any:
        verdict = judge(*args)
        device.wait()  # its tokens come from the device
        return verdict

    engine.compute.judge.judge = judged  # type: ignore[method-assign]
    return engine


def run(engine: Engine) -> list[float]:
    """Seconds of the target that the policy learned of each step of one row."""
    seen = list[float]()
    learn = engine.desk.policy.learn
    engine.desk.policy.learn = lambda notes, work, parts, times: (  # type: ignore[method-assign]
        seen.append(times.target), learn(notes, work, parts, times)
    )[1]  # fmt: skip
    engine.submit([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, drafter="none").resolve({}))
    while engine.busy:
        engine.step()
    return seen


def test_passes_are_priced_by_the_device() -> None:
    device = Device()
    engine = engine_on(device, lambda _: EventWatch(lambda: FakeEvent(device)))
    assert run(engine) == pytest.approx([3 * ROW_S, *[ROW_S] * 3])
    timer = engine.timer
    assert timer.target == pytest.approx(6 * ROW_S) and timer.sample == pytest.approx(0, abs=1e-9)
    assert timer.step == pytest.approx(timer.target)  # launches lie within the passes


def test_the_clock_of_the_host_sees_launches_alone() -> None:
    """What the events are for."""
    device = Device()
    assert run(engine_on(device, lambda engine: HostWatch(engine.clock))) == pytest.approx([LAUNCH_S] * 4)


def test_each_device_has_its_watch() -> None:
    assert isinstance(watch_for("cpu", lambda: 0.0), HostWatch)
    assert isinstance(watch_for(torch.device("cuda", 1), lambda: 0.0), EventWatch)
    out, seconds = HostWatch(iter([1.0, 4.0]).__next__).time(max, 1, 2)
    assert (out, seconds()) == (2, 3.0)
