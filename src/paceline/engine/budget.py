"""The budget of an engine before anything is loaded: what its checkpoints take, and what is done with `memory`."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.component import DRAFT, TARGET
from paceline.core.errors import InputError
from paceline.core.plan import Work
from paceline.core.registry import refusal
from paceline.draft import DRAFTERS
from paceline.draft.companion import kinds, weight_bytes
from paceline.draft.crossvocab import TrainedAdapter
from paceline.draft.head import check_fit, facts_of, footprint_of, method_of
from paceline.draft.mtp import MTP, holds_head, own_footprint
from paceline.draft.vocabulary import wish_of
from paceline.engine import calibrate, learned
from paceline.engine.adapters import loras_of
from paceline.engine.config import EngineConfig
from paceline.engine.gpu import room_for_blocks
from paceline.engine.options import Options
from paceline.engine.ranks import part_of
from paceline.engine.tunes import zoo_bytes
from paceline.memory.choice import BudgetChoice, BudgetPlanner, SpeedModel, price_by_size, times_by_size
from paceline.memory.sums import MEMORIES, BudgetShape, MemoryModel
from paceline.model.checkpoint import DTYPES, read_config
from paceline.model.footprint import Footprint
from paceline.model.linear import unfused
from paceline.model.load import measure, packing_of
from paceline.plan import DrafterFacts
from paceline.verify import VERIFIERS

if TYPE_CHECKING:
    from paceline.model.linear import Packing
    from paceline.model.spec import ModelSpec

log = logging.getLogger("paceline")
TOKENIZER = 12
"""Most bytes that a tokenizer takes for each of its file."""
PRIOR_ROW = 0.02
"""Cost of a further row, in passes of one row, where a packing does not say."""
STATE_BYTES_PER_TOKEN = 64 << 10
"""Bytes of the states that lie with blocks, for each of their tokens, at most: about what keys and values take in a
model of the same size that attends in all layers."""
UNITS: dict[str, int] = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def planner_of(options: Options, path: Path, draft: Path | None = None, kind: str = DRAFT) -> BudgetPlanner:
    """Planner for the budget of this pair, from its headers and from what earlier starts have measured and
    learned. A draft that only `auto` would use may be left out."""
    name = options.drafter if isinstance(options.drafter, str) else "user" if options.drafter else "auto"
    own = draft is None and holds_head(path)
    models = {draft is not None or own: memory_of(options, path, draft)}
    if draft is not None and name == "auto" and options.draft_vocab is None:
        models[False] = memory_of(options, path)
    have = {f"{TARGET}:program", *([MTP] if own else [])}
    if draft is not None:
        have |= {kind, *kinds(draft), *([f"{DRAFT}:program"] if kind == DRAFT else [])}
    times, facts = calibrate.kept(prices(options)), drafters(options, name, have)
    guessed = times is None
    small = next((it.draft.weights for it in models.values() if it.draft is not None), 0)
    weights = next(iter(models.values())).target.weights
    if times is None:
        spec = read_config(path, options.max_model_len)
        row = packing_of(path, spec, options.dtype, options.quantize, options.device, kv_dtype=options.kv_dtype).row
        times = times_by_size(weights, small, facts, row or PRIOR_ROW)
    else:
        level = times.of_target(Work(1, 1, 0, 0, 1)) * small / weights
        for arm in [arm for arm, it in facts.items() if it.group is not None and arm not in times.drafts]:
            price_by_size(times, arm, facts[arm], level)  # an earlier start left its model out, so it was not timed
            guessed = True
        facts = {arm: it for arm, it in facts.items() if arm in times.drafts}  # of others nothing can be said
    speeds = SpeedModel(times, facts, learned.recall(options), EngineConfig.patience_of(options))
    named = 0 if name in ("auto", "none") else max((it.nodes for it in facts.values()), default=0)
    return BudgetPlanner(models, speeds, options.overlap != "none", named, guessed)


def drafters(options: Options, name: str, have: set[str]) -> dict[str, DrafterFacts]:
    """Drafters that the engine would choose from: all that work with what it has."""
    found, rule = dict[str, DrafterFacts](), VERIFIERS.card(options.verifier)
    for arm in DRAFTERS.card(name).arms or (() if name in ("none", "user") else (name,)):
        card = DRAFTERS.card(arm)
        shy = name == "auto" and any(need.name not in have for need in card.auto_needs)
        if shy or (card.ahead and options.overlap == "none") or refusal(arm, card, options.verifier, rule, have):
            continue
        found[arm] = DrafterFacts(
            nodes=card.nodes if options.nodes is None else options.nodes, chain=card.shape == "chain", group=card.group,
            stops_early=card.stops_early, most=options.nodes, always_asked=card.always_asked, runs=card.runs,
            ahead=card.ahead,
        )  # fmt: skip
    return found


def prices(options: Options) -> Path:
    """Where step times of this pair of models are kept for the next start, whatever its budget."""
    return learned.place(options, f"prices-{calibrate.VERSION}")


def chosen(options: Options, path: Path, draft: Path | None, kind: str = DRAFT) -> BudgetChoice:
    """Plan for `options.memory`, and the runner-up. CapacityError where it is too little."""
    rows = max(options.row_budget, options.max_requests)
    memory = parse_bytes(options.memory or 0)
    return planner_of(options, path, draft, kind).choose(memory, rows, options.max_requests, options.blocks)


def words_of(choice: BudgetChoice, options: Options, draft: Path | None) -> list[str]:
    """The choice and its runner-up, in words."""
    timed = prices(options).is_file()

    def words(draft_kept: bool) -> str:
        return "" if draft is None else "the draft model kept" if draft_kept else "the draft model left out"

    found = [f"Of this memory: {choice.plan.words(words(choice.plan.draft), timed)}."]
    if choice.other is not None:
        ratio = choice.other.score / choice.plan.score
        rest = choice.other.words(words(choice.other.draft), timed)
        found.append(f"Next best ({ratio:.2f} of its throughput): {rest}.")
    if not timed:
        found.append("Step times were not measured here yet: this was decided by the sizes of the models alone.")
    return found


def shape_of(options: Options, path: Path, draft: Path | None) -> BudgetShape:
    """The sizes of an engine, before anything is loaded. CapacityError where `options.memory` is too little."""
    if options.memory is not None:
        return chosen(options, path, draft).plan.shape
    blocks, memory = options.blocks, memory_of(options, path, draft)
    rows = max(options.row_budget, options.max_requests)
    if blocks is None:
        models = [m for m in (memory.target, memory.draft) if m is not None]
        several = max(m.unit for m in models)  # blocks that fill whole units of every pool
        each = sum(m.kv(several, memory.block_size) for m in models) / several
        each += memory.states(1) if memory.state_limit is None else 0
        contexts = -(-memory.max_len // memory.block_size) * options.max_requests
        room = room_for_blocks(options.device, sum(m.weights for m in models), memory.target.scratch(rows, 1, rows))
        blocks = max(1, min(int((room - (memory.state_limit or 0)) / each), contexts))
    return BudgetShape(blocks, rows, rows, options.max_requests, MEMORIES[1])


def drafts_in(options: Options) -> str | None:
    """`quantize` of the draft model."""
    return options.quantize if options.draft_quantize is None else options.draft_quantize


def memory_of(options: Options, path: Path, draft: Path | None = None) -> MemoryModel:
    """The arithmetic of the budget for these checkpoints, from their headers."""

    def of(
        at: Path, longest: int | None = None, quantize: str | None = drafts_in(options)
    ) -> "tuple[ModelSpec, Packing]":
        spec = read_config(at, longest)
        if at == path and options.expert_parallel > 1:
            return spec, unfused(DTYPES[options.dtype])
        return spec, packing_of(at, spec, options.dtype, quantize, options.device, kv_dtype=options.kv_dtype)

    spec, packing = of(path, options.max_model_len, options.quantize)
    target = part_of(measure(path, spec, packing), options.tensor_parallel)
    head = draft is not None and method_of(draft) is not None
    if draft is not None and head:
        check_fit(draft, facts_of(draft), spec.hidden, spec.vocab)
    if draft is None:
        drafts = own_footprint(path, packing) if holds_head(path) else None
    else:
        drafts = footprint_of(draft, packing) if head else measure(draft, *of(draft))
    files = [at if at.suffix == ".gguf" else at / "tokenizer.json" for at in (path, draft) if at is not None]
    rest = sum(TOKENIZER * tokenizer_bytes(file) for file in files if file.is_file())
    if draft is not None:
        beside = kinds(draft) + ([TrainedAdapter.kind] if TrainedAdapter.lies_in(draft) else [])
        rest += sum(weight_bytes(draft / kind) for kind in beside)
    rest += lora_bytes(options) + zoo_bytes(options, path, packing.dtype.itemsize)
    longest, held = spec.max_len, 4 * spec.hidden if options.schedule == "layered" else 0
    if options.draft_vocab is not None:
        spec, packing = (spec, packing) if draft is None else of(draft)
        rest += (packing.head or packing).size(wish_of(options.draft_vocab).size, spec.hidden)
    limit = state_limit(options.state_memory, target, drafts)
    block = block_of(options.block_size, target, drafts) if limit is None else options.block_size
    return MemoryModel(target, drafts, longest, block, rest, held, limit)


def state_limit(memory: str | int | None, *models: Footprint | None) -> int | None:
    """Bytes of whole states in `state_memory`. InputError where there is none, or no room for one."""
    if memory is None:
        return None
    each = sum(model.state for model in models if model is not None)
    if not each:
        raise InputError("state_memory is given, but no layer of the model or its draft keeps a state; leave it out.")
    if (count := parse_bytes(memory, "state_memory") // each) < 1:
        raise InputError(f"state_memory is {memory}, but a text's state takes {each:,} bytes; give at least that.")
    return count * each


def block_of(size: int, *models: Footprint | None) -> int:
    """Tokens of a block: `size`, or the power of two from there on with which the states that lie with blocks take no
    more than STATE_BYTES_PER_TOKEN."""
    state = sum(model.state for model in models if model is not None)
    while state > size * STATE_BYTES_PER_TOKEN:
        size *= 2
    return size


def lora_bytes(options: Options) -> int:
    """Bytes that adapters may take: `lora_memory`, or those of the files that are named, of which `max_loras` at most
    are in memory at a time. Factors in float32, which PyTorch keeps, are twice those of a file in bfloat16."""
    if options.lora_memory is not None:
        return parse_bytes(options.lora_memory)
    sizes = sorted((sum(size_of(at) for at in pair) for pair in loras_of(options.lora).values()), reverse=True)
    return 2 * sum(sizes[: options.max_loras])


def size_of(adapter: Path | None) -> int:
    """Bytes of the files of an adapter, or of a head; 0 where there are none."""
    if adapter is None or not adapter.is_dir():
        return adapter.stat().st_size if adapter is not None and adapter.is_file() else 0
    for names in ("adapter_model.safetensors", "adapter_model.bin", "*.safetensors", "*.bin", "*.pt"):
        if files := [*adapter.glob(names)]:
            return sum(file.stat().st_size for file in files if file.is_file())
    return 0


def tokenizer_bytes(file: Path) -> int:
    """Size in bytes of tokenizer.json, or of everything in a GGUF file before its weights."""
    if file.suffix != ".gguf":
        return file.stat().st_size
    from paceline.model.gguf import load_header

    return min(entry.offset for entry in load_header(file).tensors.values() if entry.file == file)


def parse_bytes(value: int | str, name: str = "memory") -> int:
    """Bytes from 1500000, "512M", "2G", "1.5GiB"."""
    if isinstance(value, int):
        return value
    text = value.strip().upper().removesuffix("IB").removesuffix("B")
    unit = text[-1:] if text[-1:] in UNITS else ""
    try:
        return int(float(text.removesuffix(unit)) * UNITS[unit])
    except (ValueError, OverflowError):
        raise InputError(f"{name} is {value!r}, but it must be bytes such as 2G, 512M or 1500000.") from None
