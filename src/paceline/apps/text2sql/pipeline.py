"""From a question to a query and its table: retrieve, draft in parallel, revise on errors, test, choose (as CHESS,
arXiv 2405.16755)."""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..common.ask import AppAnswer, AppSettings, Prompt, ask
from ..common.client import AppClient
from ..common.forms import AppText, Choice, Form, Json
from . import prompts
from .database import Database, QueryError, SqlLimits, SqlResult
from .retrieve import Index, phrases
from .schema import requoted

T = TypeVar("T")
SQL_LIMITS = SqlLimits()


@dataclass(frozen=True, slots=True)
class SqlPlan:
    """How much is done for a question. One candidate, no revision and no tests is single-shot."""

    candidates: int = 3
    rounds: int = 2
    """Maximum number of revision rounds."""
    tests: bool = True
    keywords: bool = True
    heat: float = 0.7
    """Temperature of candidates after the first."""
    max_tokens: int = 300
    limits: SqlLimits = SQL_LIMITS
    deadline_s: float | None = None
    """Deadline of the whole question, in seconds; sent to the server if it plans workflows (`paceline route`)."""


SQL_SINGLE = SqlPlan(1, 0, False, False)


@dataclass(slots=True)
class SqlStep:
    """One stage, for the trace: seconds since the question, and its result."""

    name: str
    began: float
    seconds: float = 0.0
    calls: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Candidate:
    sql: str
    result: SqlResult | None = None
    problem: str = ""
    revised: int = 0
    passed: float = 0.0

    @property
    def key(self) -> Any:
        """Candidates with the same table agree."""
        return None if self.result is None else frozenset(Counter(map(repr, self.result.rows)).items())


@dataclass(slots=True)
class Answered:
    """The chosen query with its table; `problem` where there is none."""

    question: str
    sql: str
    result: SqlResult | None
    problem: str
    trace: list[SqlStep]
    candidates: list[Candidate]
    seconds: float = 0.0


@dataclass(slots=True)
class SqlPipeline:
    """One database, asked through one client."""

    client: AppClient
    database: Database
    index: Index
    plan: SqlPlan = SqlPlan()

    async def answer(self, question: str, before: tuple[str, str] | None = None) -> Answered:
        """`before`: the question that this one corrects or continues, and its query."""
        run = Run(self, question, before)
        await run.all()
        best = run.best
        done = Answered(question, best.sql, best.result, best.problem, run.trace, run.candidates)
        done.seconds = time.monotonic() - run.began
        return done


