"""`paceline chat`: a session that survives interrupted answers and mistakes."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from paceline.bench.prompts import has_template
from paceline.cli.answer import Answer, Screen, answer, note
from paceline.cli.options import EngineArgs, SamplingArgs
from paceline.core.errors import InputError, PacelineError, RefusalError

if TYPE_CHECKING:
    from paceline.core.params import SamplingParams
    from paceline.engine.llm import LLM

HELP = "/reset starts over, /stats shows figures, /drafter NAME changes who drafts, /exit or Ctrl-D ends."


def chat(engine: EngineArgs, sampling: SamplingArgs, system: str | None, *, color: bool) -> None:
    """Talk until the input ends; the arguments are the command's."""
    params = sampling.params(max_nodes=engine.nodes)
    from paceline.engine.llm import LLM

    llm = LLM(**engine.arguments())
    if not has_template(llm.text):
        raise InputError(f"{llm.text.path} has no chat template; use paceline generate instead.")
    session = Session(llm, params, Screen(color), system)
    ask = prompter()
    note(HELP)
    while not session.over:
        try:
            line = ask()
        except EOFError:
            return
        except KeyboardInterrupt:
            continue
        except UnicodeDecodeError as error:
            raise InputError(f"Standard input is not UTF-8 ({error.reason}); send UTF-8 text.") from None
        session.hear(line.strip())


def prompter() -> Callable[[], str]:
    """What returns the next line: with history and editing on a terminal, plain otherwise."""
    if not sys.stdin.isatty():
        return input
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = history_file()
    session: PromptSession[str] = PromptSession(history=FileHistory(str(path)) if path else InMemoryHistory())
    return lambda: session.prompt("> ")


def history_file() -> Path | None:
    """In the user's state directory; None where that cannot be written."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "paceline"
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return state / "history" if os.access(state, os.W_OK) else None


@dataclass(slots=True)
class Session:
    """A conversation. An error costs the message that caused it, an interruption the rest of the answer."""

    llm: "LLM"
    params: "SamplingParams"
    screen: Screen
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    over: bool = False

    def __post_init__(self) -> None:
        self.reset()

    def hear(self, line: str) -> None:
        """One line of the user: a command, a message, or nothing."""
        try:
            if line.startswith("/"):
                self._command(*line[1:].split(maxsplit=1))
            elif line:
                self._answer(line)
        except PacelineError as error:
            typer.echo(f"paceline: error: {error}", err=True)

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def _answer(self, line: str) -> None:
        messages = [*self.messages, {"role": "user", "content": line}]
        ids, longest = self.llm.text.chat(messages), self.llm.engine.model.max_len
        if len(ids) >= longest:
            raise InputError(
                f"The conversation has {len(ids)} tokens with this message, but the context holds {longest} with at "
                "least one to generate; the message was dropped: send a shorter one, or /reset."
            )
        done = answer(self.llm, ids, self.params, self.screen.show)
        self.screen.write("\n")
        if done.interrupted:
            note("(stopped)")
        self.messages = [*messages, {"role": "assistant", "content": done.result.text}]
        self.answers.append(done)

    def _command(self, name: str = "", argument: str = "") -> None:
        if name in ("exit", "quit"):
            self.over = True
        elif name == "reset":
            self.reset()
            note("The conversation starts over.")
        elif name == "stats":
            self._stats()
        elif name == "drafter":
            self._drafter(argument)
        elif name == "help":
            note(HELP)
        else:
            raise InputError(f"There is no command /{name}. {HELP}")

    def _stats(self) -> None:
        if not self.answers:
            note("There is no answer yet.")
            return
        tokens = sum(len(a.result.token_ids) for a in self.answers)
        seconds = sum(a.seconds for a in self.answers)
        passes = sum(a.result.stats.passes for a in self.answers)
        note(f"last answer: {self.answers[-1].line()}")
        note(
            f"session: {len(self.answers)} answers, {tokens} tokens, {tokens / seconds:.1f} tokens/s, "
            f"tau {tokens / max(passes, 1):.2f}"
        )

    def _drafter(self, name: str) -> None:
        from paceline.core.registry import refusal
        from paceline.draft import DRAFTERS
        from paceline.verify import VERIFIERS

        engine = self.llm.engine
        if name:
            verifier = engine.config.verifier
            reason = refusal(name, DRAFTERS.card(name), verifier, VERIFIERS.card(verifier), engine.drafters.have)
            if reason:
                raise RefusalError(reason)
            self.params = replace(self.params, drafter=name)
        note(f"drafter: {self.params.drafter or engine.config.drafter} (of {', '.join(engine.drafters.cards)})")
