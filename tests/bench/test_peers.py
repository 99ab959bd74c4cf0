"""Real worker processes: Paceline's own, and small ones whose seconds are made up, so that no figure is a timing."""

import fcntl
import json
import runpy
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from shutil import copytree
from time import sleep
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from paceline.bench import peers
from paceline.bench.peers import PeerCase, PeerError, PeerReport, PeerRow, PeerWish, Worker, compare, read, ready
from paceline.cli import app
from paceline.core.errors import InputError

PEERS = Path(__file__).parents[2] / "bench/peers"
SCRIPTED = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if "load" in request:
        spec, how = request["load"], request["load"]["options"]
        with open(how["log"], "a+") as log:
            log.seek(0)
            turn = log.readlines().count(line)
        seconds = how["seconds"][str(spec["k"])]
        answer = {"ready": {spec["peer"]: "1.0"}}
    else:
        prompts, cap = request["generate"]["prompts"], request["generate"]["max_tokens"]
        ids = [[min(len(p), how["longest"])] * cap for p in prompts]
        answer = {"ids": ids, "seconds": len(prompts) * seconds[turn % len(seconds)]}
    with open(how["log"], "a") as log:
        log.write(line)
    print(json.dumps(answer), flush=True)
"""
"""Answers each prompt with its length, if need be cut to `longest`, in the `seconds` a prompt of this k and turn."""
SERVED = """
import os, sys
sys.path.insert(0, {peers!r})
from protocol import serve
def load(spec):
    {load}
    def generate(prompts, max_tokens):
        {generate}
        return [[1] * max_tokens for prompt in prompts]
    return generate, {{"rival": "1.0"}}
