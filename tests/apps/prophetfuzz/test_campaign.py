"""AFL++ on the planted program: each bug is where it was planted, and is found under its options."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("httpx2", reason="the extra apps is not installed")

from paceline.apps.common.sandbox import unavailable
from paceline.apps.prophetfuzz.assemble import INPUT, FuzzCommand, FuzzPlan, distinct
from paceline.apps.prophetfuzz.box.driver import Campaign
from paceline.apps.prophetfuzz.campaign import (
    PLANTED,
    FuzzBudget,
    FuzzComparison,
    FuzzError,
    build,
    default_plan,
    dry,
    fuzz,
    missing,
)
from paceline.apps.prophetfuzz.show import campaign as page

pytestmark = [
    pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox can be made here: {unavailable()}"),
    pytest.mark.skipif(bool(missing()), reason=f"AFL++: {missing()}"),
]
TRIGGERS = {
    1: ("-r -m", b"P5"), 2: ("-s 17 -i", b"12345"), 3: ("-p -g", b"a9"), 4: ("-z -l 1", b"abc"), 5: ("-t -r", b" x"),
    6: ("-d 9 -p", b"123456789"), 7: ("-a -z", b"ab\n\n"), 8: ("-i -t -e", b"abcd"), 9: ("-m -z -s 2", b"aa"),
    10: ("-g -d 1 -a", b"!x"),
}  # fmt: skip


@pytest.fixture(scope="module")
def target() -> Iterator[bytes]:
    yield asyncio.run(build(PLANTED))


def plan(options: str, seed: bytes = b"zz") -> FuzzPlan:
    return FuzzPlan("inkpress", (FuzzCommand((), (*options.split(), INPUT)),), distinct({"seed": seed}))


def test_ten_bugs_are_planted_each_behind_its_options(target: bytes, tmp_path: Path) -> None:
    program = tmp_path / "inkpress"
    program.write_bytes(target)
    program.chmod(0o755)
    for number, (options, data) in TRIGGERS.items():
        (tmp_path / "in").write_bytes(data)
        done = subprocess.run([program, *options.split(), tmp_path / "in"], capture_output=True, text=True)
        assert f"in planted_{number} " in done.stderr, (number, done.stderr[-500:])
        for some in (options.split()[0], ""):
            fewer = [a for a in options.split() if a != some] if some else []
            if fewer != options.split() and (not fewer or fewer[0].startswith("-")):
                done = subprocess.run([program, *fewer, tmp_path / "in"], capture_output=True, text=True)
                assert f"in planted_{number} " not in done.stderr, (number, fewer)


def test_a_bug_is_found_under_its_options_with_a_reproducer(target: bytes, tmp_path: Path) -> None:
    both = FuzzPlan("inkpress", (*plan("-g").commands, *plan("-g -p").commands), distinct({"seed": b"11"}))
    result = asyncio.run(fuzz(both, target, FuzzBudget(seconds=6, slice_s=2, persistent=True)))
    [crash] = result.crashes
    assert crash.frames[0] == "planted_3" and crash.kind == "stack-buffer-overflow"
    assert crash.command.args == ("-g", "-p", "@@") and crash.input[1] > ord("4")
    assert result.execs > 100 and result.limit is None
    made = page("inkpress", result, tmp_path, {})
    assert "planted_3" in made.html() and (tmp_path / f"crash-{crash.hash}").read_bytes() == crash.input


def test_seeds_that_crash_are_found_at_once_and_bad_commands_are_said_to_fail(target: bytes) -> None:
    several = FuzzPlan("inkpress", (*plan("-r -i").commands, *plan("-r -m").commands), distinct({"seed": b"P5"}))
    result = asyncio.run(fuzz(several, target, FuzzBudget(seconds=3, slice_s=1, persistent=True)))
    assert [c.frames[0] for c in result.crashes] == ["planted_1"]
    assert result.rows[0]["state"].startswith("failed") and result.rows[1]["state"] == "runs"


def test_comparison_counts_bugs_of_each_strategy(target: bytes) -> None:
    done = FuzzComparison()
    plans = {"no options": [default_plan("inkpress")], "predicted": [plan("-z -l 1", b"abc")]}
    asyncio.run(done.run(plans, target, FuzzBudget(seconds=2, slice_s=1, persistent=True), lambda: None))
    assert [(r["strategy"], r["found"], r["ever"]) for r in done.rows()] == [
        ("no options", [0], []), ("predicted", [1], ["planted_4"])
    ]  # fmt: skip


def test_a_campaign_that_ran_nothing_is_an_error_and_no_result(target: bytes) -> None:
    with pytest.raises(FuzzError, match=r"has run nothing in .*failed: "):
        asyncio.run(fuzz(plan("-g"), b"#!/bin/sh\nexit 0\n", FuzzBudget(seconds=2, slice_s=1)))


@pytest.mark.parametrize(
    ("body", "limit"),
    [("while (1) fork();", "processes"), ("for (int i = 0; ; i++) { char n[9]; sprintf(n, \"f%d\", i % 999); "
      "FILE *f = fopen(n, \"w\"); for (int k = 0; f && k < 1 << 20; k++) fputc(1, f); }", "disk")],
)  # fmt: skip
def test_a_target_that_runs_wild_is_held_by_the_sandbox(body: str, limit: str, tmp_path: Path) -> None:
    source = tmp_path / "wild.c"
    source.write_text(f"#include <stdio.h>\n#include <unistd.h>\nint main(void) {{ {body} return 0; }}\n")
    wild = asyncio.run(build(source))
    result = asyncio.run(fuzz(plan("-x"), wild, FuzzBudget(seconds=3, slice_s=1, disk_mb=16)))
    assert result.limit == limit and result.seconds < 60


def test_a_program_without_instrumentation_is_fuzzed_blindly() -> None:
    commands = FuzzPlan("gzip", plan("-c").commands, distinct({"seed": b"x"}))
    result = asyncio.run(fuzz(commands, Path("/bin/gzip"), FuzzBudget(seconds=4, slice_s=2, blind=True)))
    assert result.rows[0]["state"] == "runs" and result.execs > 0 and result.crashes == ()


READER = """#include <stdio.h>
#include <string.h>
int main(int count, char **given) {
  char key[8] = "", line[16];
  FILE *further = count > 2 ? fopen(given[2], "r") : NULL;
  if (further && !fgets(key, sizeof key, further)) return 1;
  if (!fgets(line, sizeof line, stdin)) return 0;
  char *volatile gone = NULL;
  if (count > 1 && !strcmp(given[1], "-k") && line[0] == key[0] && line[1] == key[1]) *gone = 1;
  return 0;
}
"""


def test_a_program_that_reads_standard_input_and_a_further_file(tmp_path: Path) -> None:
    """The bug needs an option that is given the file, and the file's first bytes on standard input."""
    source = tmp_path / "reader.c"
    source.write_text(READER)
    built = asyncio.run(build(source))
    commands = tuple(FuzzCommand((), args) for args in ((), ("-k", "key.txt")))
    several = FuzzPlan("reader", commands, distinct({"seed": b"zz"}), {"key.txt": b"q7"})
    usable, dropped = asyncio.run(dry(several, built))
    assert usable == several and not dropped
    again = FuzzPlan.of(several.as_dict())
    assert again.files == several.files and again.commands == commands
    found = asyncio.run(fuzz(FuzzPlan.of({**several.as_dict(), "seeds": {"s": b"q7".hex()}}), built,
                             FuzzBudget(seconds=4, slice_s=1)))  # fmt: skip
    [crash] = found.crashes
    assert crash.command.args == ("-k", "key.txt") and crash.input.startswith(b"q7")
    seconds, edges = zip(*found.curve)
    assert list(seconds) == sorted(seconds) and list(edges) == sorted(edges) and edges[0] > 0
    html = page("reader", found, tmp_path, {}).html()
    assert "reader -k key.txt &lt; " in html and "Coverage" in html


