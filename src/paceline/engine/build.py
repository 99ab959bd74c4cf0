"""From a user's options to an engine with its text half."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from paceline.core.component import DRAFT, Component, Narrows, with_files
from paceline.core.errors import InputError, RefusalError
from paceline.draft import DRAFTERS
from paceline.draft.companion import companions
from paceline.draft.crossvocab import FOREIGN, ForeignModel, TrainedAdapter
from paceline.draft.head import load_head
from paceline.draft.mtp import MTP, Mtp, holds_head
from paceline.draft.settings import settings_of
from paceline.draft.surfaces import Surfaces
from paceline.draft.vocabulary import DraftVocabulary, vocabulary_of, wish_of
from paceline.engine.adapters import Adapters, loras_of
from paceline.engine.budget import chosen, drafts_in, memory_of, parse_bytes, shape_of, words_of
from paceline.engine.check_options import check_options
from paceline.engine.config import EngineConfig
from paceline.engine.experts import spread
from paceline.engine.gpu import named_memory
from paceline.engine.ids import check_defaults, known_ids
from paceline.engine.layers import over_processes
from paceline.engine.loop import Engine
from paceline.engine.options import Options
from paceline.engine.own_drafts import OwnDrafts
from paceline.engine.pair import Pair, check_draft_vocab, check_pair, drafter_of, found, paths, provided
from paceline.engine.ranks import cut
from paceline.engine.start import say_memory, start
from paceline.engine.text import Text
from paceline.engine.tunes import load_zoo
from paceline.memory.sums import BudgetShape
from paceline.model.catalogue import recommended
from paceline.model.decoder import Decoder
from paceline.model.load import load_model
from paceline.model.opened import opened_once
from paceline.sample.drawn import drawn

if TYPE_CHECKING:
    from paceline.engine.block_files import BlockFiles

log = logging.getLogger("paceline")
LOADING_ADVICE = "use fewer blocks, a smaller max_model_len, quantize int8 or int4, or tensor_parallel"


@named_memory("while the engine was made", LOADING_ADVICE)
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
        check_pair(name, options.verifier, provided(pair.draft, pair.kind) | ({"callable"} if user else set()))
        shape, pair = afforded(options, pair)
        memory = memory_of(options, pair.model, pair.draft)
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
        remember=shape.remember, settings=settings_of(options.drafter_settings),
        drafter=name, nodes=fixed, block_size=memory.block_size, snapshots=memory.snapshots,
        cheap_rows=model.packing.free_rows if options.nodes is None else None,
    )  # fmt: skip
    eos = known_ids(text.eos, model.vocab_size, pair.model)
    check_defaults(text.defaults, pair.model, model.vocab_size)
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
    """Sizes of the engine, and the pair, without its draft model if `memory` is better used without it."""
    if options.memory is None:
        return shape_of(options, pair.model, pair.draft), pair
    choice = chosen(options, pair.model, pair.draft, pair.kind)
    left_out = pair.draft is not None and not choice.plan.draft
    for line in words_of(choice, options, pair.draft):
        log.log(logging.WARNING if left_out else logging.INFO, "%s", line)
    if left_out:
        pair = replace(pair, draft=None, kind=MTP if holds_head(pair.model) else DRAFT)
    return choice.plan.shape, pair


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
    """The target, in this process, or with its experts, layers or parts of its matrices in several."""
    if options.layer_processes > 1:
        return over_processes(options, path)
    if options.tensor_parallel > 1:
        return cut(options, path)
    if options.expert_parallel == 1:
        return load_model(path, **form_of(options, options.quantize), max_len=options.max_model_len)
    return spread(options, path)


def drafting(options: Options, pair: Pair, model: Decoder, text: Text) -> dict[str, Component]:
    """Components that draft, by name; each kind of draft is loaded in its own way."""
    if pair.draft is None:
        return {} if pair.kind != MTP else {MTP: with_files(Mtp.of(pair.model, model.packing), pair.model)}
    if pair.kind not in (DRAFT, FOREIGN):
        return dict([load_head(pair.draft, model.width, model.vocab_size, model.packing, len(model.spec.layers))])
    form, theirs = form_of(options, drafts_in(options)), Text(pair.draft)
    if pair.kind == FOREIGN:
        small = load_model(pair.draft, **form)
        surfaces = (Surfaces(theirs.tokenizer, small.vocab_size), Surfaces(text.tokenizer, model.vocab_size))
        trained = TrainedAdapter.beside(pair.draft, model, small)
        return {FOREIGN: ForeignModel(small, *surfaces, model.vocab_size, online=options.online, trained=trained)}
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
        here, names = sum(it.slot > 0 for it in made.named.values()), ", ".join(made.named)
        log.info("adapters: %s; %d of %d in memory, %s bytes", names, here, len(made.named), f"{made.bytes:,}")
    if options.zoo:
        form = {**form_of(options, options.quantize), "max_len": options.max_model_len}
        load_zoo(made, cast(Decoder, engine.model), text, options, Path(str(paths(options)[0])).name, form)


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
