"""From a user's options to an engine with its text half."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.component import DRAFT, TARGET, Component
from paceline.core.errors import CheckpointError, InputError, RefusalError
from paceline.core.forest import MAX_CANDIDATES
from paceline.core.registry import refusal
from paceline.model.catalogue import CATALOGUE
from paceline.plan.memory import MEMORIES, BudgetShape, MemoryModel

if TYPE_CHECKING:
    from paceline.draft import UserFn
    from paceline.engine.loop import Engine
    from paceline.engine.text import Text
    from paceline.model.linear import Packing
    from paceline.model.spec import ModelSpec

log = logging.getLogger("paceline")
TOKENIZER = 12
"""Most bytes that a tokenizer takes for each of its file."""
DEMO = Path(__file__).parent.parent / "demo"


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that shapes an engine; the same words on the command line."""

    model: str | Path | None = None
    """A directory in Hugging Face layout or a hub id; None: the bundled demo pair."""
    draft: str | Path | None = None
    """A small model of the same vocabulary, or the directory of a head that was trained for the model."""
    drafter: "str | UserFn | None" = None
    """None: `auto`, the planner chooses. A function: the `user` drafter."""
    verifier: str = "exact"
    """Verifier that judges drafts by default: exact keeps the text of a seed; chain, rrs and kseq keep the
    distribution."""
    nodes: int | None = None
    """Drafted tokens a step; None: the drafter's own number, less when many requests run."""
    dtype: str = "bfloat16"
    """Data type of weights and K/V cache: bfloat16, float32 or float16."""
    quantize: str | None = None
    """"int8": the linear layers of model and draft in int8 (W8A8); "int4": in 4 bits by groups of 32, head
    and embedding in 8, activations in 8. The text is then the quantised model's own. None: a checkpoint that is
    quantised already keeps its own bits; "none" widens them to `dtype`."""
    draft_quantize: str | None = None
    """Quantization of the draft alone, with the values of `quantize`; it changes only the speed, never the output.
    None: as quantize."""
    kv_dtype: str | None = None
    """"int8": keys and values in 8 bits, which leaves room for 1.88 times the tokens. None: as dtype."""
    device: str = "cpu"
    """cpu, cuda, cuda:1, ..."""
    threads: int | None = None
    """CPU threads; None: as many as torch finds cores. It holds for the whole process."""
    max_model_len: int | None = None
    """Longest prompt plus output, in tokens; None: what the model was trained for."""
    chat_template: str | Path | None = None
    """A file with a Jinja template to render conversations by, in place of the checkpoint's."""
    memory: int | str | None = None
    """Bytes for everything above the bare process: weights, K/V cache, draft, logits and scratch, e.g. 2_000_000_000 or
    "2G". Where it is short, `row_budget`, `max_requests` and `nodes` shrink. None: what weights and scratch take, and a
    K/V cache of up to a quarter of the free memory, no more than max_requests full contexts can use."""
    blocks: int | None = None
    """Blocks of the K/V cache; None: as many as `memory` leaves room for."""
    block_size: int = 16
    """Tokens of a block of the K/V cache."""
    max_requests: int = 64
    """Most samples that are decoded at once; the others wait."""
    row_budget: int = 512
    """Most rows (tokens of prompts and drafts) of one pass."""
    prefix_cache: bool = True
    """Keep the K/V of texts that may begin another."""
    weights_cache: bool = True
    """Keep packed weights of large models on disk, under $PACELINE_CACHE, for the next start."""
    late_weights: bool = False
    """Where they are kept, begin before they lie in memory; the first passes are slower, and the first token is there
    sooner."""
    keep_learned: bool = False
    """Keep what the planner learns of drafters under $PACELINE_CACHE, and begin with what was kept; the commands that
    serve and answer do."""
    eviction: str = "lru"
    """Which cached prefix to forget when room is needed: lru, det, mark0, mark_predict or shadow."""
    overlap: str = "none"
    """How drafters may work while the target verifies: none, shared (all cores for both), T+D (threads of target and
    draft, as 3+1) or stream (on a GPU)."""
    online: float = 0.0
    """Share of a core with which a draft model of another vocabulary learns from the verified text in the background;
    0: it does not."""
    length: str = "goodput"
    """Policy that decides which drafter drafts how many tokens: goodput, or fixed for comparison."""
    schedule: str = "chunked"
    """How prompts and decodes share the steps: chunked, or for comparison prefill_first or decode_first."""
    order: str = "fcfs"
    """Order in which requests are served: fcfs, priority, deadline or fair."""
    tbt_target_ms: float | None = None
    """Maximum time between two steps of a decoding request, for chunked; None: row_budget alone limits a step."""
    group_size: int | None = None
    """Most requests that decode in a step, of equal row counts and lengths where possible (EXSPEC); None: all."""
    revision: str | None = None
    """Branch, tag or commit of the model on the hub."""
    token: str | None = None
    """Access token of the hub."""
    check: bool = False
    """Verify the cache's book-keeping after every step (slow)."""


