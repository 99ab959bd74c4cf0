"""`paceline demo`: one question, three ways to answer it, one text. By SmolLM2 where it can be had, else by the bundled
pair of tiny models."""

from dataclasses import dataclass, replace

import typer

from paceline.bench.harness import PLAIN_METHOD, BenchCell, BenchPlan, BenchRun, measure
from paceline.bench.identity import Difference, Referee
from paceline.bench.prompts import encode
from paceline.bench.report import BenchRow
from paceline.cli.answer import Screen, ShownAnswer, answer
from paceline.cli.options import EngineArgs
from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.engine.llm import LLM
from paceline.engine.pair import boxed

DEMO_QUESTION = (
    "A baker packs 6 rolls into each bag. On Monday she sells 14 bags, and on Tuesday she sells 9 bags more than on "
    "Monday. Each roll costs 2 dollars. How many dollars does she earn on the two days together?"
)
REAL = "smollm2"
REAL_QUESTION = (
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is Madrid. The capital of "
    "Japan is Tokyo. The capital of Kenya is Nairobi.\n\n"
    "What are the capitals of these countries? Answer with the sentences above."
)
"""A name of the catalogue, and what it is asked."""
MODES = {
    PLAIN_METHOD: "plainly: one token per pass of the model",
    "ngram": "with prompt lookup: what followed the last words before",
    "model": "with a draft model: a small model guesses, the model checks",
    "auto": "by the planner, which chooses the drafter and the draft length (the default)",
}
SHOWN = {True: (PLAIN_METHOD, "ngram", "auto"), False: (PLAIN_METHOD, "ngram", "model")}
"""The modes of a real model, and of the bundled pair."""
REPEAT = 5

ENDINGS = {
    True: "Drafting changes when words come, not what they say. Large models with a draft gain more: paceline list.",
    False: "The demo model is tiny and often wrong; drafting changes when its words come, not what they say.",
}


@dataclass(frozen=True, slots=True)
class DemoMode:
    """One way of answering: its timed runs, and where a text of it left the plain one, if any did."""

    name: str
    runs: list[BenchRun]
    difference: Difference | None

    @property
    def differs(self) -> bool:
        return self.difference is not None and not self.difference.near_tie

    def verdict(self) -> str:
        if self.difference is None:
            return "identical"
        if self.differs:
            return f"DIFFERENT from token {self.difference.position} on"
        return (
            f"identical up to token {self.difference.position}, a near-tie: two tokens scored within "
            f"{self.difference.margin:.2g}, and rounding chose"
        )


def demo(engine: EngineArgs, max_tokens: int, *, color: bool) -> None:
    """Answer, measure, compare; exit code 1 if a text differed. The arguments are the command's."""
    if engine.drafter is not None:
        raise InputError(f"--drafter is given, but the demo compares {', '.join(MODES)}; use paceline generate.")
    params = SamplingParams(temperature=0, max_tokens=max_tokens, max_nodes=engine.nodes, seed=0)
    real, reason = real_model(engine)
    pair = {"model": real or engine.model, "draft": boxed(REAL, engine.device) if real else engine.draft}
    llm = LLM(**{**engine.arguments(), "nodes": None, "keep_learned": False, **pair}, prefix_cache=False)
    params = params.resolve(llm.text.defaults)
    question = DEMO_QUESTION if real is None else REAL_QUESTION
    screen, ids = Screen(color), encode(llm.text, question)
    cards = llm.engine.drafters.cards
    names = [name for name in SHOWN[real is not None] if name == "auto" or name in cards]
    typer.echo(introduction(real, reason))
    typer.echo(f"\n{question}\n")
    if screen.color:
        typer.echo(f"Tokens in this colour were {screen.legend()}; the others the model wrote one by one.\n")
    for name in names:  # unseen: the first steps of each kind allocate and compile
        answer(llm, ids, replace(params, drafter=name, max_tokens=min(16, max_tokens)))
    answers: dict[str, ShownAnswer] = {}
    for name in names:
        typer.secho(f"-- {MODES[name]}", bold=screen.color)
        answers[name] = answer(llm, ids, replace(params, drafter=name), screen.show)
        typer.echo("\n")
        if answers[name].interrupted:
            raise typer.Exit(130)
    plan = BenchPlan(names, [1], [0.0], engine.verifier, params, REPEAT)
    results = measure(llm.engine, [ids], plan, lambda what: None)
    referee = Referee(llm.engine, engine.dtype)
    plain = answers[PLAIN_METHOD].result.token_ids
    modes = []
    for name in names:
        runs = results[BenchCell(name, 1, 0.0)]
        texts = {tuple(answers[name].result.token_ids), *(tuple(run.outputs[0]) for run in runs)}
        found = [referee.difference(ids, params, plain, text) for text in sorted(texts)]
        modes.append(DemoMode(name, runs, min((d for d in found if d), key=lambda d: d.near_tie, default=None)))
    summary(modes, ENDINGS[real is not None])
    if any(mode.differs for mode in modes):
        raise typer.Exit(1)


def real_model(engine: EngineArgs) -> tuple[str | None, str]:
    """Where SmolLM2 lies, fetched if need be; None where another model was asked for or it cannot be had, and why."""
    from paceline.core.errors import PacelineError
    from paceline.model.pull import pull

    if engine.model is not None or engine.draft is not None:
        return None, ""
    try:
        return str(pull(REAL, engine.token)), ""
    except PacelineError as error:
        return None, str(error)


def introduction(real: str | None, reason: str) -> str:
    """Sentence that says which model answers."""
    if real is not None:
        return "SmolLM2 (135 million parameters, Apache-2.0) answers:"
    return f"The bundled pair of tiny models answers, since {reason}" if reason else "The model that was given answers:"


def summary(modes: list[DemoMode], ending: str) -> None:
    """The figures: medians of the timed runs that followed the streamed ones."""
    base = modes[0].runs
    for mode in modes:
        cell = BenchCell(mode.name, 1, 0.0)
        row = BenchRow.of(cell, "exact", mode.runs, base, True, 0)
        typer.echo(
            f"{mode.name:>6}  {row.tokens_per_second:8.1f} tokens/s  {row.speedup:5.2f}x  tau {row.tau:4.2f}  "
            f"{mode.verdict()}"
        )
    typer.echo(f"\nMedians of {REPEAT} further runs each; tau is the number of tokens per pass of the model. {ending}")
