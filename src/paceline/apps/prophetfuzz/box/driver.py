"""A fuzzing campaign in the sandbox: afl-fuzz over many commands, a slice of time each, crashes replayed and grouped.

Reads `job.json`, `seeds/` and the target; writes `result.json` after every slice, so that a campaign that is stopped
leaves what it found, and `repro/HASH`, the first input of each crash.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

FUZZ_QUIET = {
    "AFL_NO_UI": "1", "AFL_SKIP_CPUFREQ": "1", "AFL_NO_AFFINITY": "1", "AFL_AUTORESUME": "1", "AFL_FAST_CAL": "1",
    "AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES": "1", "AFL_FORKSRV_INIT_TMOUT": "30000",
}  # fmt: skip
CRASHED = 99
REPLAY = {"ASAN_OPTIONS": f"detect_leaks=0:symbolize=1:abort_on_error=0:exitcode={CRASHED}"}
FRAME = re.compile(r"^[ \t]*#\d+ 0x[0-9a-f]+ in (\S+)(.*)$", re.MULTILINE)
RUNTIME = re.compile(
    r"^(__asan|__interceptor|__sanitizer|__libc|_start|main$|mem(cpy|set|move)$|abort$|raise$|free$|malloc$)"
)
SPARE = b"x\n"
MOST_CRASHES_A_SLICE = 20
REPLAY_S, LATE_S = 10.0, 20.0
MOST_OUTPUT = 1 << 16
MOST_SHARED = 64
"""Inputs of other commands that a command is given before a slice."""
QUEUED = "id:"
"""Beginning of the names in AFL++'s queue: it cannot resume with a file of another name."""
NEVER = 255
"""Byte of AFL++'s map for an edge that was never reached."""


class FuzzDriverCommand:
    """One command and what its slices brought."""

    def __init__(self, number: int, args: list[str]) -> None:
        self.number, self.args = number, args
        self.slices = self.execs = self.edges = self.gain = self.crashes = 0
        self.seconds, self.state = 0.0, "new"
        self.seen: set[str] = set()
        self.given: set[Path] = set()

    def as_dict(self) -> dict[str, Any]:
        rate = round(self.execs / self.seconds, 1) if self.seconds else 0.0
        return {"args": self.args, "slices": self.slices, "execs": self.execs, "edges": self.edges, "state": self.state,
                "crashes": self.crashes, "shared": len(self.given), "seconds": round(self.seconds, 2),
                "execs_per_second": rate}  # fmt: skip