def test_afl_resumes_with_what_another_command_found(
    target: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "target").write_bytes(target)
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds/one").write_bytes(b"zz")
    made = Campaign({"commands": [["-g", "@@"], ["-t", "@@"]], "target": "./target", "persistent": True, "seconds": 60,
                     "slice": 1, "seed": 0, "blind": False})  # fmt: skip
    command = made.commands[0]
    made.slice(command)
    theirs = tmp_path / "out/1/default/queue/id:000009,src:000000,op:havoc,+cov"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    before = command.execs
    made.slice(command)
    assert command.state == "runs" and command.execs > before > 0
    assert b"theirs" in [path.read_bytes() for path in (tmp_path / "out/0/default/queue").glob("id:*,orig:*")]


def test_an_input_that_one_command_found_is_given_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seeds").mkdir()
    made = Campaign({"commands": [["-a"], ["-b"]], "target": "/bin/true", "persistent": False, "seconds": 1})
    for number in (0, 1):
        (tmp_path / f"out/{number}/default/queue").mkdir(parents=True)
    theirs = tmp_path / "out/0/default/queue/id:000001,src:000000,op:havoc,+cov"
    theirs.write_bytes(b"new")
    (theirs.parent / "id:000000,orig:seed").write_bytes(b"old")
    for _ in range(2):
        made.share(made.commands[1])
    queue = tmp_path / "out/1/default/queue"
    assert [path.read_bytes() for path in queue.iterdir()] == [b"new"]
    made.share(made.commands[0])
    assert len([*theirs.parent.iterdir()]) == 2, "its own inputs do not come back"