def build(options: Options) -> "tuple[Engine, Text]":
    """Load the models and make an engine. Raises CheckpointError, RefusalError, CapacityError or InputError."""
    import torch

    from paceline.cache.policies import policy
    from paceline.draft import DRAFTERS
    from paceline.draft.companion import companions
    from paceline.draft.crossvocab import FOREIGN, ForeignModel
    from paceline.draft.head import load_head, method_of
    from paceline.draft.surfaces import Surfaces
    from paceline.engine.config import EngineConfig
    from paceline.engine.ids import check_defaults, known_ids
    from paceline.engine.loop import Engine
    from paceline.engine.text import Text
    from paceline.model.checkpoint import resolve
    from paceline.model.load import load_model
    from paceline.schedule import policies as schedules

    for name, least in (
        ("blocks", 1),
        ("threads", 1),
        ("block_size", 1),
        ("max_requests", 1),
        ("row_budget", 1),
        ("max_model_len", 2),
    ):
        value = getattr(options, name)
        if value is not None and value < least:
            raise InputError(f"{name} is {value}, but it must be at least {least}.")
    policy(options.eviction)
    check_length(options.length, options.drafter)
    schedules.check(options.schedule, options.order, options.tbt_target_ms, options.group_size)
    check_device(options.device)
    check_overlap(options.overlap, options.device)
    check_online(options.online, options.drafter)
    if options.threads:
        torch.set_num_threads(options.threads)
    where: dict[str, Any] = {
        "dtype": options.dtype,
        "quantize": options.quantize,
        "kv_dtype": options.kv_dtype,
        "device": options.device,
        "max_len": options.max_model_len,
        "cache": options.weights_cache,
        "late": options.late_weights and options.overlap == "none",
    }
    where_draft = {**where, "quantize": drafts_in(options), "max_len": None}
    model_at, draft_at = paths(options)
    user = options.drafter if callable(options.drafter) else None
    name = options.drafter if isinstance(options.drafter, str) else "user" if user else "auto"
    draft_path = None if draft_at is None else resolve(draft_at, None, options.token)
    head = None if draft_path is None else method_of(draft_path)
    if options.draft_quantize is not None and (draft_path is None or head is not None):
        raise InputError(
            f"draft_quantize is {options.draft_quantize!r}, but there is no draft model here"
            f"{'' if head is None else ', only a head, which keeps its own form'}; leave it out."
        )
    foreign = head is None and draft_path is not None and FOREIGN in {need.name for need in DRAFTERS.card(name).needs}
    have = provided(draft_path, FOREIGN if foreign else head or DRAFT) | ({"callable"} if user else set())
    _check_pair(name, options.verifier, have)
    path = resolve(model_at, options.revision, options.token)
    shape = shape_of(options, path, draft_path)
    text = Text(path, options.chat_template)
    model = load_model(path, **where)
    draft, components = None, dict[str, Component]()
    if head is not None and model.device.type != "cpu":
        raise RefusalError(f"The head {draft_at} drafts on a CPU only, but device is {options.device!r}; leave it out.")
    if draft_path is not None and head is not None:
        part, component = load_head(draft_path, model.width, model.vocab_size, model.packing)
        components[part] = component
    elif draft_path is not None and foreign:
        speaks = Text(draft_path).tokenizer
        small = load_model(draft_path, **where_draft)
        target = Surfaces(text.tokenizer, model.vocab_size)
        components[FOREIGN] = ForeignModel(
            small, Surfaces(speaks, small.vocab_size), target, model.vocab_size, online=options.online
        )
    elif draft_path is not None:
        own, other = (it.vocabulary(model.vocab_size) for it in (text, Text(draft_path)))
        if own != other:
            raise RefusalError(
                f"The draft {draft_at} has another vocabulary ({len(other)} entries) than the model ({len(own)}); use "
                "a draft made for this tokenizer, or none, or drafter crossvocab, which translates."
            )
        draft = load_model(draft_path, **where_draft, vocabulary=(model.vocab_size, text.size))
        components[DRAFT] = draft
        components.update(companions(draft_path, model, draft))
    config = EngineConfig(
        blocks=shape.blocks,
        block_size=options.block_size,
        max_requests=shape.requests,
        row_budget=shape.rows,
        drafter=name,
        verifier=options.verifier,
        nodes={} if options.nodes is None else dict.fromkeys((name, *DRAFTERS.card(name).arms), options.nodes),
        cheap_rows=model.packing.free_rows if options.nodes is None else None,
        row_cost=model.packing.row if options.nodes is None else 0.0,
        prefix_cache=options.prefix_cache,
        eviction=options.eviction,
        length=options.length,
        overlap=options.overlap,
        schedule=options.schedule,
        order=options.order,
        tbt_target_ms=options.tbt_target_ms,
        group_size=options.group_size,
        remember=shape.remember,
        check=options.check,
    )
    eos = known_ids(text.eos, model.vocab_size, path)
    check_defaults(text.defaults, path)
    from paceline.engine import learned

    known = learned.recall(options)
    engine = Engine(model, config, components=components, callable=user, tokenizer=text.tokenizer, eos=eos, known=known)
    chooses = DRAFTERS.card(name).arms or options.tbt_target_ms is not None
    if chooses and engine.desk.policy.state() is not None:
        from paceline.engine.calibrate import calibrated

        engine.table.times.become(calibrated(engine, facts(options, model, *components.values())))
    return engine, text


