"""Checks of what a checkpoint says apart from its weights, once at load: nothing in it may fail a request, or the
engine."""

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline.core.errors import CheckpointError, InputError
from paceline.core.params import SamplingParams

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


def check_defaults(defaults: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointError for sampling defaults that no request could be served with."""
    try:
        SamplingParams().resolve(defaults)
    except InputError as error:
        raise CheckpointError(f"{path / 'generation_config.json'}: {error} Correct the file.") from None
