"""`paceline info`: what a checkpoint is, what it costs, and who can draft for it."""

import json
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import typer

from paceline.cli.options import EngineArgs

if TYPE_CHECKING:
    from rich.table import Table

    from paceline.engine.text import Text
    from paceline.model.load import Facts


def info(engine: EngineArgs, *, as_json: bool) -> None:
    """Describe the model; the arguments are the command's."""
    from paceline.engine.build import paths

    model, draft = paths(engine.options())
    mine = Known.of(str(model), engine, engine.revision)
    drafting = Known.of(str(draft), engine, None) if draft is not None else None
    problem = drafting and mismatch(mine, drafting)
    drafters = fits("draft" if drafting and not problem else None)
    if as_json:
        entry = {"model": mine.describe(), "draft": drafting and drafting.describe(), "draft_refused": problem,
                 "drafters": drafters}  # fmt: skip
        typer.echo(json.dumps(entry, ensure_ascii=False, indent=2))
        return
    from rich.console import Console

    console = Console()
    console.print(sheet(mine.describe()))
    if drafting:
        console.print("[bold]draft[/bold]", sheet(drafting.describe()))
    if problem:
        typer.echo(problem)
    console.print(ladder(drafters))


@dataclass(frozen=True, slots=True)
class Known:
    """A checkpoint seen from outside."""

    facts: "Facts"
    text: "Text"
    dtype: str
    device: str

    @classmethod
    def of(cls, model: str, engine: EngineArgs, revision: str | None) -> "Known":
        from paceline.engine.text import Text
        from paceline.model.load import inspect

        facts = inspect(model, dtype=engine.dtype, revision=revision, token=engine.token)
        return cls(facts, Text(facts.path), engine.dtype, engine.device)

    def describe(self) -> dict[str, Any]:
        import torch

        from paceline.model.checkpoint import DTYPES
        from paceline.model.linear import choose

        spec, dtype = self.facts.spec, DTYPES[self.dtype]
        count, stored = parameters(self.facts)
        windows = sorted({layer.window for layer in spec.layers if layer.window})
        return {
            "path": str(self.facts.path),
            "family": spec.family,
            "layers": len(spec.layers),
            "hidden": spec.hidden,
            "heads": spec.heads,
            "kv_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
            "ffn": spec.ffn,
            "vocabulary": spec.vocab,
            "tied_embeddings": spec.tied,
            "context": spec.max_len,
            "sliding_windows": windows,
            "parameters": count,
            "stored_as": stored,
            "file_bytes": self.facts.bytes,
            "dtype": self.dtype,
            "weight_bytes": count * dtype.itemsize,
            "kv_bytes_per_token": self.facts.kv_bytes_per_token,
            "kv_bytes_full_context": self.facts.kv_bytes_per_token * spec.max_len,
            "linear_layers": choose(dtype, torch.device(self.device)).describe(),
            "chat_template": bool(self.text.tokenizer.chat_template),
            "generation_defaults": {k: v for k, v in self.text.defaults.items() if k in SAMPLING},
        }


SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def parameters(facts: "Facts") -> tuple[int, list[str]]:
    """(number, types they are stored as), from the headers; a head that is tied counts once."""
    from paceline.model.checkpoint import Tensors

    tensors, count, stored = Tensors(facts.path), 0, set()
    for name, file in tensors.place.items():
        if not (facts.spec.tied and name == "lm_head.weight"):
            view = tensors.files[file].get_slice(name)
            count += prod(view.get_shape())
            stored.add(view.get_dtype())
    return count, sorted(stored)


def mismatch(model: Known, draft: Known) -> str | None:
    """Why the draft cannot draft for the model; None when their vocabularies are the same."""
    size, other = model.facts.spec.vocab, draft.facts.spec.vocab
    if size == other and model.text.vocabulary(size) == draft.text.vocabulary(size):
        return None
    return (
        f"The draft has another vocabulary ({other} entries) than the model ({size}), so it cannot draft for it; "
        "use a draft made for this tokenizer."
    )


def fits(*have: str | None) -> list[dict[str, str | None]]:
    """Each drafter with, per verifier, why it cannot serve (None: it can), from the same join that the engine uses."""
    from paceline.core.registry import refusal
    from paceline.draft import DRAFTERS
    from paceline.verify import VERIFIERS

    given = {name for name in have if name}
    return [
        {
            "drafter": name,
            "summary": card.summary,
            **{rule: refusal(name, card, rule, accepts, given) for rule, accepts in VERIFIERS.items()},
        }
        for name, card in DRAFTERS.items()
    ]


def sheet(facts: dict[str, Any]) -> "Table":
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        if isinstance(value, list | dict):
            shown = ", ".join(map(str, value if isinstance(value, list) else [f"{k}={v}" for k, v in value.items()]))
        table.add_row(name.replace("_", " "), {True: "yes", False: "no", "": "none"}.get(shown, str(shown)))
    return table


def ladder(drafters: list[dict[str, str | None]]) -> "Table":
    """Who can draft, one line each."""
    from rich import box
    from rich.table import Table

    rules = [key for key in drafters[0] if key not in ("drafter", "summary")]
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("drafter", *(f"with {rule}" for rule in rules), "what it does, or why it cannot serve"):
        table.add_column(column)
    for entry in drafters:
        reasons = dict.fromkeys(reason for rule in rules if (reason := entry[rule]))
        marks = ["no" if entry[rule] else "yes" for rule in rules]
        table.add_row(entry["drafter"], *marks, " ".join([f"{entry['summary']}.".capitalize(), *reasons]))
    return table
