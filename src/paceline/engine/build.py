"""From a user's options to an engine with its text half."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from paceline.attend.device import tensors_on
from paceline.core.component import DRAFT, TARGET, Component, Narrows, with_files
from paceline.core.errors import CheckpointError, InputError, RefusalError
from paceline.core.plan import Work
from paceline.core.registry import refusal
from paceline.draft import DRAFTERS, NEED_PROGRAM
from paceline.draft.companion import companions, kinds
from paceline.draft.crossvocab import FOREIGN, ForeignModel
from paceline.draft.head import facts_of, load_head, method_of
from paceline.draft.mtp import MTP, Mtp, holds_head
from paceline.draft.surfaces import Surfaces
from paceline.draft.vocabulary import DraftVocabulary, vocabulary_of, wish_of
from paceline.engine.adapters import Adapters, loras_of
from paceline.engine.budget import chosen, drafts_in, memory_of, parse_bytes, prices, shape_of, words_of
from paceline.engine.components import stateful
from paceline.engine.config import EngineConfig
from paceline.engine.experts import check_experts, spread
from paceline.engine.gpu import check_device, named_memory
from paceline.engine.ids import check_defaults, known_ids
from paceline.engine.loop import Engine
from paceline.engine.options import Options
from paceline.engine.own_drafts import OwnDrafts
from paceline.engine.ranks import check_ranks, cut
from paceline.engine.text import Text
from paceline.engine.tunes import load_zoo
from paceline.model.catalogue import CATALOGUE, recommended
from paceline.model.checkpoint import read_config, resolve
from paceline.model.decoder import Decoder
from paceline.model.load import load_model
from paceline.model.opened import opened_once
from paceline.plan.memory import BudgetShape
from paceline.sample.drawn import drawn

if TYPE_CHECKING:
    from paceline.core.user import UserFn
    from paceline.engine.block_files import BlockFiles

log = logging.getLogger("paceline")
LOADING_ADVICE = "use fewer blocks, a smaller max_model_len, quantize int8 or int4, or tensor_parallel"
DEMO = Path(__file__).parent.parent / "demo"


def build(options: Options) -> tuple[Engine, Text]:
    """Load the models and make an engine. Raises CheckpointError, RefusalError, CapacityError or InputError."""
    files = None if options.kv_disk is None else kv_files(options)
    check_options(options)
    if options.threads:
        torch.set_num_threads(options.threads)
    with opened_once():
        pair = found(options)
        name, user = drafter_of(options)
        check_draft_vocab(options, pair)
        _check_pair(name, options.verifier, provided(pair.draft, pair.kind) | ({"callable"} if user else set()))
        shape, pair = afforded(options, pair)
        block = block_size_of(options, pair)
        with named_memory("while the model was loaded", LOADING_ADVICE):
            text, model = target(options, pair)
            components = drafting(options, pair, model, text)
    for decoder in (model, *components.values()):
        if isinstance(decoder, Decoder):
            decoder.draws(drawn)
    vocabulary = narrowed(options, model, components, text)
    fixed = {} if options.nodes is None else dict.fromkeys((name, *DRAFTERS.card(name).arms), options.nodes)
    config = EngineConfig.of(
        options, blocks=shape.blocks, max_requests=shape.requests, row_budget=shape.rows, draft_rows=shape.drafted,
        remember=shape.remember,
        drafter=name, nodes=fixed, block_size=block, **costs(options, model, components),
    )  # fmt: skip
    eos = known_ids(text.eos, model.vocab_size, pair.model)
    check_defaults(text.defaults, pair.model)
    from paceline.engine import learned

    known = learned.recall(options)
    with named_memory("while the K/V cache was made", LOADING_ADVICE):
        engine = Engine(
            model, config, components=components, callable=user, tokenizer=text.tokenizer, eos=eos, known=known
        )
    if vocabulary is not None and wish_of(options.draft_vocab or "").learns:
        engine.vocabulary = vocabulary
    load_adapters(engine, text, options)
    start(engine, options)
    if files is not None:
        engine.keep_on_disk(files)
    say_memory(engine)
    return engine, text


def afforded(options: Options, pair: "Pair") -> "tuple[BudgetShape, Pair]":
    """The sizes of the engine, and the pair without its draft model where `memory` is used better without."""
    if options.memory is None:
        return shape_of(options, pair.model, pair.draft), pair
    choice = chosen(options, pair.model, pair.draft, pair.kind)
    left_out = pair.draft is not None and not choice.plan.draft
    for line in words_of(choice, options, pair.draft):
        log.log(logging.WARNING if left_out else logging.INFO, "%s", line)
    if left_out:
        pair = replace(pair, draft=None, kind=MTP if holds_head(pair.model) else DRAFT)
    return choice.plan.shape, pair


def say_memory(engine: Engine) -> None:
    """One line of what lies in memory, in words; a warning where the cache keeps less than the model's context."""
    tokens, context = engine.config.blocks * engine.config.block_size, engine.model.max_len
    weights = sum(getattr(it, "weight_bytes", 0) for it in engine.components.values()) / 1e9
    line = f"Weights take {weights:.2f} GB; the K/V cache holds {tokens:,} tokens; the model's context is {context:,}."
    states = sum(it.state_bytes for it in stateful(engine.components).values())
    if states:
        line += f" A text's state takes {states / 1e6:.1f} MB; one lies with each {engine.config.block_size:,} tokens."
    if tokens < context:
        line += f" No text can be longer than {tokens:,} tokens: give more memory or blocks, or take a smaller model."
    log.log(logging.WARNING if tokens < context else logging.INFO, "%s", line)


