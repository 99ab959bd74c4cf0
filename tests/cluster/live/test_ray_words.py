"""What is said of Ray's own troubles, without Ray."""

import asyncio
import logging
import os
import sys
from pathlib import Path

import pytest

from paceline.cluster.live import actors
from paceline.cluster.live.actors import DIED, RaySession, reason
from paceline.cluster.live.aside import RAW_LOG, set_aside
from paceline.cluster.live.messages import EngineGoneError


class ActorDiedError(Exception):
    """Named as Ray's."""


class ActorUnavailableError(Exception):
    """Named as Ray's."""


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ActorDiedError("The actor never ran - it was cancelled before it started running."), DIED),
        (ActorDiedError("The actor died unexpectedly.\n  pid: 4\nExit type: (1) OOM, (2) ray stop"), DIED),
        (ActorDiedError("The actor died because its node has died. Node Id: 5"), "its machine is gone"),
        (ActorUnavailableError("The actor 7 is unavailable: rpc error"), "its machine cannot be reached"),
        (ActorDiedError("The actor died because of an error raised in its creation task, ray::EngineHost()\n  File\n"
                        "paceline.core.errors.CheckpointError: no model there\n"), "no model there"),
        (ValueError("\n"), "ValueError"),
    ],
)  # fmt: skip
def test_reasons_are_one_sentence(error: Exception, says: str) -> None:
    assert reason(error) == says


async def test_a_head_that_is_gone_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "HEAD_LOOK_S", 0.01)
    caplog.set_level(logging.ERROR, "paceline")
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    session = RaySession(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", Path("logs"))
    await session.check()
    watching = asyncio.create_task(session.watch())
    await asyncio.sleep(0.05)
    assert not watching.done() and not caplog.records
    server.close()
    await asyncio.wait_for(watching, 20)
    with pytest.raises(EngineGoneError, match=r"head at 127\.0\.0\.1:\d+ does not answer; start the cluster again"):
        await session.check()
    [record] = caplog.records
    assert "logs are in logs" in record.getMessage()


def test_what_others_write_goes_to_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with set_aside() as aside:
        os.write(2, b"early\n")
        aside.keep(tmp_path)
        os.write(1, b"raw\n")
        print("late", file=sys.stderr)
        for stream, text in ((aside.stdout, "said\n"), (aside.stderr, "logged\n")):
            stream.write(text)
            stream.flush()
    os.write(2, b"after\n")
    out, err = capfd.readouterr()
    assert (out, err.replace("late\n", "")) == ("said\n", "logged\nafter\n")
    assert (tmp_path / RAW_LOG).read_text().replace("late\n", "") == "early\nraw\n"
