"""Capabilities are data, legality is a join (D4). A plug-in is a class with a card; nothing asks for its name."""

import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from paceline.core import plugins
from paceline.core.errors import InputError
from paceline.core.forest import Law

T = TypeVar("T")
Shape = Literal["chain", "tree"]
Ahead = Literal["", "path", "outcomes"]
Runs = Literal[False, "greedy", True]


class Need(NamedTuple):
    """Something that the engine must have been given: a component, by its name, a component's ability
    (`target:program`), or a function."""

    name: str
    text: str
    """As a refusal puts it, with what to do."""


class DrafterSetting(NamedTuple):
    """What a user may set of a drafter, as NAME.`name`=VALUE: a number from `low` to `high`, or one of `choices`."""

    name: str
    usual: float | str
    """Default value."""
    low: float = 0.0
    high: float = 1.0
    choices: tuple[str, ...] = ()

    def read(self, text: str) -> float | str | None:
        """The value that a text gives; None where it is none."""
        if self.choices:
            return text if text in self.choices else None
        try:
            value = float(text)
        except ValueError:
            return None
        return value if self.low <= value <= self.high else None

    @property
    def expected(self) -> str:
        return f"one of {', '.join(self.choices)}" if self.choices else f"a number from {self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Offers:
    """A drafter's card."""

    summary: str
    laws: frozenset[Law]
    """The distributions it can draw its nodes by; the verifier's order of preference decides."""
    shape: Shape
    nodes: int
    """Default number of nodes a step."""
    needs: frozenset[Need] = frozenset()
    """What the engine must have been given."""
    group: str | None = None
    """The component whose K/V group in the shared block table it keeps up, if it has one."""
    taps: tuple[str, ...] = ()
    """Hidden states of the target that it reads (`Rows.taps`), in addition to those of its components."""
    exits: int = 0
    """Maximum number of the target's layers whose inputs it also reads, before which a pass may end early
    (`program.exits`)."""
    stops_early: bool = False
    """Does it end a draft where more does not pay (`MinChance`)? A tree's size need not be chosen for it then."""
    runs: Runs = False
    """Can it draft within a run of several passes (`draft.Running`)? `greedy`: for greedy requests alone."""
    ahead: Ahead = ""
    """Does it draft while the target's pass runs (`draft.Overlapping`)? `path`: how the text goes on if all of its
    draft is kept; `outcomes`: a draft for each likely outcome."""
    exit: float = 0.0
    """Share of the target's layers after which it reads what they make of the text (`View.exits`), before it drafts for
    the outcomes of the pass; 0: it does not."""
    learns: bool = False
    """Does it draft from what it has read of other requests' texts? Each tenant then has one of its own. Such a drafter
    drafts in no run of several passes."""
    auto: tuple[str, ...] = ()
    """Names by which `auto` tries it, where the engine has what they need: its own, or merged with others."""
    auto_needs: frozenset[Need] = frozenset()
    """What the engine must have in addition to `needs` before `auto` tries it: without this it would rarely pay."""
    parts: tuple[str, ...] = ()
    """The drafters that a merged one joins in one tree, the cheapest first."""
    always_asked: str | None = None
    """The first of them, which is always asked, if it drafts chains."""
    arms: tuple[str, ...] = ()
    """The drafters that a choice is made from, step by step."""
    settings: tuple[DrafterSetting, ...] = ()
    """Settings of the drafter that a user may change."""


@dataclass(frozen=True, slots=True)
class Accepts:
    """A verifier's card."""

    summary: str
    laws: tuple[Law, ...]
    """Legal distributions, the preferred one first."""
    shape: Shape
    guarantee: Literal["text", "distribution", "none"]
    """What equals plain decoding: the text for a seed, the distribution, or neither (named by the request)."""
    needs: frozenset[Need] = frozenset()
    taps: tuple[str, ...] = ()
    """Hidden states of the target that it reads of each judged row (`Case.hidden`)."""
    runs: bool = False
    """Does it accept the nodes that carry the token which plain decoding draws, and no others? Then a run of several
    passes can judge in its place."""
    consent: bool = False
    """May only a request name it, and no engine's default?"""


class Registry(Generic[T]):
    """Name -> (plug-in, card), filled by importing every module of one package, and the entry points of others."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._entries: dict[str, tuple[T, Any]] = {}
        self._loaded = False

    def register(self, name: str, card: Any) -> Callable[[T], T]:
        def enter(plugin: T) -> T:
            known = self._entries.get(name)
            if known is not None and plugins.at(known[0]) != plugins.at(plugin):
                raise plugins.duplicate(self.kind, name, known[0], plugin)
            self._entries[name] = (plugin, card)
            return plugin

        return enter

    def _load(self) -> dict[str, tuple[T, Any]]:
        if not self._loaded:
            self._loaded = True
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._package}.{module.name}")
            for name, plugin in plugins.of(self.kind):
                if name not in self._entries:
                    raise InputError(
                        f"{plugins.at(plugin)} registers no {self.kind} {name!r}; name it as its entry point."
                    )
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


def refusal(drafter: str, offers: Offers, verifier: str, accepts: Accepts, have: Collection[str]) -> str | None:
    """Why this drafter cannot serve under this verifier with what the engine `have`s; None when it can."""
    for kind, name, needs in (("Drafter", drafter, offers.needs), ("Verifier", verifier, accepts.needs)):
        for need in sorted(needs):
            if need.name not in have:
                return f"{kind} {name!r} needs {need.text}."
    if offers.parts and Law.SHARED_NOISE not in accepts.laws:
        return f"Drafter {drafter!r} joins several in one tree, which only verifier 'exact' can judge."
    if offers.shape == "tree" and accepts.shape == "chain":
        return f"Drafter {drafter!r} makes trees, but verifier {verifier!r} judges chains only; use 'exact' or 'rrs'."
    if not offers.laws & set(accepts.laws):
        drawn = ", ".join(law.name.lower() for law in sorted(offers.laws))
        return f"Drafter {drafter!r} draws its nodes as {drawn}, which verifier {verifier!r} cannot judge exactly."
    return None


def law_for(offers: Offers, accepts: Accepts) -> Law:
    """The distribution a legal pair works by: the verifier's first choice among the drafter's."""
    return next(law for law in accepts.laws if law in offers.laws)
