"""`paceline info`: what a checkpoint is, what it costs, and who can draft for it."""

import json
from collections.abc import Collection
from math import prod
from typing import TYPE_CHECKING, Any

import typer

from paceline.cli.options import EngineArgs

if TYPE_CHECKING:
    from rich.table import Table

    from paceline.model.load import Facts

SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
Fit = dict[str, str | None]
"""drafter, summary, and for each verifier why the two cannot serve (None: they can)."""


def info(engine: EngineArgs, *, as_json: bool) -> None:
    """Describe the model; the arguments are the command's."""
    from paceline.engine.build import check_device, memory_of, paths
    from paceline.engine.text import Text
    from paceline.model.load import inspect

    check_device(engine.device)
    revisions = (engine.revision, None)
    known = [
        inspect(path, dtype=engine.dtype, kv_dtype=engine.kv_dtype, revision=revision, token=engine.token)
        for path, revision in zip(paths(engine.options()), revisions)
        if path is not None
    ]
    texts = [Text(facts.path) for facts in known]
    sheets = [describe(facts, text, engine) for facts, text in zip(known, texts)]
    sizes = [facts.spec.vocab for facts in known]
    vocabularies = [text.vocabulary(size) for text, size in zip(texts, sizes)]
    problem = None
    if len(known) == 2 and (sizes[0] != sizes[1] or vocabularies[0] != vocabularies[1]):
        problem = (
            f"The draft has another vocabulary ({sizes[1]} entries) than the model ({sizes[0]}), so it cannot draft "
            "for it; use a draft made for this tokenizer."
        )
    memory = memory_of(engine.options(), *(facts.path for facts in known))
    least = memory.total(memory.smallest())
    room = room_of(engine.memory)
    longest = memory.longest(room)
    drafters = fits({"draft"} if len(known) == 2 and not problem else set())
    if as_json:
        entry: dict[str, Any] = dict(zip(("model", "draft"), sheets))
        entry |= {"draft_refused": problem, "least_memory": least, "longest_context": longest, "drafters": drafters}
        typer.echo(json.dumps(entry, ensure_ascii=False, indent=2))
        return
    from rich.console import Console

    Console().print(sheet(sheets))
    typer.echo(f"Together they run in a memory of {least:,} bytes or more.")
    where = f"a memory of {room:,} bytes" if engine.memory else f"the {room:,} bytes that are free here"
    typer.echo(f"The longest context that fits in {where}: {longest:,} of {memory.max_len:,} tokens.")
    if problem:
        typer.echo(problem)
    Console().print(ladder(drafters))


def room_of(memory: str | None) -> int:
    """Bytes that may be used: as asked for, else what is free."""
    if memory is not None:
        from paceline.engine.build import parse_bytes

        return parse_bytes(memory)
    import psutil

    return int(psutil.virtual_memory().available)


def describe(facts: "Facts", text: Any, engine: EngineArgs) -> dict[str, Any]:
    """By name, for people and machines. `text`: the checkpoint's `Text`."""
    from paceline.model.load import form, measure

    spec, packing = facts.spec, form(engine.dtype, engine.quantize, engine.device, kv_dtype=engine.kv_dtype)
    count, stored = parameters(facts)
    return {
        "path": str(facts.path),
        "family": spec.family,
        **{n: getattr(spec, n) for n in ("hidden", "heads", "kv_heads", "head_dim", "ffn")},
        "layers": len(spec.layers),
        "sliding_windows": sorted({layer.window for layer in spec.layers if layer.window}),
        "vocabulary": spec.vocab,
        "tied_embeddings": spec.tied,
        "context": spec.max_len,
        "parameters": count,
        "stored_as": stored,
        "file_bytes": facts.bytes,
        "dtype": engine.dtype,
        "weight_bytes": measure(facts.path, packing)[1].weights,
        "kv_bytes_per_token": facts.kv_bytes_per_token,
        "kv_bytes_full_context": facts.kv_bytes_per_token * spec.max_len,
        "linear_layers": packing.describe(),
        "chat_template": bool(text.tokenizer.chat_template),
        "generation_defaults": {k: v for k, v in text.defaults.items() if k in SAMPLING},
    }


def parameters(facts: "Facts") -> tuple[int, list[str]]:
    """(number, types they are stored as), from the headers; a head that is tied counts once."""
    from paceline.model.checkpoint import Tensors

    tensors = Tensors(facts.path)
    names = [name for name in tensors.place if not (facts.spec.tied and name == "lm_head.weight")]
    views = [tensors.files[tensors.place[name]].get_slice(name) for name in names]
    return sum(prod(view.get_shape()) for view in views), sorted({view.get_dtype() for view in views})


def fits(have: Collection[str]) -> list[Fit]:
    """Every drafter with every verifier, by the same join that the engine uses."""
    from paceline.core.registry import refusal
    from paceline.draft import DRAFTERS
    from paceline.verify import VERIFIERS

    rules = list(VERIFIERS.items())
    return [
        {"drafter": name, "summary": card.summary, **{rule: refusal(name, card, rule, a, have) for rule, a in rules}}
        for name, card in DRAFTERS.items()
    ]


def sheet(columns: list[dict[str, Any]]) -> "Table":
    """Model and draft side by side."""
    from rich.table import Table

    table = Table(box=None)
    for name in ("", "model", "draft")[: len(columns) + 1]:
        table.add_column(name)
    for name in columns[0]:
        table.add_row(name.replace("_", " "), *(shown(column[name]) for column in columns))
    return table


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        value = [f"{k}={v}" for k, v in value.items()]
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def ladder(drafters: list[Fit]) -> "Table":
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
