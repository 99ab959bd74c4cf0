"""The zoo of an engine's options: fine-tunes that are served with the model, and the room that they take."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import InputError, RefusalError
from paceline.engine.adapters import Adapters, adapters_of
from paceline.engine.options import Options
from paceline.engine.text import Text
from paceline.engine.zoo import Zoo
from paceline.model.blockzoo import delta_bytes
from paceline.model.checkpoint import resolve
from paceline.model.equivalence import read_report

if TYPE_CHECKING:
    from paceline.model.decoder import Decoder

log = logging.getLogger("paceline")


def load_zoo(
    adapters: Adapters, model: "Decoder", text: Text, options: Options, name: str, form: Mapping[str, Any]
) -> None:
    """Serve the fine-tunes of these options; `name`: the model's own in chains, `form`: keyword arguments of
    `load_model`."""
    pairs = dict[str, str]()
    for file in options.substitute:
        pairs.update(read_report(Path(file)).pairs())
    adapters.zoo = zoo = Zoo(model, {name}, pairs)
    for each, path in adapters_of(options.zoo, "zoo").items():
        at = resolve(path, None, options.token)
        check_text(each, at, text)
        chain = zoo.add(each, at, form)
        adapters.enter(each, chain, adapters.read(chain))
        log.info("%s shares %d of %d layers with the model", each, zoo.shared_layers(each), len(model.spec.layers))
    if lost := pairs.keys() - zoo.used:
        raise InputError(f"substitute names {len(lost)} layers that no fine-tune here has; compare these models again.")


def check_text(name: str, path: Path, text: Text) -> None:
    """Raise RefusalError for a fine-tune whose tokens, or ends of texts, are not the model's: its texts would be read
    and ended as the model's. One without a tokenizer has the model's."""
    if not (path / "tokenizer.json").is_file():
        return
    theirs = Text(path)
    if theirs.tokenizer.get_vocab() != text.tokenizer.get_vocab():
        raise RefusalError(f"The fine-tune {name!r} has another vocabulary of tokens than the model; use --models.")
    if sorted(map(str, theirs.eos())) != sorted(map(str, text.eos())):
        raise RefusalError(
            f"The fine-tune {name!r} ends its texts with {theirs.eos()}, the model with {text.eos()}; use --models."
        )


def zoo_bytes(options: Options, path: Path, itemsize: int) -> int:
    """What the fine-tunes take in addition to the model at this path, where `memory` needs to know."""
    if options.memory is None:
        return 0
    places = adapters_of(options.zoo, "zoo").values()
    return sum(delta_bytes(path, resolve(at, None, options.token), itemsize) for at in places)
