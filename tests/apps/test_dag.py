"""The graph of tasks: order, deadlines, defaults, processes, and a log that can be replayed."""

import asyncio
import json
from pathlib import Path

import pytest

from paceline.apps.common.ask import Prompt, ask
from paceline.apps.common.client import AppClient
from paceline.apps.common.dag import Dag, NodeError, gather
from paceline.apps.common.forms import choice
from paceline.apps.common.tape import Tape, TapeError
from tests.apps.scripted import scripted


async def add(*numbers: int) -> int:
    return sum(numbers)


async def forever() -> int:
    await asyncio.Event().wait()
    return 0


async def broken() -> int:
    raise ValueError("no")


def square(x: int) -> int:
    return x * x


async def test_arguments_that_are_nodes_stand_for_their_values() -> None:
    async with Dag() as dag:
        two = dag.node("two", add, 1, 1)
        four = dag.work("four", square, two)
        assert await dag.node("sum", add, two, four) == 6
    assert [(n["name"], n["status"], n["after"]) for n in dag.report()] == [
        ("two", "done", []), ("four", "done", ["two"]), ("sum", "done", ["two", "four"])
    ]  # fmt: skip


async def test_what_needs_a_failed_node_is_skipped_unless_it_has_a_default() -> None:
    async with Dag() as dag:
        bad = dag.node("bad", broken)
        skipped = dag.node("skipped", add, bad)
        assert await dag.node("default", add, bad, default=7) == 7
        with pytest.raises(NodeError, match="needs bad, which is failed"):
            await skipped
    assert [(n.status, n.defaulted) for n in dag.nodes] == [("failed", False), ("skipped", False), ("skipped", True)]
    assert "ValueError: no" in dag.nodes[0].reason


async def test_deadlines_of_a_node_and_of_the_graph() -> None:
    async with Dag(deadline_s=0.2) as dag:
        late = dag.node("late", forever, within_s=0.05)
        last = dag.node("last", forever)
        fine = dag.node("fine", add, 1)
    assert [late.status, last.status, fine.status] == ["late", "late", "done"]
    assert late.ended is not None and last.ended is not None and late.ended < last.ended


async def test_an_exception_in_the_body_ends_all_nodes() -> None:
    with pytest.raises(KeyError):
        async with Dag() as dag:
            dag.node("endless", forever)
            raise KeyError
    assert dag.nodes[0].status != "done"


async def test_gather_keeps_order_and_width() -> None:
    running, most = 0, 0

    async def one(x: int) -> int:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0.001 * (5 - x))
        running -= 1
        return x

    assert await gather(one, range(5), width=2) == [0, 1, 2, 3, 4]
    assert most == 2


async def test_a_log_replays_without_its_server(tmp_path: Path) -> None:
    log, replies = tmp_path / "log.jsonl", iter(["a", "b"])

    async def use(client: AppClient) -> list[str | None]:
        return [(await ask(client, choice("a", "b"), Prompt("?"))).value for _ in range(2)]

    with scripted(lambda body: next(replies)) as (url, _):
        tape = Tape.record(log)
        async with AppClient(url, api_key="secret", tape=tape) as client, Dag(tape=tape) as dag:
            first = await dag.node("use", use, client)
        tape.close()
    async with AppClient(url, tape=Tape.replay(log)) as client:
        assert await use(client) == first == ["a", "b"]
        assert client.tally.usage.prompt == 20
        with pytest.raises(TapeError, match="no further reply"):
            await ask(client, choice("a"), Prompt("something else"))
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == ["call", "call", "call", "node"]
    assert "secret" not in log.read_text()
    with pytest.raises(TapeError, match="not a log of calls"):
        Tape.replay(tmp_path / "absent")