@dataclass(frozen=True, slots=True)
class Pair:
    """Where a model and its draft lie, and what the draft's own card says that it is."""

    model: Path
    draft: Path | None
    kind: str
    """`draft`: a model of the same vocabulary; `foreign`: of another; else the method of a head. Without a draft: `mtp`
    where the model brings one along."""


def found(options: Options) -> Pair:
    """The pair of these options, downloaded where it is not here."""
    model_at, draft_at = paths(options)
    draft = None if draft_at is None else resolve(draft_at, None, options.token)
    head = None if draft is None else method_of(draft)
    if options.draft_quantize is not None and (draft is None or head is not None):
        raise InputError(
            f"draft_quantize is {options.draft_quantize!r}, but there is no draft model here"
            f"{'' if head is None else ', only a head, which keeps its own form'}; leave it out."
        )
    name, _ = drafter_of(options)
    foreign = FOREIGN in {need.name for need in DRAFTERS.card(name).needs}
    model, kind = resolve(model_at, options.revision, options.token), FOREIGN if foreign else DRAFT
    own = draft is None and holds_head(model)
    return Pair(model, draft, head or (MTP if own else kind))


def drafter_of(options: Options) -> "tuple[str, UserFn | None]":
    """Name of the engine's drafter, and the user's function if that is the drafter."""
    if callable(options.drafter):
        return "user", options.drafter
    return options.drafter or "auto", None


def target(options: Options, pair: Pair) -> tuple[Text, Decoder]:
    text = Text(pair.model, options.chat_template)
    text.defaults = {**recommended(paths(options)[0]), **text.defaults}
    model = loaded(options, pair.model)
    if pair.draft is not None and pair.kind not in (DRAFT, FOREIGN) and model.device.type != "cpu":
        raise RefusalError(
            f"The head {pair.draft} drafts on a CPU only, but device is {options.device!r}; leave it out."
        )
    return text, model


def loaded(options: Options, path: Path) -> Decoder:
    """The target, in this process, or with its experts or parts of its matrices in several."""
    if options.tensor_parallel > 1:
        return cut(options, path)
    if options.expert_parallel == 1:
        return load_model(path, **form_of(options, options.quantize), max_len=options.max_model_len)
    return spread(options, path)


def drafting(options: Options, pair: Pair, model: Decoder, text: Text) -> dict[str, Component]:
    """The components that draft, by name: each kind of draft is loaded in its own way."""
    if pair.draft is None:
        return {} if pair.kind != MTP else {MTP: with_files(Mtp.of(pair.model, model.packing), pair.model)}
    if pair.kind not in (DRAFT, FOREIGN):
        return dict([load_head(pair.draft, model.width, model.vocab_size, model.packing, len(model.spec.layers))])
    form, theirs = form_of(options, drafts_in(options)), Text(pair.draft)
    if pair.kind == FOREIGN:
        small = load_model(pair.draft, **form)
        surfaces = (Surfaces(theirs.tokenizer, small.vocab_size), Surfaces(text.tokenizer, model.vocab_size))
        return {FOREIGN: ForeignModel(small, *surfaces, model.vocab_size, online=options.online)}
    own, other = (it.vocabulary(model.vocab_size) for it in (text, theirs))
    if own != other:
        raise RefusalError(
            f"The draft {pair.draft} has another vocabulary ({len(other)} entries) than the model ({len(own)}); use "
            "a draft made for this tokenizer, or none, or drafter crossvocab, which translates."
        )
    draft = load_model(pair.draft, **form, vocabulary=(model.vocab_size, text.size))
    return {DRAFT: draft, **companions(pair.draft, model, draft)}