class Run:
    """One question on its way."""

    def __init__(self, pipeline: SqlPipeline, question: str, before: tuple[str, str] | None = None) -> None:
        self.p, self.question, self.words = pipeline, question, question
        if before is not None:
            self.words = f"{before[0]} {question}"
            self.question = f"{question}\n(This corrects or continues: {before[0]!r}, answered by: {before[1]})"
        self.id, self.began = uuid.uuid4().hex[:12], time.monotonic()
        self.trace: list[SqlStep] = []
        self.candidates: list[Candidate] = []
        self.schema = ""
        self.best = Candidate("", problem="No candidate was drafted.")

    async def all(self) -> None:
        words, columns = await self.keywords()
        for columns_shown, examples in SQL_SIZES:
            self.retrieve(words, columns, columns_shown, examples)
            await self.draft()
            if not any("context" in each.problem for each in self.candidates):
                break
        for number in range(self.p.plan.rounds):
            if not await self.revise(number):
                break
        self.best = await self.choose()

    async def keywords(self) -> tuple[list[str], list[str]]:
        own = phrases(self.words)
        if not self.p.plan.keywords:
            return own, own
        with self.step("keywords") as step:
            bare = self.p.index.schema.show({})
            prompt = prompts.keywords(self.p.database.dialect, bare, self.question)
            answer = await self.ask(step, Json(prompts.Keywords), prompt, 120)
            found = answer.value
            step.notes.append(str(found.model_dump() if found else f"none: {answer.detail}")[:300])
        return (own + found.values, own + found.columns) if found else (own, own)

    def retrieve(self, words: Sequence[str], columns: Sequence[str], most: int, examples: int) -> None:
        with self.step("retrieve") as step:
            found = self.p.index.near(words, most)
            kept = {column.full for column in self.p.index.columns(columns, most)} | {column for column, _ in found}
            self.schema = self.p.index.schema.show(self.p.index.examples(found, examples), kept)
            step.notes += [f"{column} = {value!r}" for column, value in found[:5]]

    async def draft(self) -> None:
        with self.step("candidates") as step:

            async def one(number: int) -> Candidate:
                prompt = prompts.candidate(self.p.database.dialect, self.schema, self.question, number)
                heat = self.p.plan.heat if number else 0.0
                answer = await self.ask(step, AppText(), prompt, self.p.plan.max_tokens, heat, number)
                return await self.tried(answer)

            self.candidates = await together(one(n) for n in range(self.p.plan.candidates))
            step.notes += [outline(each) for each in self.candidates]

    async def revise(self, number: int) -> bool:
        """Does each failed candidate over; True if there was one."""
        failed = [at for at, each in enumerate(self.candidates) if self._failed(each)]
        if not failed:
            return False
        with self.step("revise") as step:

            async def one(at: int) -> Candidate:
                old = self.candidates[at]
                problem = old.problem or "it returns no rows, though the question expects some."
                prompt = prompts.revise(self.p.database.dialect, self.schema, self.question, old.sql, problem)
                answer = await self.ask(
                    step, AppText(), prompt, self.p.plan.max_tokens, 0.0 if number == 0 else 0.5, at
                )
                new = await self.tried(answer)
                new.revised = old.revised + 1
                return new if new.result is not None or old.result is None else old

            for at, new in zip(failed, await together(one(at) for at in failed)):
                self.candidates[at] = new
            step.notes += [outline(self.candidates[at]) for at in failed]
        return True

    @staticmethod
    def _failed(candidate: Candidate) -> bool:
        return candidate.result is None or (not candidate.result.rows and candidate.revised == 0)

    async def choose(self) -> Candidate:
        """The candidate whose table passes most tests; among equals, that on which most agree, then the first."""
        good = [each for each in self.candidates if each.result is not None]
        if not good:
            return self.candidates[0] if self.candidates else self.best
        groups: list[list[Candidate]] = []
        for each in good:
            match = next((g for g in groups if g[0].key == each.key), None)
            groups.append([each]) if match is None else match.append(each)
        if len(groups) > 1 and self.p.plan.tests:
            await self.test(groups)
        groups.sort(key=worth)
        return groups[0][0]

    async def test(self, groups: Sequence[Sequence[Candidate]]) -> None:
        options = [(g[0].sql, g[0].result) for g in groups if g[0].result is not None]
        dialect = self.p.database.dialect
        with self.step("unit_tests") as step:
            prompt = prompts.unit_tests(dialect, self.schema, self.question, options)
            answer = await self.ask(step, Json(prompts.UnitTests), prompt, 200)
            tests = answer.value.tests if answer.value else []
            step.notes += tests or [f"none: {answer.detail}"]
        with self.step("run_tests") as step:

            async def one(option: tuple[str, SqlResult], test: str) -> float:
                prompt = prompts.run_test(dialect, self.schema, self.question, option, test)
                answer = await self.ask(step, Choice(("yes", "no")), prompt, 4)
                return answer.probabilities.get("yes", float(answer.value == "yes"))

            scores = await together(one(option, test) for option in options for test in tests)
            for at, group in enumerate(groups):
                own = scores[at * len(tests) : (at + 1) * len(tests)]
                for each in group:
                    each.passed = round(sum(own) / len(own), 2) if own else 0.0
                step.notes.append(f"{outline(group[0])}: {group[0].passed}")

    async def tried(self, answer: AppAnswer[str]) -> Candidate:
        """An answer's query, run."""
        if answer.value is None:
            return Candidate("", problem=f"The server gave no answer ({answer.problem}): {answer.detail}")
        sql = prompts.extract(answer.value)
        first = await self.run(sql)
        quoted = requoted(sql, self.p.index.schema)
        if first.result is None and quoted != sql and (second := await self.run(quoted)).result is not None:
            return second
        return first

    async def run(self, sql: str) -> Candidate:
        try:
            return Candidate(sql, await asyncio.to_thread(self.p.database.run, sql, self.p.plan.limits))
        except QueryError as error:
            return Candidate(sql, problem=str(error))

    async def ask(
        self, step: SqlStep, form: Form[T], prompt: Prompt, tokens: int, heat: float = 0.0, seed: int = 0
    ) -> AppAnswer[T]:
        step.calls += 1
        more: dict[str, Any] = {}
        left = None
        if self.p.plan.deadline_s is not None:
            left = self.p.plan.deadline_s - (time.monotonic() - self.began)
            expected = EXPECTED[EXPECTED.index(step.name) + 1 :]
            more["workflow"] = {"id": self.id, "step": step.name, "deadline_s": left, "expected": expected}
        return await ask(
            self.p.client, form, prompt,
            AppSettings(
                max_tokens=tokens, temperature=heat, seed=seed, retries=0, logprobs=bool(form.words), more=more,
            ),
        )  # fmt: skip

    @contextmanager
    def step(self, name: str) -> Iterator[SqlStep]:
        step = SqlStep(name, time.monotonic() - self.began)
        self.trace.append(step)
        try:
            yield step
        finally:
            step.seconds = time.monotonic() - self.began - step.began


SQL_SIZES = ((24, 3), (10, 1), (5, 0))
"""Columns and example values a column that a prompt shows; the next where the model's context is too short for one."""
EXPECTED = ["keywords", "candidates", "revise", "unit_tests", "run_tests"]
"""Stages with calls of a typical question."""


def worth(group: Sequence[Candidate]) -> tuple[float, bool, int]:
    """Sort key of a group of candidates that agree; the group with the least key is chosen."""
    first = group[0]
    return (-first.passed, first.result is None or not first.result.rows, -len(group))


def outline(candidate: Candidate) -> str:
    rows = f"{len(candidate.result.rows)} rows" if candidate.result else candidate.problem
    return f"{' '.join(candidate.sql.split())[:160]} -> {rows}"


async def together(runs: "Iterator[Awaitable[T]]") -> list[T]:
    return list(await asyncio.gather(*runs))
