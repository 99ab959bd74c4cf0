"""What is said of Ray's own troubles, without Ray."""

import asyncio
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from paceline.cluster.live import actors
from paceline.cluster.live.actors import DIED, ActorLink, RaySession, no_ray, reason
from paceline.cluster.live.aside import RAW_LOG, heeding_ctrl_c, set_aside
from paceline.cluster.live.host import EngineHost
from paceline.cluster.live.messages import EngineGoneError
from paceline.core.errors import InputError


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


OTHER_RAY = (
    "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1\n"
    "This process on node 10.0.0.2 was started with:\n    Ray: 2.56.0\n    Python: 3.11.7\n"
)


@pytest.mark.parametrize(
    ("address", "error", "says"),
    [
        ("a:6379", RuntimeError(OTHER_RAY), r"is of other versions than this process \(Ray: 2\.9\.0 Python: 3\.10\.1 .*"
         r"install the same ones of Ray, Python and Paceline on each machine"),
        ("a:6379", ConnectionRefusedError("no\nstory"), r"No Ray cluster answers at a:6379 \(no\); where it wants"),
        ("ray://a:1", ImportError("ray[client]"), "must be HOST:PORT of a Ray cluster's head"),
        (None, OSError("No space left on device"), r"cannot start on this machine \(No space left on device\)"),
        (None, RuntimeError(), r"cannot start on this machine \(RuntimeError\)"),
    ],
)  # fmt: skip
def test_why_there_is_no_ray(address: str | None, error: Exception, says: str) -> None:
    with pytest.raises(InputError, match=says):
        raise InputError(no_ray(address, error))


def test_engines_for_which_there_are_never_cores_are_refused() -> None:
    RaySession("", Path(), cores=4.0).check_room(2, 2.0)
    RaySession("", Path()).check_room(64, 64.0)
    with pytest.raises(InputError, match=r"engine_cpus is 1\.5, so 3 engines need 4\.5 cores, but"):
        RaySession("", Path(), cores=4.0).check_room(3, 1.5)


def test_engines_for_which_there_is_never_memory_are_refused() -> None:
    """A thousand processes would be started else, and the machine with them would stand still."""
    RaySession("", Path(), memory=8e9).check_room(8, 0.0)
    RaySession("", Path()).check_room(1024, 0.0)
    with pytest.raises(InputError, match=r"1024 engines need 275 GB without their models, but this machine has 8 GB"):
        RaySession("", Path(), memory=8e9).check_room(1024, 0.0)


@pytest.mark.parametrize("cpus", [0.0, 2.0])
def test_a_start_that_takes_long_is_told(cpus: float, caplog: pytest.LogCaptureFixture) -> None:
    link = ActorLink.__new__(ActorLink)
    link.name, link.session, link._cpus = "engine-3", RaySession("", Path("logs")), cpus
    link._tell_start(60.4)
    [record] = caplog.records
    assert "engine-3 has not started after 60 s: it still loads the model" in record.getMessage()
    assert ("2 cores free for it (engine_cpus)" in record.getMessage()) is bool(cpus)


def test_an_engine_of_another_version_is_refused() -> None:
    with pytest.raises(InputError, match=r"has Paceline .*, but the cluster's server has 0\.0\.0; install the same"):
        EngineHost({"model": "/none"}, "0.0.0")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals are the main thread's")
def test_a_swallowed_ctrl_c_is_heeded() -> None:
    before, swallowed = signal.getsignal(signal.SIGINT), 0
    with pytest.raises(KeyboardInterrupt), heeding_ctrl_c():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            swallowed += 1
    assert swallowed == 1 and signal.getsignal(signal.SIGINT) is before
    with heeding_ctrl_c():
        pass
