"""`paceline info`: what a checkpoint is, what it costs, and which drafters work with it."""

import json
from collections.abc import Collection
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from paceline.cli.options import EngineArgs
from paceline.cli.sizes import config_alone, say_sizes
from paceline.core.errors import CapacityError, CheckpointError, InputError

if TYPE_CHECKING:
    from rich.table import Table

    from paceline.cli.probe import HeadProbe
    from paceline.draft.head import HeadFacts
    from paceline.model.linear import Packing
    from paceline.model.load import Facts

SAMPLING_KEYS = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
Fit = dict[str, str | None]
"""drafter, summary, and for each verifier why the two cannot serve (None: they can)."""


def info(engine: EngineArgs, *, as_json: bool, with_probe: bool = False) -> None:
    """Describe the model; the arguments are the command's."""
    from paceline.draft.head import facts_of, method_of
    from paceline.engine.budget import memory_of
    from paceline.engine.gpu import check_device
    from paceline.engine.pair import paths, provided
    from paceline.engine.text import Text
    from paceline.model.load import inspect

    check_device(engine.device, engine.dtype)
    if engine.model is not None and (alone := config_alone(str(engine.model))) is not None:
        say_sizes(alone, as_json=as_json)
        return
    model, draft = paths(engine.options())
    head = None if draft is None or method_of(Path(draft)) is None else Path(draft)
    known = [
        inspect(path, dtype=engine.dtype, kv_dtype=engine.kv_dtype, revision=revision, token=engine.token)
        for path, revision in ((model, engine.revision), (draft if head is None else None, None))
        if path is not None
    ]
    texts = [Text(facts.path) for facts in known]
    sheets = [describe(facts, text, engine) for facts, text in zip(known, texts)]
    vocabularies = [text.vocabulary(known[0].spec.vocab) for text in texts]
    problem = None
    if len(known) == 2 and vocabularies[0] != vocabularies[1]:
        problem = (
            f"The draft has another vocabulary ({len(vocabularies[1])} entries) than the model "
            f"({len(vocabularies[0])}), so only drafter crossvocab, which auto tries, can use it: it "
            "translates. A draft made for this tokenizer guesses better."
        )
    told = None if head is None else facts_of(head)
    if told is not None and head is not None:
        problem = unfit(head, told, known[0].spec.hidden, known[0].spec.vocab)
    memory = memory_of(engine.options(), *(facts.path for facts in known), *([] if head is None else [head]))
    least = memory.total(memory.smallest())
    room = room_of(engine.memory)
    longest = memory.longest(room)
    at = head if head is not None else known[1].path if len(known) == 2 else None
    kind = told.method if told is not None else "foreign" if problem else "draft"
    drafters = fits(provided(None if told is not None and problem else at, kind))
    plans = [] if engine.memory is None else budgeted(engine, known[0].path, None if problem else at, kind)
    probes = probed(engine, told, problem) if with_probe else None
    if as_json:
        entry: dict[str, Any] = dict(zip(("model", "draft"), sheets))
        if told is not None:
            entry["head"] = asdict(told)
        entry |= {"draft_refused": problem, "least_memory": least, "longest_context": longest, "drafters": drafters}
        entry["memory_plan"] = plans
        if probes is not None:
            entry["probe"] = {name: asdict(it) for name, it in zip(("served", "pytorch"), probes)}
        typer.echo(json.dumps(entry, ensure_ascii=False, indent=2))
        return
    from rich.console import Console

    console = Console(soft_wrap=False)
    console.print(sheet(sheets))
    if told is not None:
        kept = f", {told.kv_numbers} numbers a token" if told.kv_numbers else ""
        of = f" for {told.verifier}" if told.verifier else ""
        typer.echo(f"Head: {told.method} of depth {told.depth}{of}, width {told.width}{kept}.")
    together = "Together they run" if len(sheets) > 1 else "It runs"
    typer.echo(f"{together} in a memory of {size(least)} or more.")
    where = f"a memory of {size(room)}" if engine.memory else f"the {size(room)} that are free"
    typer.echo(f"Longest context in {where}: {longest:,} of {memory.max_len:,} tokens.")
    if memory.states_of_one:
        each = f"one lies with each block of {memory.block_size:,} tokens"
        kept = each if memory.snapshots is None else f"{memory.snapshots:,} are kept for other texts"
        typer.echo(f"A text's state takes {size(memory.states_of_one)}; {kept}.")
    for line in plans if problem is None else [problem, *plans]:
        typer.echo(line)
    console.print(ladder(drafters))
    if probes is not None:
        from paceline.cli.probe import probe_lines

        typer.echo("\n".join(probe_lines(*probes)))


