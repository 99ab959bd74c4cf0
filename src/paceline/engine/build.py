"""From a user's options to an engine with its text half."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cache.cache import blocks_in
from paceline.core.errors import CheckpointError, InputError, RefusalError
from paceline.core.registry import refusal

if TYPE_CHECKING:
    from paceline.draft import UserFn
    from paceline.engine.loop import Engine
    from paceline.engine.text import Text

DEMO = Path(__file__).parent.parent / "demo"


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that shapes an engine; the same words on the command line."""

    model: str | Path | None = None
    """A directory in Hugging Face layout or a hub id; None: the bundled demo pair."""
    draft: str | Path | None = None
    """A small model of the same vocabulary."""
    drafter: "str | UserFn | None" = None
    """None: `auto`, the planner chooses. A function: the `user` drafter."""
    verifier: str = "exact"
    nodes: int | None = None
    """Drafted tokens a step; None: the drafter's own number, less when many requests run."""
    dtype: str = "bfloat16"
    quantize: str | None = None
    """"int8": the linear layers of model and draft in int8 (W8A8). The text is then the quantised model's own."""
    device: str = "cpu"
    threads: int | None = None
    max_model_len: int | None = None
    memory: int | str | None = None
    """Bytes of K/V cache for target and draft together, e.g. 2_000_000_000 or "2G"; None: up to a quarter of the
    free memory, no more than max_requests full contexts can use."""
    block_size: int = 16
    max_requests: int = 64
    row_budget: int = 512
    prefix_cache: bool = True
    eviction: str = "lru"
    """Which cached prefix to forget when room is needed: lru, det, mark0, mark_predict or shadow."""
    schedule: str = "chunked"
    """How prompts and decodes share the steps: chunked, or for comparison prefill_first or decode_first."""
    order: str = "fcfs"
    """Who is served first: fcfs, priority, deadline or fair."""
    tbt_target_ms: float | None = None
    """Longest time between two steps of one who decodes, for chunked; None: row_budget alone limits a step."""
    group_size: int | None = None
    """Most requests that decode in a step, of equal row counts and lengths where possible (EXSPEC); None: all."""
    revision: str | None = None
    token: str | None = None
    """Access token of the hub."""
    check: bool = False
    """Verify the cache's book-keeping after every step (slow)."""


def build(options: Options) -> "tuple[Engine, Text]":
    """Load the models and make an engine. Raises CheckpointError, RefusalError, CapacityError or InputError."""
    import torch

    from paceline.cache.policies import policy
    from paceline.engine.loop import Engine, EngineConfig
    from paceline.engine.text import Text
    from paceline.model.checkpoint import resolve
    from paceline.model.load import load_model
    from paceline.schedule import policies as schedules

    for name, least in (
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
    schedules.check(options.schedule, options.order, options.tbt_target_ms, options.group_size)
    check_device(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    where: dict[str, Any] = {
        "dtype": options.dtype,
        "quantize": options.quantize,
        "device": options.device,
        "max_len": options.max_model_len,
    }
    model_at, draft_at = paths(options)
    path = resolve(model_at, options.revision, options.token)
    model, text = load_model(path, **where), Text(path)
    draft = None
    if draft_at is not None:
        draft_path = resolve(draft_at, None, options.token)
        draft = load_model(draft_path, **{**where, "max_len": None})
        size = model.vocab_size
        if draft.vocab_size != size or text.vocabulary(size) != Text(draft_path).vocabulary(size):
            raise RefusalError(
                f"The draft {draft_at} has another vocabulary ({draft.vocab_size} entries) than the model "
                f"({model.vocab_size}); use a draft made for this tokenizer, or drafter='ngram'."
            )
    user = options.drafter if callable(options.drafter) else None
    name = options.drafter if isinstance(options.drafter, str) else "user" if user else "auto"
    _check_pair(name, options.verifier, {n for n, it in (("draft", draft), ("callable", user)) if it})
    per_token = model.kv_bytes_per_token + (draft.kv_bytes_per_token if draft else 0)
    config = EngineConfig(
        blocks=blocks_for(options, per_token, model.max_len),
        block_size=options.block_size,
        max_requests=options.max_requests,
        row_budget=max(options.row_budget, options.max_requests),
        drafter=name,
        verifier=options.verifier,
        nodes={} if options.nodes is None else {name: options.nodes},
        free_rows=model.packing.free_rows if options.nodes is None else None,
        prefix_cache=options.prefix_cache,
        eviction=options.eviction,
        schedule=options.schedule,
        order=options.order,
        tbt_target_ms=options.tbt_target_ms,
        group_size=options.group_size,
        check=options.check,
    )
    eos = text.eos()
    engine = Engine(model, config, draft=draft, callable=user, tokenizer=text.tokenizer, eos=eos)
    if engine.cards[name].arms or options.tbt_target_ms is not None:
        from paceline.engine.calibrate import calibrated

        engine.chooser.times = calibrated(engine, facts(options, model, draft))
    return engine, text


def facts(options: Options, *models: Any) -> dict[str, Any]:
    """What step times depend on."""
    import torch

    sizes = [(m.describe(), m.weight_bytes, m.kv_bytes_per_token, m.vocab_size) for m in models if m is not None]
    shape = (options.block_size, options.row_budget, options.max_requests, torch.get_num_threads(), torch.__version__)
    return {"models": sizes, "shape": shape, "drafter": options.drafter}


def check_device(device: str) -> None:
    """Raise InputError for a device that this machine or this torch does not have."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device is {device!r}, which cannot be used here ({reason}); use cpu, or cuda.") from None


def paths(options: Options) -> tuple[str | Path, str | Path | None]:
    if options.model is not None:
        return options.model, options.draft
    if not (DEMO / "target" / "config.json").is_file():
        raise CheckpointError("No model was given and this installation lacks the demo pair; give model=PATH.")
    return DEMO / "target", options.draft or DEMO / "draft"


def _check_pair(drafter: str, verifier: str, have: set[str]) -> None:
    from paceline.draft import DRAFTERS
    from paceline.verify import VERIFIERS

    reason = refusal(drafter, DRAFTERS.card(drafter), verifier, VERIFIERS.card(verifier), have)
    if reason:
        raise RefusalError(reason)


def blocks_for(options: Options, bytes_per_token: int, max_len: int) -> int:
    """Blocks of the K/V pool, target and draft together. CapacityError when not even one fits."""
    if options.memory is None:
        import psutil

        contexts = bytes_per_token * max_len * options.max_requests
        budget = max(min(psutil.virtual_memory().available // 4, contexts), bytes_per_token * options.block_size)
    else:
        budget = parse_bytes(options.memory)
    return blocks_in(budget, bytes_per_token, options.block_size)


UNITS: dict[str, int] = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(value: int | str) -> int:
    """Bytes from 1500000, "512M", "2G", "1.5GiB"."""
    if isinstance(value, int):
        return value
    text = value.strip().upper().removesuffix("IB").removesuffix("B")
    unit = text[-1:] if text[-1:] in UNITS else ""
    try:
        return int(float(text.removesuffix(unit)) * UNITS[unit])
    except ValueError:
        raise InputError(f"memory is {value!r}, but it must be bytes such as 2G, 512M or 1500000.") from None