def drafts_in(options: Options) -> str | None:
    """`quantize` of the draft model."""
    return options.quantize if options.draft_quantize is None else options.draft_quantize


def facts(options: Options, *models: Any) -> dict[str, Any]:
    """What step times depend on."""
    import torch

    sizes = [(m.describe(), m.weight_bytes, m.kv_bytes_per_token, m.vocab_size) for m in models if m is not None]
    shape = (options.block_size, options.row_budget, options.max_requests, torch.get_num_threads(), torch.__version__)
    return {"models": sizes, "shape": shape, "drafter": options.drafter, "overlap": options.overlap}


def check_length(length: str, drafter: object) -> None:
    """Raise InputError or RefusalError for a length policy that is not known, or cannot serve this drafter."""
    from paceline.draft import DRAFTERS
    from paceline.plan import POLICIES

    card, name = POLICIES.card(length), drafter if isinstance(drafter, str) else "user" if drafter else "auto"
    if not card.arms and DRAFTERS.card(name).arms:
        raise RefusalError(f"length {length!r} does not choose between drafters; name one in place of {name!r}.")


def check_overlap(overlap: str, device: str) -> None:
    """Raise InputError for a placement that is not known, or that this device does not have."""
    from paceline.engine.placement import placement

    placement(overlap, device)


def check_online(online: float, drafter: object) -> None:
    """Raise InputError or RefusalError for a share that is none, or a drafter that does not learn while it serves."""
    if not 0 <= online <= 1:
        raise InputError(f"online is {online}, but it must be a share of a core, from 0 (off) to 1.")
    if online and drafter != "crossvocab":
        raise RefusalError(f"online is {online}, but only the drafter crossvocab learns while it serves; name it.")


def check_device(device: str) -> None:
    """Raise InputError for a device that is not served, or that this machine or this torch does not have."""
    import torch

    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise InputError(f"device is {device!r}, but it must be cpu, cuda or cuda:N.")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        count = torch.cuda.device_count()
        have = f"this torch sees {count} such GPUs" if count else "this torch sees no such GPU"
        raise InputError(f"device is {device!r}, but {have}; use cpu.") from None


def paths(options: Options) -> tuple[str | Path, str | Path | None]:
    if options.model is not None:
        listed = None if Path(options.model).exists() else CATALOGUE.get(str(options.model))
        own = None if listed is None else listed.draft or boxed(str(options.model), options.device)
        return options.model, options.draft or own
    if not (DEMO / "target" / "config.json").is_file():
        raise CheckpointError("No model was given and this installation lacks the demo pair; give model=PATH.")
    return DEMO / "target", options.draft or DEMO / "draft"


def boxed(name: str, device: str) -> Path | None:
    """The bundled head for a model of the catalogue, where there is one, it fits what lies here by this name, and the
    device is one that it drafts on."""
    from paceline.draft.head import facts_of
    from paceline.model.checkpoint import read_config
    from paceline.model.pull import have

    path = DEMO / CATALOGUE[name].head
    if not CATALOGUE[name].head or device != "cpu" or not (path / "config.json").is_file():
        return None
    if (found := have(name)) is not None:
        spec, facts = read_config(found), facts_of(path)
        return path if (spec.hidden, spec.vocab) == (facts.width, facts.vocab) else None
    return path