def probed(engine: EngineArgs, head: "HeadFacts | None", problem: str | None) -> "tuple[HeadProbe, HeadProbe]":
    """What the head drafts, as it is served and by PyTorch alone. Raises InputError where there is none."""
    from paceline.cli.probe import probe, reference

    if head is None or problem is not None:
        raise InputError(problem or "probe needs a head; give its directory with --draft.")
    return probe(engine.options(), head.method), reference(engine.options(), head.method)


def budgeted(engine: EngineArgs, model: Path, draft: Path | None, kind: str) -> list[str]:
    """What an engine would do with the memory, and the next best, in words; or why it is too little."""
    from paceline.engine.budget import chosen, words_of

    options = replace(engine.options(), keep_learned=True)
    try:
        return words_of(chosen(options, model, draft, kind), options, draft)
    except CapacityError as error:
        return [str(error)]


def unfit(path: Path, facts: "HeadFacts", width: int, vocab: int) -> str | None:
    """Why a head cannot draft for a model of this width and vocabulary; None where it can."""
    from paceline.draft.head import check_fit

    try:
        check_fit(path, facts, width, vocab)
    except CheckpointError as error:
        return str(error)
    return None


def room_of(memory: str | int | None) -> int:
    """Bytes that may be used: as asked for, else what is free."""
    if memory is not None:
        from paceline.engine.budget import parse_bytes

        return parse_bytes(memory)
    import psutil

    return int(psutil.virtual_memory().available)


def describe(facts: "Facts", text: Any, engine: EngineArgs) -> dict[str, Any]:
    """By name, for people and machines. `text`: the checkpoint's `Text`."""
    from paceline.model.load import measure, packing_of

    spec, form = facts.spec, (engine.dtype, engine.quantize, engine.device)
    packing = packing_of(facts.path, spec, *form, kv_dtype=engine.kv_dtype)
    count, stored = parameters(facts)
    return {
        "path": str(facts.path),
        "family": spec.family,
        **{n: getattr(spec, n) for n in ("hidden", "heads", "kv_heads", "head_dim", "ffn")},
        "layers": len(spec.layers),
        "sliding_windows": sorted({mixer.window for mixer in spec.attentions if mixer.window}),
        "vocabulary": spec.vocab,
        "tied_embeddings": spec.tied,
        "context": spec.max_len,
        "parameters": count,
        "stored_as": stored,
        "file_bytes": facts.bytes,
        "dtype": engine.dtype,
        "weights_in": weights_in(packing, engine),
        "weight_bytes": measure(facts.path, spec, packing).weights,
        "read_by_a_pass": read_by_a_pass(facts, packing),
        "kv_bytes_per_token": facts.kv_bytes_per_token,
        "kv_bytes_full_context": facts.kv_bytes_per_token * spec.max_len,
        "linear_layers": packing.describe(),
        "chat_template": bool(text.tokenizer.chat_template),
        "generation_defaults": {k: v for k, v in text.defaults.items() if k in SAMPLING_KEYS},
    }


def read_by_a_pass(facts: "Facts", packing: "Packing") -> dict[str, int] | None:
    """Bytes of the linear layers and the head in a quantised file and in memory, where they keep their own bits."""
    from paceline.model.checkpoint import open_tensors
    from paceline.model.linear import STORED
    from paceline.model.stored import hot_bytes

    found = hot_bytes(open_tensors(facts.path), facts.spec) if packing.name == STORED else None
    return None if found is None else {"file": found[0], "memory": found[1]}


