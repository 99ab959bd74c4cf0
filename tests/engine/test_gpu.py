"""A GPU that is not there, is too old, too small, or busy: what is said."""

import logging
from typing import Any

import pytest
import torch

from paceline import LLM
from paceline.core.errors import CapacityError, InputError, RefusalError
from paceline.engine import gpu
from paceline.engine.loop import Engine
from paceline.engine.totals import Snapshot, Totals


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A made-up GPU; a test changes what it says."""
    said: dict[str, Any] = {"capability": (9, 0), "memory": (70 << 30, 80 << 30), "reserved": 9 << 30}
    monkeypatch.setattr(gpu.torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Card X")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: said["capability"])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: said["memory"])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: said["reserved"])
    monkeypatch.setattr(gpu, "simulated", lambda _: False)
    return said


def test_a_driver_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nmore")

    monkeypatch.setattr(gpu.torch, "empty", refuse)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match=r"no such GPU \(The NVIDIA driver on your system is too old .*11040\)\); use"):
        gpu.check_gpu("cuda", "bfloat16")


def test_a_card_without_bfloat16(card: dict[str, Any]) -> None:
    card["capability"] = (7, 5)
    with pytest.raises(RefusalError, match="bfloat16, which the GPU Card X does not have; use dtype float16"):
        gpu.check_gpu("cuda", "bfloat16")
    gpu.check_gpu("cuda", "float16")


def test_others_on_the_card_are_named(card: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        gpu.check_gpu("cuda", "bfloat16")
        assert not caplog.records
        card["memory"] = (20 << 30, 80 << 30)
        gpu.check_gpu("cuda", "bfloat16")
    assert "Other programs hold 54.8 of the 85.9 GB of Card X" in caplog.text


def test_blocks_come_of_what_is_free(card: dict[str, Any]) -> None:
    assert gpu.room_for_blocks("cuda", 16 << 30, 1 << 30) == int((70 << 30) * 0.95) - (17 << 30)
    with pytest.raises(CapacityError, match=r"weights take 75\.2 GB and a pass 1\.1 GB, but cuda has only 71\.4"):
        gpu.room_for_blocks("cuda", 70 << 30, 1 << 30)


def test_memory_that_ends_in_a_step_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the step is kept, and the request goes on where there is memory again."""
    llm = LLM(dtype="float32", blocks=64, drafter="none", row_budget=100)
    engine, forward = llm.engine, llm.engine.model.forward

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.\nmore")

    from paceline.core.params import SamplingParams

    request = engine.submit([5, 6, 7], SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True).resolve({}))[0]
    engine.model.forward = full  # type: ignore[method-assign]
    with pytest.raises(CapacityError, match=r"in a step \(CUDA out of memory\. .* 3\.00 GiB\); start with"):
        engine.step()
    engine.model.forward = forward  # type: ignore[method-assign]
    while engine.busy:
        engine.step()
    assert len(request.output) == 2
    assert isinstance(engine, Engine)


def test_stats_tell_of_graphs() -> None:
    from types import SimpleNamespace

    from paceline.serve.stats import stats

    def told(snapshot: Snapshot) -> dict[str, Any]:
        host: Any = SimpleNamespace(snapshot=snapshot, first=lambda: None, model="m", cards=list, max_requests=1)
        settings: Any = SimpleNamespace(queue_limit=1)
        return stats(host, settings, 0.0)

    counts = {"captured": 1, "replayed": 5, "eager": 0, "failed": ""}
    assert told(Snapshot(0, 0, 1, 0, 0, Totals(), gpu=counts))["gpu"] == counts
    assert "gpu" not in told(Snapshot(0, 0, 1, 0, 0, Totals()))