class Campaign:
    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.commands = [FuzzDriverCommand(i, args) for i, args in enumerate(job["commands"])]
        self.began = time.monotonic()
        self.crashes: dict[str, dict[str, Any]] = {}
        self.reached, self.curve = set[int](), list[tuple[float, int]]()
        for name in ("repro", "out", "in"):
            Path(name).mkdir(exist_ok=True)
        if job["target"] == "./target":
            os.chmod("target", 0o755)

    def now(self) -> float:
        return time.monotonic() - self.began

    def run(self) -> None:
        """Slices until time is up or no command is left. Every command has one; then what brought most goes first."""
        self.write()
        while self.now() < self.job["seconds"]:
            command = self.next()
            if command is None:
                break
            self.slice(command)
            self.write()
        self.write()

    def next(self) -> FuzzDriverCommand | None:
        left = [c for c in self.commands if c.state in ("new", "runs")]
        total = sum(c.slices for c in left)
        if total % 4 == 3:
            return min(left, key=lambda c: c.slices, default=None)
        return min(left, key=lambda c: (c.slices > 0, -c.gain / (1 + c.slices), c.slices), default=None)

    def slice(self, command: FuzzDriverCommand) -> None:
        if command.state == "new":
            self.seed(command)
        self.share(command)
        seconds = max(1, round(min(self.job["slice"], self.job["seconds"] - self.now())))
        began, blind = time.monotonic(), self.job["blind"]
        out = Path("out", f"{command.number}.{command.slices}" if blind else str(command.number))
        home = out if blind else out / "default"
        given = ["-i", f"in/{command.number}", "-o", str(out), "-V", str(seconds), "-s", str(self.job["seed"])]
        given += ["-m", "none", "-t", "2000+", *(["-n"] if blind else [])]
        args = ["afl-fuzz", *given, "--", *self.line(command)]
        _, said = bounded(args, FUZZ_QUIET, seconds + LATE_S)
        command.seconds += time.monotonic() - began
        command.slices += 1
        stats = plotted(home / "plot_data") if blind else statistics(home / "fuzzer_stats")
        if not stats:
            command.state = "failed: " + reason(said)
            return
        command.state = "runs"
        execs, edges = int(stats.get("execs_done", 0)), int(stats.get("edges_found", 0))
        command.execs, before = execs + (command.execs if blind else 0), command.edges
        command.edges = max(edges, before)
        known = len(self.reached)
        self.reached |= edges_of(home / "fuzz_bitmap")
        if self.reached:
            self.curve.append((round(self.now(), 2), len(self.reached)))
        new = len(self.reached) - known if self.reached else command.edges - before
        command.gain = new + 5 * self.triage(command, home / "crashes")

    def share(self, command: FuzzDriverCommand) -> None:
        """One queue for all commands: what reached something new under another one is tried under this one, too. It
        goes to the seeds of a command that has not run, else into its own queue, which AFL++ reads as it resumes."""
        own = Path("out", str(command.number), "default", "queue")
        folder = own if own.is_dir() else Path("in", str(command.number))
        others = [path for path in Path("out").glob("*/default/queue/id*+cov*") if own not in path.parents]
        new = [path for path in others if path not in command.given and "shared_" not in path.name]
        for path in sorted(new, key=lambda path: path.stat().st_mtime)[-MOST_SHARED:]:
            command.given.add(path)
            if folder != own and self.crashed(command, path):
                continue
            shutil.copy(path, folder / f"{QUEUED}shared_{len(command.given)}")

    def line(self, command: FuzzDriverCommand, file: str | None = None) -> list[str]:
        """The target and its arguments: for AFL++ (the input is - where the target is persistent), or with a file."""
        given = file or ("-" if self.job["persistent"] else "@@")
        return [self.job["target"], *(given if arg == "@@" else arg for arg in command.args)]

    def seed(self, command: FuzzDriverCommand) -> None:
        """Seeds that do not crash under the command go in; those that do are found already."""
        folder = Path("in", str(command.number))
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(Path("seeds").iterdir()):
            if not self.crashed(command, path):
                shutil.copy(path, folder / path.name)
        if not any(folder.iterdir()):
            (folder / "spare").write_bytes(SPARE)

    def triage(self, command: FuzzDriverCommand, folder: Path) -> int:
        """Replay new crashing inputs; how many were of a new kind."""
        new = [p for p in sorted(folder.glob("id*")) if str(p) not in command.seen] if folder.is_dir() else []
        command.seen.update(map(str, new))
        before = len(self.crashes)
        for path in new[:MOST_CRASHES_A_SLICE]:
            self.crashed(command, path)
        return len(self.crashes) - before

    def crashed(self, command: FuzzDriverCommand, path: Path) -> bool:
        """Whether the target crashes on the file; the first of each stack is kept."""
        code, said = bounded(self.line(command, str(path.resolve())), REPLAY, REPLAY_S, path)
        if code is None or (code >= 0 and code != CRASHED):
            return False
        frames = [name for name, _ in FRAME.findall(said.split("freed by")[0].split("allocated by")[0])]
        own = [f for f in frames if not RUNTIME.match(f)][:3] or [f"signal {-code}"]
        found = re.search(r"AddressSanitizer: ([\w-]+)", said)
        name = hashlib.sha256("|".join(own).encode()).hexdigest()[:12]
        command.crashes += 1
        if name not in self.crashes:
            shutil.copy(path, Path("repro", name))
            self.crashes[name] = {
                "hash": name, "kind": found[1] if found else own[0], "frames": own, "command": command.number,
                "seconds": round(self.now(), 2), "count": 0,
            }  # fmt: skip
        self.crashes[name]["count"] += 1
        return True

    def write(self) -> None:
        rows = [c.as_dict() for c in self.commands]
        data = {"commands": rows, "crashes": list(self.crashes.values()), "curve": self.curve,
                "seconds": round(self.now(), 2)}  # fmt: skip
        Path("result.tmp").write_text(json.dumps(data))
        Path("result.tmp").rename("result.json")


def bounded(
    args: list[str], env: dict[str, str], seconds: float, given: Path = Path(os.devnull)
) -> tuple[int | None, str]:
    """Run a command with all that it starts, on the standard input `given`; its exit code, None if time was up, and the
    beginning of what it wrote."""
    with open("said", "w+b") as said, given.open("rb") as stdin:
        child = subprocess.Popen(args, env={**os.environ, **env}, stdin=stdin, stdout=said,
                                 stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            code: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        said.seek(0)
        return code, said.read(MOST_OUTPUT).decode("utf-8", "replace")


def statistics(path: Path) -> dict[str, str]:
    """afl-fuzz's own figures; empty where it did not come so far."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}


def edges_of(path: Path) -> set[int]:
    """Edges of the target that a command's inputs have reached, by AFL++'s map of those that none has."""
    try:
        virgin = path.read_bytes()
    except OSError:
        return set()
    return {edge for edge, byte in enumerate(virgin) if byte != NEVER}


def plotted(path: Path) -> dict[str, str]:
    """The last line of afl-fuzz's plot: without instrumentation it writes no other figures."""
    try:
        head, *_, last = path.read_text().splitlines()
    except (OSError, ValueError):
        return {}
    row = dict(zip(head.lstrip("# ").split(", "), last.split(", ")))
    return {"execs_done": row.get("total_execs", "0")} if last != head else {}


def reason(said: str) -> str:
    """Why afl-fuzz gave up, in its own words."""
    text = re.sub(r"\x1b\[[0-9;]*m|\x0f|\x0e", "", said)
    found = re.search(r"PROGRAM ABORT\W*(.+)", text) or re.search(r"SYSTEM ERROR\W*(.+)", text)
    return found[1].strip()[:120] if found else (text.strip().splitlines() or ["no output"])[-1][:120]


if __name__ == "__main__":
    Campaign(json.loads(Path("job.json").read_text())).run()
    for name in ("out", "in"):
        shutil.rmtree(name, ignore_errors=True)
