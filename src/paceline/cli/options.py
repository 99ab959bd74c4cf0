"""Options that several commands share: one dataclass each, expanded into a command's signature by `command`.

The names are those of `Options` and `SamplingParams`. Nothing here imports torch.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from paceline.core.errors import PacelineError
from paceline.serve.settings import Help, SettingEntry

if TYPE_CHECKING:
    from paceline.core.params import SamplingParams
    from paceline.engine.build import Options

INTERRUPTED = 130
"""Exit code after an interruption, as a shell gives it."""
BAD_INPUT = 2
"""Exit code of every error that the user can mend."""
SOFT_BREAK = re.compile(r"(?<!\n)\n(?!\n)")
"""A line break inside a paragraph, which typer would show."""
Dtype = Literal["float32", "bfloat16", "float16"]
Quantize = Literal["int8", "int4", "none"]
KvDtype = Literal["auto", "int8"]


def option(help: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=more.pop("show_default", False), **more)


def _engine(help: str, **more: Any) -> Any:
    return option(help, "Model and engine", **more)


def _sampling(help: str, **more: Any) -> Any:
    return option(help, "Sampling", **more)


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """What shapes an engine."""

    model: Annotated[
        str | None,
        _engine(
            "Directory in Hugging Face layout, GGUF file, hub id (owner/name, owner/name:FILE.gguf), or a name that "
            "paceline list shows. Default: the demo pair."
        ),
    ] = None
    draft: Annotated[
        str | None,
        _engine("A small model with the same vocabulary that drafts, or the directory of a head for the model."),
    ] = None
    drafter: Annotated[
        str | None,
        _engine("Drafter: none, ngram, model, ... Default: auto, which chooses for each request and step."),
    ] = None
    verifier: Annotated[
        str, _engine("Verifier: exact keeps the text, chain keeps the distribution.", show_default=True)
    ] = "exact"
    nodes: Annotated[int | None, _engine("Drafted tokens a step. Default: the drafter's own number.")] = None
    dtype: Annotated[Dtype, _engine("Type of weights and K/V cache.", show_default=True)] = "bfloat16"
    quantize: Annotated[
        Quantize | None,
        _engine("Round the weights as they are loaded. Default: a quantised file keeps its bits, which none widens."),
    ] = None
    draft_quantize: Annotated[
        Quantize | None,
        _engine("The same for the draft; changes only the speed. Default: as --quantize."),
    ] = None
    kv_dtype: Annotated[KvDtype | None, _engine("Type of the K/V cache. Default: that of the weights.")] = None
    device: Annotated[str, _engine("cpu, cuda, cuda:1, ...", show_default=True)] = "cpu"
    threads: Annotated[int | None, _engine("CPU threads. Default: as many as torch finds cores.")] = None
    overlap: Annotated[
        str,
        _engine(
            "How drafters may work while the target verifies: none, shared, T+D (threads of each, as 3+1) or stream.",
            show_default=True,
        ),
    ] = "none"
    online: Annotated[
        float, _engine("Share of a core with which drafter crossvocab learns while it serves.", show_default=True)
    ] = 0.0
    max_model_len: Annotated[
        int | None, _engine("Longest prompt plus output, in tokens. Default: what the model was trained for.")
    ] = None
    chat_template: Annotated[
        Path | None, _engine("A file with a Jinja template for conversations. Default: the checkpoint's own.")
    ] = None
    memory: Annotated[
        str | None,
        _engine("For weights, K/V cache and all else, such as 2G or 512M."),
    ] = None
    blocks: Annotated[int | None, _engine("Blocks of K/V cache. Default: as many as memory leaves.")] = None
    weights_cache: Annotated[
        bool,
        option(
            "Keep packed weights on disk, for a quick start the next time.",
            "Model and engine",
            "--weights-cache/--no-weights-cache",
            show_default=True,
        ),
    ] = True
    keep_learned: Annotated[
        bool,
        option(
            "Keep what is learned of drafters on disk, and begin with it the next time.",
            "Model and engine",
            "--keep-learned/--no-keep-learned",
            show_default=True,
        ),
    ] = True
    revision: Annotated[str | None, _engine("Branch, tag or commit on the hub.")] = None
    token: Annotated[str | None, _engine("Access token of the hub. Default: the saved login.")] = None

    def arguments(self) -> dict[str, Any]:
        """By name, as `LLM` takes them."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def options(self) -> "Options":
        """For a look or a measurement, which begins with nothing learned."""
        from paceline.engine.build import Options

        return Options(**{**self.arguments(), "keep_learned": False})


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
    ignore_eos: Annotated[bool, _sampling("Go on after the model's end of text.")] = False

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
                values[name] = group(**{f.name: values.pop(f.name) for f in fields(group)})
            function(**values)
        except PacelineError as error:
            fail(str(error))

    run.__doc__ = SOFT_BREAK.sub(" ", inspect.getdoc(function) or "")
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def options(group: Any) -> Iterator[inspect.Parameter]:
    """One parameter per field of a dataclass, whose hints carry typer's option, or the server's `Help` for one."""
    hints = get_type_hints(group, include_extras=True)
    for f in fields(group):
        hint = (
            setting(SettingEntry.of(f, hints[f.name]))
            if isinstance(get_args(hints[f.name])[-1], Help)
            else hints[f.name]
        )
        yield inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hint)


def setting(entry: SettingEntry) -> Any:
    """The annotation of a server setting as an option; of one that is a list, the option may be repeated."""
    kind = list[str] if get_origin(entry.type) is tuple else entry.type
    shown = entry.default not in (None, ())
    return Annotated[kind, option(entry.help.text, entry.help.panel, entry.flag, show_default=shown)]


def fail(message: str) -> None:
    """Say what is wrong and end with exit code 2."""
    sys.stdout.flush()
    typer.echo(f"paceline: error: {' '.join(message.split())}", err=True)
    raise typer.Exit(BAD_INPUT)
