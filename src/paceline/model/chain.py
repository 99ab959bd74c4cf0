"""Names of chains: a model put together from runs of layers of several fine-tunes, `a[0:12]+b[12:24]`."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from paceline.core.errors import InputError

LINK = re.compile(r"(.{1,200})\[(\d{1,6}):(\d{1,6})\]")
BASE_NAME = "base"
"""Name of an engine's own model in a chain, in addition to its own."""
MOST_LINKS = 64
"""Runs of layers that a chain may have."""
MOST_CHAIN_CHARS = 4000


class Link(NamedTuple):
    """Layers `first` .. `last` of a model."""

    model: str
    first: int
    last: int


Chain = tuple[Link, ...]


def is_chain(name: str) -> bool:
    """Does this look like the name of a chain?"""
    return name.endswith("]") and "[" in name


def read_chain(text: str) -> Chain:
    """The chain of this name. InputError for what is none."""
    if len(text) > MOST_CHAIN_CHARS:
        raise InputError(f"A chain's name may have {MOST_CHAIN_CHARS:,} characters, but this one has {len(text):,}.")
    found = list[Link]()
    for part in text.split("+"):
        match = LINK.fullmatch(part.strip())
        if match is None:
            raise InputError(f"{part[:60]!r} is no part of a chain; write NAME[FIRST:LAST], such as a[0:12]+b[12:24].")
        found.append(Link(match[1].strip(), int(match[2]), int(match[3])))
    if len(found) > MOST_LINKS:
        raise InputError(f"A chain may have {MOST_LINKS} parts, but this one has {len(found)}.")
    return tuple(found)


def parts_of_chain(name: str) -> set[str]:
    """Models that a chain names, other than its base; of another name that name itself."""
    if not is_chain(name):
        return {name}
    found = {match[1].strip() for part in name[:MOST_CHAIN_CHARS].split("+") if (match := LINK.fullmatch(part.strip()))}
    return found - {BASE_NAME}


def check_chain(chain: Chain, layers: int) -> None:
    """Raise InputError unless the chain has every layer of a model with `layers` once, each in its place."""
    reached = 0
    for link in chain:
        if link.first != reached:
            raise InputError(
                f"The chain's part {shown((link,))} begins at layer {link.first}, but layer {reached} comes next: each "
                "layer stands in its own place."
            )
        if link.last <= link.first:
            raise InputError(f"The chain's part {shown((link,))} has no layer.")
        reached = link.last
    if reached != layers:
        raise InputError(f"The chain ends at layer {reached}, but the model has {layers} layers.")


def shown(chain: Sequence[Link]) -> str:
    """Name of a chain, as requests give it."""
    return "+".join(f"{link.model}[{link.first}:{link.last}]" for link in chain)
