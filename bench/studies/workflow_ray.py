"""Text-to-SQL questions with deadlines over two Ray actors, one slowed down: HexGen against round robin.

    python bench/studies/workflow_ray.py --questions spider_dev_14db.jsonl --databases DIR [--model M --draft D]

The same questions, at the same times, under each policy in turns; the deadline is --scale times what six at once take.
In the last run an engine is killed in the middle (--kill). Every answer is counted; every run's log is written,
read back from --out and replayed by the simulator's dispatcher, which must decide the same.
"""

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import uvicorn

from paceline.apps.common.client import AppClient
from paceline.apps.text2sql.database import Database, open_database
from paceline.apps.text2sql.evaluate import SQL_WIDE, SqlQuestion, read_questions
from paceline.apps.text2sql.pipeline import SqlPipeline, SqlPlan
from paceline.apps.text2sql.retrieve import Index, build
from paceline.apps.text2sql.schema import read_schema
from paceline.cluster.control.controller import Controller
from paceline.cluster.control.ray_engine import RayEngine
from paceline.cluster.control.router import create
from paceline.cluster.workflow.log import Event, WorkflowRecorder, read, replay, write
from paceline.cluster.workflow.policies import DispatcherSetup

PRIOR = {"engine": (0.05, 0.5, 10.0)}


class Runs:
    """Policies over the same two actors."""

    def __init__(self, engines: dict[str, RayEngine], folder: Path, port: int, plan: SqlPlan, out: Path) -> None:
        self.engines, self.folder, self.port, self.plan, self.out = engines, folder, port, plan, out
        self.known: dict[str, tuple[Database, Index]] = {}
        self.number = 0

    def database(self, name: str) -> tuple[Database, Index]:
        if name not in self.known:
            opened = open_database(self.folder / f"{name}.sqlite")
            self.known[name] = opened, build(opened, read_schema(opened))
        return self.known[name]

    async def run(
        self, policy: str, questions: list[SqlQuestion], every: float, deadline: float, kill: int | None = None
    ) -> dict[str, Any]:
        """`kill`: number of answered questions after which the fast engine dies."""
        setup = DispatcherSetup(policy, tuple((name, "engine", 2) for name in self.engines), PRIOR)
        self.number += 1
        log = self.out / f"{self.number}-{policy}.jsonl"
        controller = Controller(setup.dispatcher(), self.engines)
        controller.dispatcher.watchers.append(WorkflowRecorder(setup, write(log)))
        server = uvicorn.Server(uvicorn.Config(create(controller), "127.0.0.1", self.port, log_level="error"))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.05)
        took: list[float] = []
        async with AppClient(f"http://127.0.0.1:{self.port}", concurrency=64) as client:

            async def one(number: int, question: SqlQuestion) -> None:
                await asyncio.sleep(every * number)
                plan = replace(self.plan, deadline_s=deadline)
                done = await SqlPipeline(client, *self.database(question.database), plan).answer(question.text)
                took.append(done.seconds)
                if kill is not None and len(took) == kill:
                    self.engines["quick"].actor.leave.remote()

            began = monotonic()
            await asyncio.gather(*(one(n, q) for n, q in enumerate(questions)))
            wall = monotonic() - began
            refused = {k: n for k, n in client.tally.outcomes.items() if "unreachable" in k or "server" in k}
        await controller.close()
        server.should_exit = True
        await serving
        events: list[Event] = list(read(log))
        finished = [event["id"] for event in events if event["event"] == "finish"]
        called = [task["id"] for event in events if event["event"] == "extend" for task in event["tasks"]]
        return {
            "attainment": float(np.mean([s <= deadline for s in took])), "p95": float(np.percentile(took, 95)),
            "mean": float(np.mean(took)), "wall": wall, "answered": len(took), "calls": len(called),
            "finished once": sorted(called) == sorted(finished), "by engine": dict(controller.answered),
            "given up": sum(event["event"] == "finish" and event["attempt"] > 1 for event in events),
            "errors": refused, "decisions": sum(len(event.get("starts", ())) for event in events),
            "replays": replay(events) or "equal",
        }  # fmt: skip


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--databases", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--draft")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--slow", type=float, default=3.0, help="times a call's duration that the slow engine adds")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--scale", type=float, default=2.0, help="deadline over the mean of the first questions")
    parser.add_argument("--first", type=int, default=6, help="questions at once that set pace and deadline")
    parser.add_argument("--seconds", type=float, help="fewer questions, so that they come within so long a run")
    parser.add_argument("--kill", action="store_true", help="a last run whose quick engine is killed")
    parser.add_argument("--out", type=Path, default=Path("workflow-ray"), help="folder of the logs")
    parser.add_argument("--load", type=float, default=0.6, help="arrival rate, times the duration of one question")
    parser.add_argument("--whole", action="store_true", help="keywords and unit tests too")
    parser.add_argument("--candidates", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=24, help="of a candidate, at most")
    parser.add_argument("--port", type=int, default=8123)
    given = parser.parse_args()
    options: dict[str, Any] = {"blocks": 600}
    if given.model:
        options = {"model": given.model, "draft": given.draft, "quantize": "int8", "memory": "3G"}
    engines = {
        "quick": RayEngine(options, "demo", cpus=0.5), "slow": RayEngine(options, "demo", given.slow, cpus=0.5)
    }  # fmt: skip
    for engine in engines.values():
        await engine.actor.ready.remote()
    plan = SqlPlan(given.candidates, 1, given.whole, given.whole, max_tokens=given.tokens, limits=SQL_WIDE)
    given.out.mkdir(parents=True, exist_ok=True)
    runs = Runs(engines, given.databases, given.port, plan, given.out)
    questions = read_questions(given.questions, given.count)
    alone = await runs.run("hexgen", questions[:: max(1, len(questions) // given.first)][: given.first], 0.0, 1e6)
    every, deadline = alone["wall"] / given.first / given.load, given.scale * alone["mean"]
    if given.seconds is not None:
        questions = read_questions(given.questions, max(1, min(given.count, int(given.seconds / every))))
    print(f"{len(questions)} questions, one every {every:.2f} s; deadline {deadline:.2f} s; {alone}", flush=True)
    for number in range(given.rounds):
        for policy in ("hexgen", "rr+fcfs") if number % 2 == 0 else ("rr+fcfs", "hexgen"):
            print(policy, await runs.run(policy, questions, every, deadline), flush=True)
    if given.kill:
        print("with a kill:", await runs.run("hexgen", questions, every, deadline, kill=len(questions) // 3))


if __name__ == "__main__":
    asyncio.run(main())
