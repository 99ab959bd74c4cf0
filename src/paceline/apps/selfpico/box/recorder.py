"""Hooks that only watch: what type the value at each site had where a program runs whole. Imported as
`sitecustomize`."""

import atexit
import builtins
import json
import os
import sys
from collections import Counter
from typing import Any

sys.path.insert(0, "/box")
from dummies import type_of  # type: ignore[import-not-found]

SEEN: Counter[tuple[int, str]] = Counter()
PICO_MOST = 20


def note(site: int, value: Any) -> Any:
    """Count the type; a site that is passed often counts PICO_MOST times at most."""
    key = (site, type_of(value))
    if SEEN[key] < PICO_MOST:
        SEEN[key] += 1
    return value


def write() -> None:
    with open(f"/box/types-{os.getpid()}.json", "w", encoding="utf-8") as file:
        json.dump([[site, kind, count] for (site, kind), count in SEEN.items()], file)


def name(site: int, read: Any, /) -> Any:
    return note(site, read())


def attribute(site: int, thing: Any, /) -> Any:
    owner, attr = NAMES[str(site)]
    if attr.startswith("__") and not attr.endswith("__") and owner:
        attr = f"_{owner.lstrip('_')}{attr}"
    return note(site, getattr(thing, attr))


def call(site: int, callee: Any, /, *args: Any, **kwargs: Any) -> Any:
    return note(site, callee(*args, **kwargs))


with open("/box/attributes.json", encoding="utf-8") as names:
    NAMES: dict[str, tuple[str, str]] = json.load(names)
vars(builtins).update({"_n_": name, "_a_": attribute, "_c_": call, "_d_": lambda decorate: decorate})
atexit.register(write)
