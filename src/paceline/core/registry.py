"""Capabilities are data, legality is a join (D4). A plug-in is a class with a card; nothing asks for its name."""

import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from paceline.core import plugins
from paceline.core.errors import InputError
from paceline.core.forest import Law

T = TypeVar("T")
Shape = Literal["chain", "tree"]


@dataclass(frozen=True, slots=True)
class Offers:
    """A drafter's card."""

    summary: str
    laws: frozenset[Law]
    """The laws it can draw its nodes by; the verifier's order of preference decides."""
    shape: Shape
    nodes: int
    """Default number of nodes a step."""
    needs: frozenset[str] = frozenset()
    """What the engine must have been given: `draft` (a draft model), `callable` (a function of the user's)."""
    group: str | None = None
    """Name of its own K/V group in the shared block table, if it has one."""
    thrifty: bool = False
    """Does it end a draft where more does not pay (`Worth`)? A tree's size need not be chosen for it then."""
    runs: bool = False
    """Can its chains be drafted within a run of several passes (`draft.Running`)?"""
    parts: tuple[str, ...] = ()
    """The drafters that a merged one joins in one tree, the cheapest first."""
    sure: str | None = None
    """The first of them, which is always asked, if it drafts chains."""
    arms: tuple[str, ...] = ()
    """The drafters that a choice is made from, step by step."""


@dataclass(frozen=True, slots=True)
class Accepts:
    """A verifier's card."""

    summary: str
    laws: tuple[Law, ...]
    """Legal laws, the preferred one first."""
    shape: Shape
    guarantee: Literal["text", "law", "none"]
    """What equals plain decoding: the text for a seed, the distribution, or neither (named by the request)."""


class Registry(Generic[T]):
    """Name -> (plug-in, card), filled by importing every module of one package, and the entry points of others."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._entries: dict[str, tuple[T, Any]] = {}
        self._plugged = False

    def register(self, name: str, card: Any) -> Callable[[T], T]:
        def enter(plugin: T) -> T:
            known = self._entries.get(name)
            if known is not None and plugins.at(known[0]) != plugins.at(plugin):
                raise plugins.duplicate(self.kind, name, known[0], plugin)
            self._entries[name] = (plugin, card)
            return plugin

        return enter

    def _load(self) -> dict[str, tuple[T, Any]]:
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")
        for name, plugin in () if self._plugged else plugins.of(self.kind):
            if name not in self._entries:
                raise InputError(f"{plugins.at(plugin)} registers no {self.kind} {name!r}; name it as its entry point.")
        self._plugged = True
        return self._entries

    def names(self) -> list[str]:
        return sorted(self._load())

    def items(self) -> Iterator[tuple[str, Any]]:
        """(name, card) of every plug-in, by name."""
        return ((name, self.card(name)) for name in self.names())

    def get(self, name: str) -> T:
        return self._entry(name)[0]

    def card(self, name: str) -> Any:
        return self._entry(name)[1]

    def _entry(self, name: str) -> tuple[T, Any]:
        entry = self._entries.get(name) or self._load().get(name)
        if entry is None:
            raise InputError(f"Unknown {self.kind} {name!r}; known are {', '.join(self.names())}.")
        return entry


NEED_TEXT = {
    "draft": "a draft model (give draft=PATH)",
    "callable": "a function (give drafter=FUNCTION)",
}


def refusal(drafter: str, offers: Offers, verifier: str, accepts: Accepts, have: Collection[str]) -> str | None:
    """Why this drafter cannot serve under this verifier with what the engine `have`s; None when it can."""
    for need in sorted(offers.needs - set(have)):
        return f"Drafter {drafter!r} needs {NEED_TEXT[need]}."
    if offers.parts and Law.SHARED_NOISE not in accepts.laws:
        return f"Drafter {drafter!r} joins several in one tree, which only verifier 'exact' can judge."
    if offers.shape == "tree" and accepts.shape == "chain":
        return f"Drafter {drafter!r} makes trees, but verifier {verifier!r} judges chains only; use 'exact' or 'rrs'."
    if not offers.laws & set(accepts.laws):
        drawn = ", ".join(law.name.lower() for law in sorted(offers.laws))
        return f"Drafter {drafter!r} draws its nodes by law {drawn}, which verifier {verifier!r} cannot judge exactly."
    return None


def law_for(offers: Offers, accepts: Accepts) -> Law:
    """The law a legal pair works by: the verifier's first choice among the drafter's."""
    return next(law for law in accepts.laws if law in offers.laws)