def narrowed(options: Options, model: Decoder, components: dict[str, Component], text: Text) -> DraftVocabulary | None:
    """The draft vocabulary of the draft model, or of the target where its own layers draft."""
    if options.draft_vocab is None:
        return None
    drafts = DRAFT in components
    whose = cast(Narrows, components[DRAFT] if drafts else model)
    return vocabulary_of(wish_of(options.draft_vocab), whose, text, drafts=drafts)


def costs(options: Options, model: Decoder, components: Mapping[str, Component]) -> dict[str, Any]:
    """What rows and a draft model's passes cost before anything is measured (`FixedLength`); nothing where the number
    of nodes was given."""
    if options.nodes is not None:
        return {}
    level = components[DRAFT].weight_bytes / model.weight_bytes if DRAFT in components else 0.0
    return {"cheap_rows": model.packing.free_rows, "row_cost": model.packing.row, "level_cost": level}


def check_draft_vocab(options: Options, pair: "Pair") -> None:
    """Raise InputError or RefusalError where there is nothing that would draft from a vocabulary of its own."""
    if options.draft_vocab is None:
        return
    wish_of(options.draft_vocab)
    name, _ = drafter_of(options)
    own = any(need.name == NEED_PROGRAM.name for need in DRAFTERS.card(name).needs)
    if pair.draft is not None and pair.kind != DRAFT:
        what = "of another vocabulary" if pair.kind == FOREIGN else f"a head ({pair.kind}), which keeps its own form"
        raise RefusalError(f"draft_vocab is given, but the draft {pair.draft} is {what}; leave it out.")
    if pair.draft is None and not own:
        raise RefusalError(
            f"draft_vocab is given, but drafter {name!r} has no head to draft with; give a draft model, or a drafter "
            "that runs the target's own layers, such as early_exit."
        )


def form_of(options: Options, quantize: str | None) -> dict[str, Any]:
    """How `load_model` is to lay out a model of these options."""
    return {
        "dtype": options.dtype, "quantize": quantize, "kv_dtype": options.kv_dtype, "device": options.device,
        "cache": options.weights_cache,
        "late": options.late_weights and options.overlap == "none" and not options.zoo,
    }  # fmt: skip


def load_adapters(engine: Engine, text: Text, options: Options) -> None:
    """Serve the adapters of these options."""
    memory = None if options.lora_memory is None else parse_bytes(options.lora_memory)
    drafts = OwnDrafts(engine.components, engine.drafters.take_heads)
    engine.session.adapters = made = Adapters(engine.model, options.max_loras, memory, drafts=drafts)
    for name, (path, draft) in loras_of(options.lora).items():
        made.enter(name, path, made.read(path, draft), draft=draft)
    if made.named:
        log.info("adapters: %s in %s bytes", ", ".join(made.named), f"{made.bytes:,}")
    if options.zoo:
        form = {**form_of(options, options.quantize), "max_len": options.max_model_len}
        load_zoo(made, cast(Decoder, engine.model), text, options, Path(str(paths(options)[0])).name, form)


def start(engine: Engine, options: Options) -> None:
    """Measure the machine where the planner needs that; where the first token is wanted soon, only look at what was
    measured before (`measure_late`)."""
    if not planned(engine, options):
        return
    from paceline.engine import calibrate

    about = facts(options, *engine.components.values())
    known = calibrate.kept(calibrate.place(about)) if options.late_weights else calibrate.calibrated(engine, about)
    if known is not None:
        engine.table.times.become(known)
        if known.measured and calibrate.place(about).is_file() and calibrate.kept(prices(options)) is None:
            calibrate.keep(prices(options), known)
        if options.tbt_target_ms and (plain := 1e3 * known.predict(Work(1, 1, 0, 0, 1))) > options.tbt_target_ms:
            log.warning(
                "tbt_target_ms is %g, but a plain step of one request takes %.3g ms here: while others decode, prompts "
                "get the fewest rows a step, and the time between two steps is longer than that.",
                options.tbt_target_ms, plain,
            )  # fmt: skip


def measure_late(engine: Engine, options: Options) -> None:
    """Measure the machine for the next start, where `start` put that off; the engine must be idle."""
    from paceline.engine import calibrate

    engine.table.times.become(calibrate.calibrated(engine, facts(options, *engine.components.values())))


def unmeasured(engine: Engine, options: Options) -> bool:
    """Does the planner need to know what steps cost here, and does no table say so?"""
    from paceline.engine import calibrate

    return (
        planned(engine, options)
        and calibrate.kept(calibrate.place(facts(options, *engine.components.values()))) is None
    )


