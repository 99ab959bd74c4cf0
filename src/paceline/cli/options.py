"""Options that several commands share: one dataclass each, expanded into a command's signature by `command`.

The names are those of `Options` and `SamplingParams`. Nothing here imports torch.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from paceline.core.errors import PacelineError
from paceline.core.help import Help
from paceline.engine.options import KeepLearned, Options
from paceline.serve.settings import SettingEntry, plain

if TYPE_CHECKING:
    from paceline.core.params import SamplingParams

INTERRUPTED = 130
"""Exit code after an interruption, as a shell gives it."""
BAD_INPUT = 2
"""Exit code of every error that the user can mend."""
SOFT_BREAK = re.compile(r"(?<!\n)\n(?!\n)")
"""A line break inside a paragraph, which typer would show."""


def option(help: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=more.pop("show_default", False), **more)


def _sampling(help: str, **more: Any) -> Any:
    return option(help, "Sampling", **more)


@dataclass(frozen=True, slots=True)
class EngineArgs(Options):
    """The options of an engine as a command has them."""

    keep_learned: KeepLearned = True

    def arguments(self) -> dict[str, Any]:
        """Options of the command by name, as `LLM` takes them."""
        return {name: getattr(self, name) for name in option_names(type(self))}  # type: ignore[arg-type]

    def options(self) -> Options:
        """For a look or a measurement, which begins with nothing learned."""
        own = {f.name: getattr(self, f.name) for f in fields(Options)}
        return Options(**{**own, "keep_learned": False})


@dataclass(frozen=True, slots=True)
class SamplingArgs:
    """How a text is sampled and stopped. None: the checkpoint's generation_config.json, else off."""

    temperature: Annotated[float | None, _sampling("0 is greedy. Default: the checkpoint's, else 1.")] = None
    top_k: Annotated[int | None, _sampling("Keep the k most probable tokens.")] = None
    top_p: Annotated[float | None, _sampling("Keep the most probable tokens, up to this total probability.")] = None
    min_p: Annotated[float | None, _sampling("Drop tokens below min-p times the highest probability.")] = None
    repetition_penalty: Annotated[float | None, _sampling("Above 1: tokens seen before become less likely.")] = None
    max_tokens: Annotated[int, _sampling("Maximum tokens of the answer.", show_default=True)] = 512
    seed: Annotated[int | None, _sampling("Makes the same text again. Default: a fresh one, which is shown.")] = None
    stop: Annotated[list[str] | None, _sampling("End before this text; may be repeated.")] = None
    adapter: Annotated[str, _sampling("Name of an adapter that --lora gave; the answer is computed with it.")] = ""
    ignore_eos: Annotated[bool, _sampling("Continue after the model's end of text.")] = False

    def params(self, **more: Any) -> "SamplingParams":
        """As `SamplingParams`; `more` sets its other fields."""
        from paceline.core.params import SamplingParams

        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return SamplingParams(**{**own, "stop": tuple(self.stop or ())}, **more)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function: parameters that are dataclasses become one option per field, and a PacelineError
    becomes one sentence on stderr and exit code 2."""
    signature = inspect.signature(function)
    groups: dict[str, Any] = {n: p.annotation for n, p in signature.parameters.items() if is_dataclass(p.annotation)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            parameters.extend(options(groups[name]))
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))

    @wraps(function)
    def run(**values: Any) -> None:
        try:
            for name, group in groups.items():
                mine = {f.name: values.pop(f.name) for f in fields(group) if f.name in values}
                values[name] = group(**{key: tuple(v) if isinstance(v, list) else v for key, v in mine.items()})
            function(**values)
        except PacelineError as error:
            fail(str(error))

    run.__doc__ = SOFT_BREAK.sub(" ", inspect.getdoc(function) or "")
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


@cache
def option_names(group: Any) -> tuple[str, ...]:
    """Names of a group's options."""
    return tuple(option.name for option in options(group))


def options(group: Any) -> Iterator[inspect.Parameter]:
    """One parameter per field of a dataclass, whose hints carry typer's option, or a `Help` for one. A field whose help
    is not for all commands is an option of the groups that say so (`serves`)."""
    hints = get_type_hints(group, include_extras=True)
    for f in sorted(fields(group), key=lambda f: f.kw_only is True):
        hint, told = hints[f.name], get_args(hints[f.name])[-1]
        if isinstance(told, Help):
            if not (told.commands or getattr(group, "serves", False)):
                continue
            hint = setting(SettingEntry.of(f, hint))
        yield inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hint)


def setting(entry: SettingEntry) -> Any:
    """The annotation of a setting as an option; of one that is a list, the option may be repeated."""
    kind = list[str] if get_origin(entry.type) is tuple else plain(entry.type)
    kind = kind | None if entry.default is None else kind
    shown = entry.default not in (None, ())
    return Annotated[kind, option(entry.help.text, entry.help.panel, entry.flag, show_default=shown)]


def fail(message: str) -> None:
    """Say what is wrong and end with exit code 2."""
    sys.stdout.flush()
    typer.echo(f"paceline: error: {' '.join(message.split())}", err=True)
    raise typer.Exit(BAD_INPUT)
