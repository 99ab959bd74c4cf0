"""What an engine is put together from: do its parts fit?"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

from paceline.cache.cache import Cache
from paceline.cache.txn import Move
from paceline.core.component import Component, Keeps, Model
from paceline.core.errors import InputError
from paceline.sample.grammar import Grammars, vocabulary


def reading(tokenizer: Any, size: int, eos: Collection[int]) -> tuple[Any, Grammars]:
    """How text becomes ids without special tokens, if it can, and the grammars over this vocabulary."""
    if tokenizer is None:
        return None, Grammars(None, size)
    spell = partial(vocabulary, tokenizer, size, sorted(eos))
    return partial(tokenizer.encode, add_special_tokens=False), Grammars(spell, size)


def check_component(name: str, component: Component, model: Model) -> None:
    """InputError unless a component fits its target."""
    if component.vocab_size != model.vocab_size:
        raise InputError(
            f"Component {name!r} has a vocabulary of {component.vocab_size} entries, but the target has "
            f"{model.vocab_size}; use one that was made for this model."
        )
    missing = [tap for tap in component.taps if tap not in model.places]
    if missing:
        raise InputError(
            f"Component {name!r} reads the hidden state {missing[0]!r}, which the target does not have; it has "
            f"{', '.join(sorted(model.places))}."
        )
    if component.taps and component.width != model.width:
        raise InputError(
            f"Component {name!r} reads hidden states of {component.width} numbers, but the target's have "
            f"{model.width}; use one that was made for this model."
        )


def stateful(components: Mapping[str, Component]) -> dict[str, Keeps]:
    """Components with recurrent layers."""
    return {name: cast(Keeps, it) for name, it in components.items() if "state" in it.abilities}


def keep(components: Mapping[str, Component], cache: Cache) -> None:
    """Drop the states that no text goes on from: of rejected rows, and of requests that are gone."""
    for name, component in stateful(components).items():
        component.keep(cache.tips(name), cache.ends())


def move(components: Mapping[str, Component], moves: Sequence[Move]) -> None:
    """Copy slots in every component's pool, all read before any is written."""
    if moves:
        source, target = [list(side) for side in zip(*moves)]
        for component in components.values():
            component.move(source, target)