def planned(engine: Engine, options: Options) -> bool:
    """Does the planner need to know what steps cost here?"""
    serves = options.keep_learned and not options.late_weights  # prompts come while others decode
    timed = bool(DRAFTERS.card(drafter_of(options)[0]).arms) or options.tbt_target_ms or serves
    return bool(timed) and engine.desk.policy.state() is not None


def check_options(options: Options) -> None:
    """Refuse values that are wrong whatever the models are, before anything is loaded."""
    from paceline.cache.policies import policy
    from paceline.schedule import policies as schedules

    least = {
        "blocks": 1,
        "threads": 1,
        "block_size": 1,
        "max_requests": 1,
        "max_loras": 1,
        "row_budget": 1,
        "max_model_len": 2,
    }
    for name, minimum in least.items():
        value = getattr(options, name)
        if value is not None and value < minimum:
            raise InputError(f"{name} is {value}, but it must be at least {minimum}.")
    check_experts(options)
    check_ranks(options)
    if options.substitute and not options.zoo:
        raise InputError("substitute is given, but there is no zoo whose layers it could be about; give both.")
    policy(options.eviction)
    check_length(options.length, options.drafter)
    schedules.check(options.schedule, options.order, options.tbt_target_ms, options.group_size, options.layer_groups)
    check_device(options.device, options.dtype)
    check_overlap(options.overlap, options.device)
    check_online(options.online, options.drafter)


def kv_files(options: Options) -> "BlockFiles":
    """The directory for K/V of idle texts. InputError or RefusalError where it cannot be used."""
    from paceline.engine.block_files import BlockFiles

    path, colon, size = str(options.kv_disk).rpartition(":")
    if not path or not colon:
        raise InputError(f"kv_disk is {options.kv_disk!r}, but it must be DIR:SIZE, such as /var/kv:20G.")
    if not options.prefix_cache:
        raise RefusalError("kv_disk and prefix_cache=False cannot be combined: only K/V that texts share is kept.")
    try:
        limit = parse_bytes(size)
    except InputError:
        raise InputError(f"kv_disk has the size {size!r}, but it must be bytes such as 20G or 512M.") from None
    return BlockFiles(Path(path).expanduser(), limit)


def facts(options: Options, *models: Any) -> dict[str, Any]:
    """What step times depend on."""
    sizes = [(m.describe(), m.weight_bytes, m.kv_bytes_per_token, m.vocab_size) for m in models if m is not None]
    shape = (options.block_size, options.row_budget, options.max_requests, torch.get_num_threads(), torch.__version__)
    return {"models": sizes, "shape": shape, "drafter": options.drafter, "overlap": options.overlap}


def check_length(length: str, drafter: object) -> None:
    """Raise InputError or RefusalError for a length policy that is not known, or cannot serve this drafter."""
    from paceline.plan import POLICIES

    card, name = POLICIES.card(length), drafter if isinstance(drafter, str) else "user" if drafter else "auto"
    if not card.arms and DRAFTERS.card(name).arms:
        raise RefusalError(f"length {length!r} does not choose between drafters; name one in place of {name!r}.")


def check_overlap(overlap: str, device: str) -> None:
    """Raise InputError for a placement that is not known, or that this device does not have."""
    from paceline.engine.placement import placement

    placement(overlap, tensors_on(device))


def check_online(online: float, drafter: object) -> None:
    """Raise InputError or RefusalError for a share that is none, or a drafter that does not learn while it serves."""
    if not 0 <= online <= 1:
        raise InputError(f"online is {online}, but it must be a share of a core, from 0 (off) to 1.")
    if online and drafter != "crossvocab":
        raise RefusalError(f"online is {online}, but only the drafter crossvocab learns while it serves; name it.")


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
    models = {TARGET} | ({kind} & {DRAFT} if draft is not None else set())
    with_model = {MTP} & {kind}
    return {f"{name}:program" for name in models} | (with_model if draft is None else {kind, *kinds(draft)})


def _check_pair(drafter: str, verifier: str, have: set[str]) -> None:
    from paceline.verify import VERIFIERS

    reason = refusal(drafter, DRAFTERS.card(drafter), verifier, VERIFIERS.card(verifier), have)
    if VERIFIERS.card(verifier).consent:
        reason = (
            f"Verifier {verifier!r} changes the text, so it cannot be an engine's default; name it in the requests "
            "that consent (SamplingParams)."
        )
    if reason:
        raise RefusalError(reason)


def block_size_of(options: Options, pair: "Pair") -> int:
    """Tokens of a block in an engine with this pair."""
    return memory_of(options, pair.model, pair.draft).block_size
