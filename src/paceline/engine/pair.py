"""Where a model and its draft lie, what their own cards say they are, and whether they can serve together."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.component import DRAFT, TARGET
from paceline.core.errors import CheckpointError, InputError, RefusalError
from paceline.core.registry import refusal
from paceline.draft import DRAFTERS, NEED_PROGRAM
from paceline.draft.companion import kinds
from paceline.draft.crossvocab import FOREIGN
from paceline.draft.head import facts_of, method_of
from paceline.draft.mtp import MTP, holds_head
from paceline.draft.vocabulary import wish_of
from paceline.engine.options import Options
from paceline.model.catalogue import CATALOGUE
from paceline.model.checkpoint import read_config, resolve

if TYPE_CHECKING:
    from paceline.core.user import UserFn

log = logging.getLogger("paceline")
DEMO = Path(__file__).parent.parent / "demo"
GGUF_TOKENS = "tokenizer.ggml.tokens"


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
    if draft is not None and head is None and name == "auto" and another_vocabulary(model, draft):
        kind = FOREIGN
        log.info("The draft %s has another tokenizer than the model: drafter crossvocab translates.", draft)
    own = draft is None and holds_head(model)
    return Pair(model, draft, head or (MTP if own else kind))


def another_vocabulary(model: Path, draft: Path) -> bool:
    """Has the draft model another tokenizer than the model? Where their files say the same, no tokenizer is made."""
    from paceline.engine.text import Text
    from paceline.model.gguf import load_header

    if model.suffix == draft.suffix == ".gguf":
        mine, theirs = (load_header(path).metadata.get(GGUF_TOKENS) for path in (model, draft))
        if mine is not None and mine == theirs:
            return False
    else:
        files = [path / "tokenizer.json" for path in (model, draft)]
        sizes = [it.stat().st_size if it.is_file() else -1 for it in files]
        if sizes[0] == sizes[1] >= 0 and files[0].read_bytes() == files[1].read_bytes():
            return False
    size = read_config(model).vocab
    return Text(model).vocabulary(size) != Text(draft).vocabulary(size)


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


def drafter_of(options: Options) -> "tuple[str, UserFn | None]":
    """Name of the engine's drafter, and the user's function if that is the drafter."""
    if callable(options.drafter):
        return "user", options.drafter
    return options.drafter or "auto", None


def provided(draft: Path | None, kind: str) -> set[str]:
    """What drafters may need, of an engine with this draft, which is of a kind: `draft`, or a head's method. Every
    decoder that is loaded here can run some of its layers."""
    models = {TARGET} | ({kind} & {DRAFT} if draft is not None else set())
    with_model = {MTP} & {kind}
    return {f"{name}:program" for name in models} | (with_model if draft is None else {kind, *kinds(draft)})


def check_pair(drafter: str, verifier: str, have: set[str]) -> None:
    from paceline.verify import VERIFIERS

    reason = refusal(drafter, DRAFTERS.card(drafter), verifier, VERIFIERS.card(verifier), have)
    if VERIFIERS.card(verifier).consent:
        reason = (
            f"Verifier {verifier!r} changes the text, so it cannot be an engine's default; name it in the requests "
            "that consent (SamplingParams)."
        )
    if reason:
        raise RefusalError(reason)


def check_draft_vocab(options: Options, pair: "Pair") -> None:
    """Raise InputError or RefusalError if no drafter here can use a draft vocabulary."""
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