def provided(draft: Path | None, kind: str) -> set[str]:
    """What drafters may need, of an engine with this draft, which is of a kind: `draft`, or a head's method. Every
    decoder that is loaded here can run some of its layers."""
    from paceline.draft.companion import kinds

    models = {TARGET} | ({kind} & {DRAFT} if draft is not None else set())
    return {f"{name}:program" for name in models} | (set() if draft is None else {kind, *kinds(draft)})


def _check_pair(drafter: str, verifier: str, have: set[str]) -> None:
    from paceline.draft import DRAFTERS
    from paceline.verify import VERIFIERS

    reason = refusal(drafter, DRAFTERS.card(drafter), verifier, VERIFIERS.card(verifier), have)
    if VERIFIERS.card(verifier).consent:
        reason = (
            f"Verifier {verifier!r} changes the text, so it cannot be an engine's default; name it in the requests "
            "that consent (SamplingParams)."
        )
    if reason:
        raise RefusalError(reason)


def memory_of(options: Options, path: Path, draft: Path | None = None) -> MemoryModel:
    """The arithmetic of the budget for these checkpoints, from their headers."""
    from paceline.draft.companion import kinds, weight_bytes
    from paceline.draft.head import check_fit, facts_of, footprint_of, method_of
    from paceline.model.checkpoint import read_config
    from paceline.model.load import measure, packing_of

    def of(
        at: Path, longest: int | None = None, quantize: str | None = drafts_in(options)
    ) -> "tuple[ModelSpec, Packing]":
        spec = read_config(at, longest)
        return spec, packing_of(at, spec, options.dtype, quantize, options.device, kv_dtype=options.kv_dtype)

    spec, packing = of(path, options.max_model_len, options.quantize)
    target = measure(path, spec, packing)
    head = draft is not None and method_of(draft) is not None
    if draft is not None and head:
        check_fit(draft, facts_of(draft), spec.hidden, spec.vocab)
    drafts = None if draft is None else footprint_of(draft, packing) if head else measure(draft, *of(draft))
    files = [at if at.suffix == ".gguf" else at / "tokenizer.json" for at in (path, draft) if at is not None]
    rest = sum(TOKENIZER * tokenizer_bytes(file) for file in files if file.is_file())
    rest += 0 if draft is None else sum(weight_bytes(draft / kind) for kind in kinds(draft))
    return MemoryModel(target, drafts, spec.max_len, options.block_size, rest)


def tokenizer_bytes(file: Path) -> int:
    """Size in bytes of tokenizer.json, or of everything in a GGUF file before its weights."""
    if file.suffix != ".gguf":
        return file.stat().st_size
    from paceline.model.gguf import load_header

    return min(entry.offset for entry in load_header(file).tensors.values() if entry.file == file)


def shape_of(options: Options, path: Path, draft: Path | None) -> BudgetShape:
    """What comes of `options.memory`, before anything is loaded. CapacityError where it is too little."""
    memory, rows = memory_of(options, path, draft), max(options.row_budget, options.max_requests)
    if options.memory is not None:
        shape = memory.fit(parse_bytes(options.memory), rows, options.max_requests, options.blocks)
        log.info("memory: %s; %s", shape, {name: f"{size:,}" for name, size in memory.parts(shape).items()})
        return shape
    blocks = options.blocks
    if blocks is None:
        import psutil

        block = sum(m.kv(1, options.block_size) for m in (memory.target, memory.draft) if m is not None)
        contexts = -(-memory.max_len // options.block_size) * options.max_requests
        blocks = max(1, min(psutil.virtual_memory().available // 4 // block, contexts))
    return BudgetShape(blocks, rows, MAX_CANDIDATES, options.max_requests, MEMORIES[1])


UNITS: dict[str, int] = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(value: int | str) -> int:
    """Bytes from 1500000, "512M", "2G", "1.5GiB"."""
    if isinstance(value, int):
        return value
    text = value.strip().upper().removesuffix("IB").removesuffix("B")
    unit = text[-1:] if text[-1:] in UNITS else ""
    try:
        return int(float(text.removesuffix(unit)) * UNITS[unit])
    except (ValueError, OverflowError):
        raise InputError(f"memory is {value!r}, but it must be bytes such as 2G, 512M or 1500000.") from None
