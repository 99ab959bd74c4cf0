"""`paceline demo`: one question, three ways to answer it, one text."""

from dataclasses import dataclass, replace

import typer

from paceline.bench.harness import PLAIN, Cell, Plan, Run, measure
from paceline.bench.identity import Difference, Referee
from paceline.bench.prompts import encode
from paceline.bench.report import Row
from paceline.cli.answer import Answer, Screen, answer
from paceline.cli.options import EngineArgs
from paceline.core.params import SamplingParams
from paceline.engine.llm import LLM

QUESTION = (
    "A baker packs 6 rolls into each bag. On Monday she sells 14 bags, and on Tuesday she sells 9 bags more than on "
    "Monday. Each roll costs 2 dollars. How many dollars does she earn on the two days together?"
)
MODES = {
    PLAIN: "plainly: one token per pass of the model",
    "ngram": "with prompt lookup: what followed the last words before",
    "model": "with a draft model: a small model guesses, the model checks",
}
REPEAT = 5


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of answering: its timed runs, and where a text of it left the plain one, if any did."""

    name: str
    runs: list[Run]
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
    params = SamplingParams(temperature=0, max_tokens=max_tokens, max_nodes=engine.nodes, seed=0)
    llm = LLM(**{**engine.arguments(), "nodes": None}, prefix_cache=False)
    params = params.resolve(llm.text.defaults)
    screen, ids = Screen(color), encode(llm.text, QUESTION)
    names = [name for name in MODES if name in llm.engine.drafters.cards]
    typer.echo(f"{QUESTION}\n")
    if screen.color:
        typer.echo(f"Tokens in this colour were {screen.legend()}; the others the model wrote one by one.\n")
    for name in names:  # unseen: the first steps of each kind allocate and compile
        answer(llm, ids, replace(params, drafter=name, max_tokens=min(16, max_tokens)))
    answers: dict[str, Answer] = {}
    for name in names:
        typer.secho(f"-- {MODES[name]}", bold=screen.color)
        answers[name] = answer(llm, ids, replace(params, drafter=name), screen.show)
        typer.echo("\n")
        if answers[name].interrupted:
            raise typer.Exit(130)
    plan = Plan(names, [1], [0.0], engine.verifier, params, REPEAT)
    results = measure(llm.engine, [ids], plan, lambda what: None)
    referee = Referee(llm.engine, engine.dtype)
    plain = answers[PLAIN].result.token_ids
    modes = []
    for name in names:
        runs = results[Cell(name, 1, 0.0)]
        texts = {tuple(answers[name].result.token_ids), *(tuple(run.outputs[0]) for run in runs)}
        found = [referee.difference(ids, params, plain, text) for text in sorted(texts)]
        modes.append(Mode(name, runs, min((d for d in found if d), key=lambda d: d.near_tie, default=None)))
    summary(modes)
    if any(mode.differs for mode in modes):
        raise typer.Exit(1)


def summary(modes: list[Mode]) -> None:
    """The figures: medians of the timed runs that followed the streamed ones."""
    base = modes[0].runs
    for mode in modes:
        cell = Cell(mode.name, 1, 0.0)
        row = Row.of(cell, "exact", mode.runs, base, True, 0)
        typer.echo(
            f"{mode.name:>6}  {row.tokens_per_second:8.1f} tokens/s  {row.speedup:5.2f}x  tau {row.tau:4.2f}  "
            f"{mode.verdict()}"
        )
    typer.echo(
        f"\nMedians of {REPEAT} further runs each; tau is the number of tokens per pass of the model. The demo model "
        "is tiny, so its answers are often wrong; drafting changes when they come, not what they say."
    )