serve(load)
"""


def served(load: str = "pass", generate: str = "pass") -> str:
    """A worker of protocol.py with a statement in its two functions."""
    return SERVED.format(peers=str(PEERS), load=load, generate=generate)


class Root:
    """A folder like the one that setup.sh fills, with the tools that a test gives it."""

    def __init__(self, path: Path, target: Path, draft: Path) -> None:
        self.path, self.log, self.pair = path, path / "log", {"model": str(target), "draft": str(draft)}
        self.entries: dict[str, Any] = {}
        self.prompts = path / "prompts.jsonl"
        self.prompts.write_text("\n".join(json.dumps({"prompt": "a" * n}) for n in (1, 2, 3, 4, 99)))

    def add(self, name: str, script: str, **entry: Any) -> None:
        worker = self.path / f"{name}_worker.py"
        worker.write_text(script)
        entry = {"modes": {"plain": []}, "needs": [], "worker": str(worker), **entry}
        peer = runpy.run_path(str(PEERS / "register.py"))["entry"]
        self.entries[name] = peer(name, None, {"bf16": self.pair}, **entry)
        self.save()

    def script(self, name: str, seconds: dict[str, list[float]], longest: int = 999, **entry: Any) -> None:
        options = {"log": str(self.log), "seconds": seconds, "longest": longest}
        self.add(name, SCRIPTED, options=options, **entry)

    def save(self) -> None:
        (self.path / "peers.json").write_text(json.dumps({**self.pair, "peers": self.entries}))

    def wish(self, **changes: Any) -> PeerWish:
        return PeerWish(
            self.path, self.prompts, **{"batches": [1], "max_tokens": 4, "repeat": 1, "threads": 1, **changes}
        )

    def compare(self, **changes: Any) -> PeerReport:
        return compare(self.wish(**changes))

    def asked(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def root(tmp_path: Path, target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    monkeypatch.setattr("paceline.bench.peers.CpuWatch.before", lambda watch: None)
    return Root(tmp_path, target, draft)


def worker(root: Root, name: str = "rival") -> Worker:
    return Worker(root.entries[name], PeerCase(name, "bf16", "plain", 1))


# -- figures ---------------------------------------------------------------------------------------------------------


def test_rows_ratios_and_rounds(root: Root, tmp_path: Path) -> None:
    root.script("paceline", {"None": [1, 2, 4]})
    root.script("rival", {"None": [4, 2, 16]}, longest=60, batches=[2])
    report = root.compare(batches=[1, 2], repeat=3)
    own = [PeerRow("paceline", "bf16", "plain", batch, None, 20, 2, 1, 4, None, None, None, 5) for batch in (1, 2)]
    assert report.rows == [*own, PeerRow("rival", "bf16", "plain", 2, None, 20, 1, 0.25, 2, 2, 1, 4, 4)]
    loads = [spec["load"] for spec in root.asked() if "load" in spec]
    places = [("paceline", 1), ("paceline", 2), ("rival", 2)]
    assert [(s["peer"], s["batch"]) for s in loads] == [*places[::-1], *places, *places[::-1]], "rounds take turns"
    assert report.versions == {"paceline": "1.0", "rival": "1.0"}
    report.write(tmp_path / "out.json")
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["rows"] == [asdict(row) for row in report.rows] and written["args"]["model"] == root.pair["model"]
    with pytest.raises(InputError, match="cannot be written"):
        report.write(tmp_path / "absent" / "out.json")


def test_the_quickest_k_is_chosen_on_a_few_prompts(root: Root) -> None:
    root.script("rival", {"3": [1], "5": [0.25], "8": [0.5]}, modes={"draft": [3, 5, 8]})
    (row,) = root.compare(repeat=2).rows
    assert (row.k, row.tokens_per_second, row.ratio, row.same) == (5, 16, None, None)
    asked = root.asked()
    loads = [i for i, request in enumerate(asked) if "load" in request]
    assert [asked[i]["load"]["k"] for i in loads] == [3, 5, 8, 5, 5]
    assert all(asked[i]["load"]["draft"] == root.pair["draft"] for i in loads)
    calls = [end - start - 2 for start, end in zip(loads, [*loads[1:], len(asked)])]
    assert calls == [4, 4, 4, 5, 5], "beside load and warm-up: four prompts to choose, then all five"


def test_the_table_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    row = PeerRow("transformers", "8-bit", "lookup", 16, 8, 2560, 1234.5, 1234.1, 1234.9, 12.34, 11.11, 13.13, 20)
    Console(width=80).print(PeerReport([row], {}, {}, {}).table())
    shown = capsys.readouterr().out
    assert "…" not in shown and "transformers" in shown and "11.11-13.13" in shown


# -- workers ---------------------------------------------------------------------------------------------------------


def test_paceline_answers_alike_in_every_mode(root: Root, target: Path, tmp_path: Path) -> None:
    """What a scripted worker was asked, asked of the real one; also where the checkpoint wants a penalty, which other
    tools know nothing of."""
    root.script("paceline", {"None": [1]}, modes={"plain": [], "draft": [], "lookup": []})
    root.compare(batches=[2], max_tokens=12, num_prompts=2)
    lookup, draft, plain = (root.asked()[i : i + 3] for i in (0, 3, 6))
    assert [asked[0]["load"]["draft"] for asked in (plain, draft, lookup)] == [None, root.pair["draft"], None]
    penal = copytree(target, tmp_path / "penal")
    (penal / "generation_config.json").write_text('{"eos_token_id": 1, "repetition_penalty": 50.0}')
    lookup[0]["load"]["model"] = str(penal)
    root.add("paceline", "", worker=str(PEERS / "paceline_worker.py"))
    with worker(root, "paceline") as paceline:
        with pytest.raises(PeerError, match="paceline plain, bf16, batch 1 is left out: Nothing is loaded"):
            paceline.ask(plain[1])
        with pytest.raises(PeerError, match="mode"):
            paceline.ask({"load": {**plain[0]["load"], "mode": "mode"}})
        answers = [[paceline.ask(request) for request in asked] for asked in (plain, draft, lookup)]
    assert all(ready["ready"].keys() == {"paceline"} for ready, _, _ in answers)
    first, *others = ([short["ids"], full["ids"]] for _, short, full in answers)
    assert others == [first, first] and [len(ids) for ids in first] == [2, 2]
    assert all(0 < len(ids) <= 12 for ids in first[1]) and len(set(first[1][0])) < len(first[1][0])
    assert all(answer["seconds"] > 0 for _, *calls in answers for answer in calls)


def test_one_process_is_alive_at_a_time_and_nothing_stays(root: Root) -> None:
    """Every worker wants the same lock and ends slowly, leaving a child behind. What it prints is no answer."""
    code = (
        "import atexit, fcntl, subprocess, time; global one, two; one, two = (open({!r} + n, 'w') for n in 'ab'); "
        "fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB); fcntl.flock(two, fcntl.LOCK_SH); "
        "subprocess.Popen(['sleep', '99'], pass_fds=[two.fileno()]); atexit.register(time.sleep, 0.2)"
    ).format(str(root.path / "lock"))
    for name in ("paceline", "rival"):
        root.add(name, served(code, "print('noise', flush=True)"))
    report = root.compare()
    assert [row.peer for row in report.rows] == ["paceline", "rival"] and report.notes == []
    with open(root.path / "lockb", "w") as lock:
        for _ in range(100):
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sleep(0.05)
    pytest.fail("a worker's child outlived it")


FAILURES = {
    "raises while loading": (served("raise RuntimeError('no such kernel')"), "no such kernel"),
    "raises": (served(generate="raise MemoryError"), "MemoryError"),
    "dies": (served(generate="os.write(2, b'no room\\n\\n'); os._exit(3)"), "ended with code 3 (no room)."),
    "leaves": (served("sys.exit()"), "ended with code 0 (it said nothing)."),
    "too many": (served(generate="return [[1]] * (len(prompts) + 1)"), "did not answer every prompt."),
    "some for others": (served(generate="return [[1]] * (3 - len(prompts))"), "did not answer every prompt."),
    "empty answers": (served(generate="return [[] for prompt in prompts]"), "did not answer every prompt."),
    "no JSON": ("input(); print('hello')", "its worker answered 'hello\\n', not JSON with ready."),
    "no object": ("input(); print([1])", "its worker answered '[1]\\n', not JSON with ready."),
    "lacks a field": ("for _ in '12': input(); print('{\"ready\": {}}', flush=True)", "not JSON with ids and seconds."),
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_tool_that_fails_is_left_out_and_the_others_go_on(root: Root, how: str) -> None:
    script, says = FAILURES[how]
    root.add("rival", script)
    root.script("paceline", {"None": [1]})
    report = root.compare(batches=[2], num_prompts=3)
    assert [row.peer for row in report.rows] == ["paceline"]
    (note,) = report.notes
    assert note.startswith("rival plain, bf16, batch 2 is left out: ") and note.endswith(says)


def test_a_worker_that_cannot_start_or_never_answers(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    root.add("rival", served("import time; time.sleep(99)"))
    monkeypatch.setattr(peers, "WORKER_TIMEOUT_S", 0.1)
    with worker(root) as silent, pytest.raises(PeerError, match="ended with code -9"):
        silent.ask({"load": {}})
    root.entries["rival"]["python"] = root.entries["rival"]["worker"]
    root.save()
    with pytest.raises(InputError, match=r"Nothing could be measured: rival plain.* cannot be started \(Permission"):
        root.compare()


# -- what was set up -------------------------------------------------------------------------------------------------


def test_a_tool_that_is_not_set_up_is_named_with_what_to_run(root: Root) -> None:
    """peers.json as setup.sh writes it, before it has installed anything."""
    pair = [root.pair["model"], root.pair["draft"]]
    subprocess.run([sys.executable, PEERS / "register.py", root.path, *pair], check=True)
    found, notes = ready(root.path, read(root.wish()))
    assert list(found) == ["paceline", "transformers"]
    end = f"{root.path} --model {pair[0]} --draft {pair[1]}."
    assert notes[0].startswith(f"openvino is left out: {root.path}/openvino/bin/python is missing; run ")
    assert notes[0].endswith(f"run bench/peers/setup.sh openvino {end}")
    assert notes[1].endswith(f"/llama-server is missing; run bench/peers/setup.sh llamacpp {end}")
    assert notes[2].startswith("nodellama is left out: ") and notes[2].endswith(f"setup.sh nodellama {end}")
    assert notes[3].startswith("ikllama is left out: ") and notes[3].endswith(f"setup.sh ikllama {end}")
    assert notes[4] == found["transformers"]["note"] and len(notes) == 5


def test_only_some_weights_are_compared(root: Root) -> None:
    register = [sys.executable, PEERS / "register.py", root.path, root.pair["model"], root.pair["draft"]]
    subprocess.run([*register, "4-bit,8-bit"], check=True)
    entries = read(root.wish())["peers"]
    weights = {name: {*entry["models"]} for name, entry in entries.items()}
    both = {"4-bit", "8-bit"}
    four = {"4-bit"}
    assert weights == {"paceline": both, "openvino": both, "llamacpp": both, "nodellama": four, "ikllama": four}
    assert not any("bf16" in path or "fp16" in path for entry in entries.values() for path in entry["needs"])


@pytest.mark.parametrize(("text", "says"), [
    (None, "cannot be read .*; run bench/peers/setup.sh first"),
    ("{", "not as bench/peers/setup.sh writes it; run that again"),
    ("[]", "not as"),
    ('{"model": "a", "peers": {}}', "not as"),
    ('{"model": "a", "draft": null, "peers": {}}', "not as"),
    ('{"model": "a", "draft": "b", "peers": {"rival": {"python": null}}}', "not as"),
])  # fmt: skip
def test_a_bad_setup(root: Root, text: str | None, says: str) -> None:
    if text is not None:
        (root.path / "peers.json").write_text(text)
    with pytest.raises(InputError, match=says):
        root.compare()


def test_another_pair_and_bad_wishes(root: Root, target: Path, draft: Path) -> None:
    root.script("paceline", {"None": [1]})
    assert read(root.wish(model=target / ".." / target.name, draft=draft))["peers"].keys() == {"paceline"}
    for other in ({"model": draft}, {"draft": target}):
        (role,) = other
        with pytest.raises(InputError, match=f"set up for the {role} {root.pair[role]}, not {other[role]}; set it up"):
            read(root.wish(**other))
    bad: dict[str, Any]
    for bad in ({"batches": [1, 0]}, {"batches": []}, {"repeat": 0}, {"max_tokens": 0}, {"threads": 0}):
        with pytest.raises(InputError, match="must be at least 1"):
            root.wish(**bad)


# -- the command line ------------------------------------------------------------------------------------------------


def test_the_command(root: Root, tmp_path: Path) -> None:
    root.script("paceline", {"None": [1]})
    root.script("rival", {"None": [2]})
    root.add("broken", FAILURES["raises"][0])
    command = ["bench", "--peers", str(root.path), "--prompts", str(root.prompts), "--json", str(tmp_path / "out.json")]
    done = CliRunner().invoke(app, [*command, "--max-tokens", "4", "--repeat", "1", "--batch", "2", "--threads", "3"])
    assert done.exit_code == 0, (done.output, done.exception)
    own, rival = (line.split() for line in done.stdout.splitlines() if " plain " in line and "left" not in line)
    assert own == ["paceline", "bf16", "plain", "-", "2", "4.0", "4-4", "-", "-", "5"]
    assert rival == ["rival", "bf16", "plain", "-", "2", "2.0", "2-2", "2.00", "2.00-2.00", "5"]
    assert "broken plain, bf16, batch 2 is left out: MemoryError" in done.stdout
    assert [row["ratio"] for row in json.loads((tmp_path / "out.json").read_text())["rows"]] == [None, 2]
    assert {request["load"]["threads"] for request in root.asked() if "load" in request} == {3}


@pytest.mark.parametrize(("args", "says"), [
    (["--methods", "ngram"], "leave out --methods."),
    (["--temperature", "1"], "leave out --temperature."),
    (["--quantize", "int8"], "leave out --quantize."),
    (["--threads", "0"], "threads is 0"),
    (["--batch", "0"], "batch is 0"),
])  # fmt: skip
def test_what_the_command_refuses(root: Root, args: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["bench", "--peers", str(root.path), "--prompts", str(root.prompts), *args])
    assert done.exit_code == 2 and says in done.stderr
    without = CliRunner().invoke(app, ["bench", "--peers", str(root.path), *args])
    assert without.exit_code == 2 and "give --prompts" in without.stderr
