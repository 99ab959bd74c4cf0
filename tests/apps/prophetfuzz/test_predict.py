"""Constraints, combinations and commands, with a server that answers by script."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("httpx2", reason="the extra apps is not installed")

from paceline.apps.common.client import AppClient
from paceline.apps.common.sandbox import unavailable
from paceline.apps.prophetfuzz.assemble import INPUT, Around, FuzzPlan, assemble, command, distinct, written
from paceline.apps.prophetfuzz.combine import at_random, prediction, ranked
from paceline.apps.prophetfuzz.constraints import Constraints, Relation, extract
from paceline.apps.prophetfuzz.manual import Manual, Option
from tests.apps.scripted import scripted

T = TypeVar("T")
MANUAL = Manual(
    "tool", "does things", "tool [OPTION]... FILE",
    tuple(Option(f"--{w}", (f"-{w[0]}", f"--{w}"), "N" if w == "scale" else "", f"{w} it.") for w in
          ("all", "both", "crop", "deep", "scale", "even")),
)  # fmt: skip


def with_client(script: Callable[[dict[str, Any]], Any], use: Callable[[AppClient], Awaitable[T]]) -> T:
    async def go(url: str) -> T:
        async with AppClient(url) as client:
            return await use(client)

    with scripted(script) as (url, _):
        return asyncio.run(go(url))


def conflict(*of: str) -> Relation:
    return Relation("conflict", of)


def test_a_relation_stays_when_at_least_half_of_the_votes_answer_both_ways_rightly() -> None:
    said = {
        "conflicts": [{"first": "-a", "second": "--both"}, {"first": "--crop", "second": "-c"},
                      {"first": "-a", "second": "-x"}, {"first": "--deep", "second": "--even"}],
        "dependencies": [{"option": "-d", "kind": "any", "needs": ["--all", "--nothing"]}],
    }  # fmt: skip
    right, wrong = '{"first":"yes","second":"no"}', '{"first":"yes","second":"yes"}'

    def script(body: dict[str, Any]) -> list[str]:
        asked = body["messages"][-1]["content"]
        if "first:" not in asked:
            return [json.dumps(said)] * body["n"]
        return [right, wrong, right, wrong] if "--both" in asked or "all of" in asked else [wrong] * 3 + ["{"]

    found = with_client(script, lambda c: extract(c, MANUAL, 2, 4, None))
    assert set(found.relations) == {conflict("--all", "--both"), Relation("all", ("--deep", "--all"))}
    assert found.votes == {
        conflict("--all", "--both"): (2, 4), conflict("--deep", "--even"): (0, 3),
        Relation("all", ("--deep", "--all")): (2, 4),
    }  # fmt: skip


def test_dependencies_are_repaired_through_chains_and_circles() -> None:
    rules = Constraints((
        Relation("all", ("a", "b", "c")), Relation("any", ("c", "d", "e")), Relation("all", ("b", "a")),
        conflict("a", "e"),
    ))  # fmt: skip
    assert rules.repaired({"a"}) == [frozenset("abcd")]
    assert rules.repaired({"c", "e"}) == [frozenset("ce")]
    assert rules.repaired({"a", "e"}) == []


NAMES = st.sampled_from("abcdefg")


@st.composite
def relations(draw: st.DrawFn) -> Relation:
    kind = draw(st.sampled_from(["conflict", "all", "any"]))
    of = draw(st.lists(NAMES, min_size=2, max_size=2 if kind == "conflict" else 4, unique=True))
    return Relation(kind, tuple(of))  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(st.lists(relations(), max_size=8), st.sets(NAMES, min_size=1, max_size=4))
def test_nothing_that_is_repaired_breaks_a_rule(rules: list[Relation], chosen: set[str]) -> None:
    constraints = Constraints(tuple(dict.fromkeys(rules)))
    for repaired in constraints.repaired(chosen):
        assert constraints.broken(repaired) is None and repaired >= chosen


def test_combinations_are_normalised_repaired_and_counted() -> None:
    rules = Constraints((Relation("all", ("--crop", "--deep")), conflict("--all", "--both")))
    said = [["-c", "--even"], ["--even", "-c=3"], ["-a", "-b"], ["-a", "--nothing"], ["-s", "-a", "-a"]]
    assert [(r.options, r.count) for r in ranked(said, MANUAL, rules)] == [
        (("--crop", "--deep", "--even"), 2), (("--all", "--scale"), 1)
    ]  # fmt: skip


def test_a_sample_can_name_the_programs_own_options_only() -> None:
    form = prediction(MANUAL)
    assert form.model_validate({"reason": "", "combinations": [["-a", "--both"]]}).combinations == [["-a", "--both"]]
    for wrong in (["-a"], ["-a", "--bothh"], ["--help", "-a"], ["-a", "-b", "-c", "-d", "-e"]):
        with pytest.raises(ValueError, match="combinations"):
            form.model_validate({"reason": "", "combinations": [wrong]})
    helps = Manual("tool", "", "", (Option("--help", ("--help",), "", ""),))
    assert prediction(helps).model_validate({"reason": "", "combinations": [["x"]]})


def test_random_combinations_differ_and_repeat_by_seed() -> None:
    first = at_random(MANUAL, 8, 3)
    assert first == at_random(MANUAL, 8, 3) != at_random(MANUAL, 8, 4)
    assert len({r.options for r in first}) == 8 and all(2 <= len(r.options) <= 4 for r in first)


def test_commands_spell_values_as_options_want_them() -> None:
    tie = Option("--tie", ("--tie",), "WORD", "")
    made = command([MANUAL.options[0], MANUAL.options[4], tie], {"--scale": "7", "--tie": "x"})
    assert made.args == ("--all", "-s", "7", "--tie=x", INPUT)
    assert made.text("tool") == "tool --all -s 7 --tie=x @@"


@pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox can be made here: {unavailable()}")
def test_assembly_reports_what_it_leaves_out() -> None:
    def script(body: dict[str, Any]) -> str:
        asked = body["messages"][-1]["content"]
        if "Python program" in asked:
            return json.dumps({"program": "open('file0', 'w').write(json.dumps([1]))\nopen('file1', 'w').write('[1]')"})
        return json.dumps({"value0": "; rm"})

    risky = ranked([["-s", "-a"], ["-a", "-b"], ["-b", "-a"]], MANUAL, Constraints(()))
    made = with_client(script, lambda c: assemble(c, MANUAL, risky, seeds={"given": b"[1]"}))
    assert [c.args for c in made.commands] == [("--all", "--both", "@@"), ("--all", "-s", "1", "@@")]
    assert made.commands[1].problem == "unusable value of --scale"
    assert list(made.seeds.values()) == [b"[1]"] and made.problems == ()
    assert (
        FuzzPlan.of(json.loads(json.dumps(FuzzPlan("tool", made.commands, made.seeds).as_dict()))).commands
        == made.commands
    )


@pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox can be made here: {unavailable()}")
@pytest.mark.parametrize(
    ("program", "problem"),
    [("open('x', 'w'", "SyntaxError"), ("pass", "wrote nothing"), ("1 / 0", "ZeroDivisionError"),
     ("while True: pass", ""), ("open('/etc/x', 'w')", "Error"), ("nothing_known()", "NameError")],
)  # fmt: skip
def test_a_program_for_seeds_that_fails_says_why(program: str, problem: str) -> None:
    files, said = asyncio.run(written(program))
    assert files == {} and problem in said


def test_seeds_are_distinct_and_safely_named() -> None:
    assert distinct({"a": b"1", "b": b"1", "../c d": b"2"}) == {"00_a": b"1", "01__c_d": b"2"}


@pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox can be made here: {unavailable()}")
def test_several_values_and_further_files_for_a_program_that_reads_standard_input() -> None:
    asked = list[str]()

    def script(body: dict[str, Any]) -> str:
        asked.append(body["messages"][-1]["content"])
        return json.dumps({"program": "1"} if "Python program" in asked[-1] else {"value0": f"words{body['seed']}.txt"})

    around = Around({"words0.txt": b"a"}, stdin=True, values=3)
    made = with_client(script, lambda c: assemble(c, MANUAL, ranked([["-s", "-a"]], MANUAL, Constraints(())), around))
    assert [c.args for c in made.commands] == [("--all", "-s", f"words{n}.txt") for n in range(3)]
    assert "Files in the working directory: words0.txt" in asked[0]


@pytest.mark.parametrize("name", ["../x", "a/b", "target", "driver.py", ".hidden", "-o", "a b", ""])
def test_a_further_file_cannot_take_a_campaigns_own_name(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        FuzzPlan.of({**FuzzPlan("tool", ()).as_dict(), "files": {name: "00"}})
