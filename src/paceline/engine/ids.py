"""Checks of what a checkpoint says apart from its weights, once at load: nothing in it may fail a request, or the
engine."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from paceline.core.errors import CheckpointError, InputError
from paceline.core.params import SUPPRESSED, SamplingParams

UNSERVED_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "begin_suppress_tokens": (None, []),
    "bad_words_ids": (None, []),
    "sequence_bias": (None, [], {}),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "top_h": (None, 1.0),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "exponential_decay_length_penalty": (None,),
    "penalty_alpha": (None, 0.0),
    "dola_layers": (None,),
    "guidance_scale": (None, 1.0),
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "diversity_penalty": (None, 0.0),
    "force_words_ids": (None, []),
    "constraints": (None, []),
    "stop_strings": (None, []),
    "token_healing": (None, False),
    "watermarking_config": (None,),
}
"""Keys of a generation config that choose tokens, and the values that say nothing."""
log = logging.getLogger("paceline")


def known_ids(ids: Callable[[], Iterable[Any]], size: int, path: Path) -> frozenset[int]:
    """The ids that end a text, without those that a model of `size` logits cannot draw, which are warned about. Raises
    CheckpointError for what is no id."""
    try:
        found = list(ids())
    except TypeError:
        found = [None]
    for token in found:
        if isinstance(token, bool) or not isinstance(token, int):
            raise CheckpointError(
                f"{path / 'generation_config.json'} or config.json: eos_token_id has {str(token)[:60]!r}, but it must "
                "be a token id or a list of them; correct the file."
            )
    if beyond := sorted(token for token in found if not 0 <= token < size):
        log.warning(
            "eos_token_id of %s has %s, but the model's ids are 0 to %d; it is left out.", path, beyond[:5], size - 1
        )
    return frozenset(token for token in found if 0 <= token < size)


def check_defaults(defaults: dict[str, Any], path: Path, size: int) -> None:
    """Raise CheckpointError for sampling defaults that no request could be served with, or that would change a text and
    are not served. Ids that a model of `size` logits cannot draw are taken out of those that are never drawn."""
    for name, served in UNSERVED_DEFAULTS.items():
        if defaults.get(name) not in served:
            raise CheckpointError(
                f"{path / 'generation_config.json'}: {name} is {str(defaults[name])[:60]}, which would change what is "
                "drawn and is not served; take it out to be served without it."
            )
    never = defaults.get(SUPPRESSED)
    if never is not None and not (isinstance(never, list) and all(type(it) is int for it in never)):
        raise CheckpointError(
            f"{path / 'generation_config.json'}: {SUPPRESSED} is {str(never)[:60]}, but it must be a list of token "
            "ids; correct the file."
        )
    if never is not None:
        defaults[SUPPRESSED] = [it for it in never if 0 <= it < size]
    try:
        SamplingParams().resolve(defaults)
    except InputError as error:
        raise CheckpointError(f"{path / 'generation_config.json'}: {error} Correct the file.") from None