def weights_in(packing: "Packing", engine: EngineArgs) -> str:
    """Name of the form that the linear layers have in memory."""
    from paceline.model.linear import STORED

    if packing.name.startswith(STORED):
        return "own bits"
    return engine.dtype if engine.quantize in (None, "none") else str(engine.quantize)


def parameters(facts: "Facts") -> tuple[int, list[str]]:
    """(number, types they are stored as), from the headers; a head that is tied counts once."""
    from paceline.model.checkpoint import open_tensors

    tensors = open_tensors(facts.path)
    names = [name for name in tensors.place if not (facts.spec.tied and name == "lm_head.weight")]
    return sum(prod(tensors.shape(name)) for name in names), sorted({tensors.kind(name) for name in names})


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
    """Model and draft side by side, a line for what belongs together."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("", "model", "draft")[: len(columns) + 1]:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    cells = [lines(column) for column in columns]
    for name in cells[0]:
        table.add_row(name, *(column[name] for column in cells))
    return table


def read_line(it: dict[str, int] | None) -> str:
    """Bytes in memory, and their ratio to those in the file."""
    if it is None:
        return "all weights"
    return f"{size(it['memory'])}, {it['memory'] / it['file']:.3f} of the file's {size(it['file'])}"


def lines(it: dict[str, Any]) -> dict[str, str]:
    """What `describe` says, for people."""
    sizes = f"{it['layers']} x {it['hidden']}, heads {it['heads']}/{it['kv_heads']} x {it['head_dim']}, ffn {it['ffn']}"
    windows = ", ".join(map(str, it["sliding_windows"]))
    defaults = " ".join(f"{k}={v}" for k, v in it["generation_defaults"].items())
    return {
        "path": short(it["path"]),
        "family": f"{it['family']}, {count(it['parameters'])} parameters",
        "layers": sizes,
        "vocabulary": f"{it['vocabulary']:,}{', tied' if it['tied_embeddings'] else ''}",
        "context": f"{it['context']:,} tokens{f', windows of {windows}' if windows else ''}",
        "file": f"{size(it['file_bytes'])}, {', '.join(it['stored_as'])}",
        "weights": f"{size(it['weight_bytes'])}, {it['weights_in']}",
        "read by a pass": read_line(it["read_by_a_pass"]),
        "K/V cache": f"{size(it['kv_bytes_per_token'])} a token, {size(it['kv_bytes_full_context'])} full",
        "computed by": it["linear_layers"].split(",")[0],
        "template": "yes" if it["chat_template"] else "no",
        "defaults": defaults or "none",
    }


def size(number: float) -> str:
    """Bytes in KB, MB or GB of a thousand each."""
    if number < 1000:
        return f"{number:.0f} bytes"
    power = 1 if number < 1e6 else 2 if number < 1e9 else 3
    value = number / 1000**power
    return f"{value:.3g} {'KMG'[power - 1]}B" if value < 1000 else f"{value:,.0f} GB"


def count(number: int) -> str:
    """Millions or billions."""
    return f"{number / 1e9:.3g} B" if number >= 1e9 else f"{number / 1e6:.3g} M"


def short(path: str, most: int = 28) -> str:
    """A path's end."""
    return path if len(path) <= most else "..." + path[3 - most :]


def ladder(drafters: list[Fit]) -> str:
    """Table of drafters by the verifiers that accept them, one line per group of equal drafters. --json says what the
    others lack."""
    rules = [key for key in drafters[0] if key not in ("drafter", "summary")]
    groups: dict[str, list[str]] = {}
    for entry in drafters:
        able = [rule for rule in rules if not entry[rule]]
        key = "Drafters under every verifier" if len(able) == len(rules) else f"Drafters under {', '.join(able)}"
        groups.setdefault(key if able else "Drafters that lack something here (--json says what)", []).append(
            str(entry["drafter"])
        )
    return "\n".join(f"{key}: {', '.join(names)}" for key, names in groups.items())
