"""`paceline chat`: a session that survives interrupted answers and mistakes."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import typer

from paceline.bench.prompts import has_template
from paceline.cli.answer import Screen, ShownAnswer, note
from paceline.cli.options import EngineArgs, SamplingArgs
from paceline.cli.partner import Local, Partner, Remote
from paceline.core.errors import InputError, PacelineError
from paceline.core.params import SamplingParams
from paceline.core.system import starting

OF_REQUESTS = ("model", "drafter", "verifier", "nodes")
"""Options that a request can have, too; `model` is then a name that the server knows."""

HELP = (
    "/reset starts over, /system TEXT sets the system prompt, /set NAME VALUE a sampling parameter, /drafter NAME the "
    "drafter; /stats shows figures; /save FILE and /load FILE keep the conversation; /exit or Ctrl-D ends. A line that "
    'ends with \\ goes on in the next; """ begins and ends several lines.'
)
MULTILINE_QUOTE = '"""'


def chat(
    engine: EngineArgs, sampling: SamplingArgs, system: str | None, *, color: bool, url: str | None = None,
    key: str | None = None,
) -> None:  # fmt: skip
    """Talk until the input ends; the arguments are the command's."""
    params = sampling.params(max_nodes=engine.nodes)
    partner: Partner = load(engine) if url is None else reach(url, engine, key)
    if url is not None:
        params = replace(
            params, drafter=name_of(engine.drafter), verifier=None if engine.verifier == "exact" else engine.verifier
        )
    session = ChatSession(partner, params, Screen(color), system)
    ask = joined(prompter())
    note(f"{partner.name}. {HELP}")
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


def load(engine: EngineArgs) -> Local:
    with starting():
        from paceline.engine.llm import LLM

        llm = LLM(**engine.arguments(), late_weights=True)
    if not has_template(llm.text):
        raise InputError(f"{llm.text.path} has no chat template; use paceline generate instead.")
    return Local(llm)


def reach(url: str, engine: EngineArgs, key: str | None) -> Remote:
    """InputError for options that shape an engine: the server has one already."""
    given = [f.name for f in fields(engine) if getattr(engine, f.name) != f.default and f.name not in OF_REQUESTS]
    if given:
        raise InputError(f"{given[0]} shapes an engine, but {url} has its own; leave it out, or url.")
    return Remote(url, name_of(engine.model), key)


def name_of(value: object) -> str | None:
    """A flag's text."""
    return None if value is None else str(value)


def joined(ask: Callable[[], str]) -> Callable[[], str]:
    """`ask` for a message that may have several lines."""

    def whole() -> str:
        line = ask()
        if line.strip().startswith(MULTILINE_QUOTE):
            lines = [line.strip().removeprefix(MULTILINE_QUOTE)]
            while not lines[-1].rstrip().endswith(MULTILINE_QUOTE):
                lines.append(ask())
            lines[-1] = lines[-1].rstrip().removesuffix(MULTILINE_QUOTE)
            return "\n".join(lines).strip("\n")
        while line.endswith("\\"):
            line = line[:-1] + "\n" + ask()
        return line

    return whole


def prompter() -> Callable[[], str]:
    """What returns the next line: with history and editing on a terminal, plain otherwise."""
    if not sys.stdin.isatty():
        return input
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings

    path = history_file()
    session: PromptSession[str] = PromptSession(history=FileHistory(str(path)) if path else InMemoryHistory())
    keys = KeyBindings()
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))  # Alt+Enter breaks the line
    return lambda: session.prompt("> ", key_bindings=keys)


def history_file() -> Path | None:
    """In the user's state directory; None where that cannot be written."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "paceline"
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return state / "history" if os.access(state, os.W_OK) else None


@dataclass(slots=True)
class ChatSession:
    """A conversation. An error costs the message that caused it, an interruption the rest of the answer."""

    partner: Partner
    params: SamplingParams
    screen: Screen
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    answers: list[ShownAnswer] = field(default_factory=list)
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
        done = self.partner.say(messages, self.params, self.screen.show)
        self.screen.write("\n")
        if done.interrupted:
            note("(stopped)")
        self.messages = [*messages, {"role": "assistant", "content": done.result.text}]
        self.answers.append(done)
        self.partner.answered()

    def _command(self, name: str = "", argument: str = "") -> None:
        if name in ("exit", "quit"):
            self.over = True
        elif name == "reset":
            self.reset()
            note("The conversation starts over.")
        elif name == "stats":
            self._stats()
        elif name == "drafter":
            told = self.partner.drafters(argument or self.params.drafter or "")
            self.params = replace(self.params, drafter=argument or self.params.drafter)
            note(f"drafter: {told}")
        elif name == "system":
            self._system(argument)
        elif name == "set":
            self._set(*argument.split(maxsplit=1))
        elif name == "save":
            self._save(argument)
        elif name == "load":
            self._load(argument)
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

    def _system(self, text: str) -> None:
        """Set it, from the next message on; `""` takes it away, nothing shows it."""
        if text:
            self.system = "" if text == '""' else text
            talk = [message for message in self.messages if message["role"] != "system"]
            self.messages = [{"role": "system", "content": self.system}, *talk] if self.system else talk
        note(f"system: {self.system or 'none'}")

    def _set(self, name: str = "", value: str | None = None) -> None:
        """Set a field of SamplingParams; without a value it is its default again; without a name, show what is set."""
        if name:
            plain = SamplingParams()
            wish = getattr(plain, name, None) if value is None else read(value)
            known = {f.name: getattr(self.params, f.name) for f in fields(self.params)}
            self.params = SamplingParams.from_dict({**known, name: wish})
        shown = {f.name: getattr(self.params, f.name) for f in fields(self.params)}
        set_ = [f"{n}={v!r}" for n, v in shown.items() if v != getattr(SamplingParams(), n)]
        note(", ".join(set_) or "Everything is at its default.")

    def _save(self, name: str) -> None:
        path = file(name, "/save")
        try:
            path.write_text(json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error}); give another file.") from None
        note(f"{len(self.messages)} messages are in {path}.")

    def _load(self, name: str) -> None:
        path = file(name, "/load")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["messages"]
            messages = [{"role": str(m["role"]), "content": str(m["content"])} for m in found]
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error}).") from None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not a conversation that /save wrote ({error}).") from None
        self.messages = messages
        self.system = next((m["content"] for m in messages if m["role"] == "system"), None)
        note(f"{len(messages)} messages; {self.partner.name} goes on from there.")


def read(value: str) -> Any:
    """A value as JSON, else as the text it is."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def file(name: str, command: str) -> Path:
    if not name:
        raise InputError(f"{command} needs the name of a file.")
    return Path(name).expanduser()
