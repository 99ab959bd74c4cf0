"""Grammars that crash or stall a compiler cost their own request alone."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

from paceline.core.errors import BusyError, InputError
from paceline.core.grammar import LIMITS, Grammar
from paceline.core.stacks import THREAD_STACK_BYTES, TRIAL_STACK_BYTES, start_roomy
from paceline.core.trial import CPU_S, MOST_OF_ONE, TRIAL_CLIENT, TRIALS, Child, Lane, TrialClient, Trials, too_slow

PIECES = ['"a"', "b", "c", "/[a-z]{1,40}/", "/(x|y)*z/", "(b | c)", "b?", "c{1,3}", "start", "%json {}", "~4"]


def chain(n: int, last: str = '"x"') -> str:
    return "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(n)) + f"a{n}: {last}\n"


def defs(n: int) -> dict[str, Any]:
    made = {f"a{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(n)}
    return {"$ref": "#/$defs/a0", "$defs": {**made, f"a{n}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("lark", chain(3000)),
        ("lark", chain(3000, "a0")),
        ("json_schema", json.dumps(defs(1500))),
        ("regex", "|".join("a" * i + "b" for i in range(510))),
    ],
    ids=["chain", "circle", "schema", "slow"],
)
def test_this_process_lives(kind: Any, text: str) -> None:
    try:
        Grammar(kind, text)
    except InputError as error:
        assert len(str(error)) < 600
    assert Grammar("regex", "a+b").text == "a+b", "the next one is compiled"


def test_a_child_that_dies_is_replaced_and_its_verdict_kept() -> None:
    trials = Trials()
    source = json.dumps({"grammars": [{"lark_grammar": chain(3000)}]})
    first = trials.fault(source, {})
    assert "nested too deeply" in first and trials.fault(source, {}) == first
    assert trials.fault(json.dumps({"grammars": [{"lark_grammar": 'start: "x"'}]}), {}) == ""


def test_one_child_tries_many() -> None:
    Grammar("regex", "ab")
    child = TRIALS.small.child
    for i in range(30):
        Grammar("regex", f"a{{{i + 1}}}b")
    assert child is not None and TRIALS.small.child is child


def wait_in(lane: Lane, owner: str, order: list[str]) -> threading.Thread:
    def work() -> None:
        with lane.turn(TrialClient(owner)):
            order.append(owner)

    before = len(lane._waiting)
    thread = threading.Thread(target=work)
    thread.start()
    while len(lane._waiting) == before:
        time.sleep(0.001)
    return thread


def test_clients_take_turns_and_have_a_share() -> None:
    lane, order = Lane(), list[str]()
    with lane.turn(TrialClient("a")):
        threads = [wait_in(lane, "a", order) for _ in range(MOST_OF_ONE)]
        threads.append(wait_in(lane, "b", order))
        with pytest.raises(BusyError, match="try again"), lane.turn(TrialClient("a")):
            pass
    for thread in threads:
        thread.join()
    assert order == ["b", *"a" * MOST_OF_ONE]


def test_trial_of_a_client_that_left_is_not_begun() -> None:
    lane = Lane()
    with pytest.raises(BusyError, match="left"), lane.turn(TrialClient("a", lambda: True)):
        raise AssertionError
    with lane.turn(TrialClient("b")):
        assert not lane._waiting


def test_small_source_does_not_wait_for_a_large_one() -> None:
    trials = Trials()
    with trials.large.turn(TrialClient("a")):
        assert trials.fault(json.dumps({"grammars": [{"lark_grammar": 'start: "x"'}]}), {}) == ""


def test_slow_schema_has_one_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[float]()

    def slow(source: str, seconds: float = CPU_S) -> str:
        asked.append(seconds)
        return too_slow(seconds)

    monkeypatch.setattr("paceline.core.grammar.fault", slow)
    with pytest.raises(InputError, match="to compile"):
        Grammar("json_schema", json.dumps({"properties": {"a": {"type": "string"}, "b": {}}}))
    assert asked == [CPU_S]


def grammar(draw: random.Random) -> tuple[Any, str]:
    if draw.random() < 0.3:
        depth = draw.choice((1, 20, 99, 300))
        return "regex", "(" * depth + draw.choice(("a", "[a-z]{1,30}", ".*")) + draw.choice(
            (")", ")*", "){1,9}")
        ) * depth
    rules = draw.choice((2, 5, 300, 1200))
    names = [f"r{i}" for i in range(rules)]
    lines = [f"start: {draw.choice(names)}"]
    for i, name in enumerate(names):
        nearby = [names[min(rules - 1, i + 1)], names[draw.randrange(rules)], *PIECES]
        lines.append(f"{name}: " + draw.choice((" ", " | ")).join(draw.choices(nearby, k=draw.randrange(1, 4))))
    return "lark", "\n".join([*lines, 'b: "b"', "c: b"])


@pytest.mark.parametrize("count", [40, pytest.param(4000, marks=pytest.mark.full)])
def test_fuzzed_grammars_end_in_a_grammar_or_a_sentence(count: int) -> None:
    draw, pid = random.Random(7), os.getpid()
    for _ in range(count):
        try:
            Grammar(*grammar(draw))
        except InputError as error:
            assert str(error).endswith(".")
    assert os.getpid() == pid


def test_a_client_that_leaves_frees_the_lane() -> None:
    """Its grammar would take all its time, on a child that stands still."""
    lane, asked = Lane(), iter([False, False, True])
    lane.child = child = Child()
    os.kill(child._process.pid, signal.SIGSTOP)
    job = json.dumps({"source": "{}", "limits": {}, "seconds": 5.0}).encode()
    with lane.turn(TrialClient("a")), pytest.raises(BusyError, match="left"):
        lane.tried(job, 5.0, lambda: next(asked))
    assert child._process.poll() is not None and lane.child is None
    with lane.turn(TrialClient("b")):
        assert lane.tried(job, 5.0) != ""


def test_tenants_have_verdicts_of_their_own() -> None:
    trials, source = Trials(), Grammar("regex", "ab*").source()
    for tenant in ("a", "b", "a"):
        token = TRIAL_CLIENT.set(TrialClient(tenant, tenant=tenant))
        assert trials.fault(source, LIMITS) == ""
        TRIAL_CLIENT.reset(token)
    assert len(trials._known) == 2


def test_a_trial_has_a_quarter_of_a_small_stack() -> None:
    """`ulimit -s` gives each thread of a process its stack: what a child takes on more kills who compiles on less."""
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_STACK, (512 << 10, resource.RLIM_INFINITY))
        from paceline.core.stacks import trial_stack
        print(trial_stack())
        resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(trial_stack())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(128 << 10), str(TRIAL_STACK_BYTES)]


def test_threads_that_compile_have_a_stack_of_their_own() -> None:
    class Seen(threading.Thread):
        size = 0

        def start(self) -> None:
            self.size = threading.stack_size()
            super().start()

    usual, thread = threading.stack_size(), Seen()
    start_roomy(thread)
    thread.join()
    assert thread.size == THREAD_STACK_BYTES >= 4 * TRIAL_STACK_BYTES and threading.stack_size() == usual
