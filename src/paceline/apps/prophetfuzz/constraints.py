"""Which options exclude or need one another (ProphetFuzz, section 4.1): sampled from the manual, then voted on.

Extraction alone finds much and errs much; each relation is therefore asked about twice, the right way round and the
wrong way round, several times, and kept where at least half of the votes answer both rightly.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from ..common.ask import AppSettings, Prompt, sample
from ..common.client import AppClient
from ..common.forms import Json
from .manual import Manual, described

FUZZ_CONSTRAINTS_SYSTEM = (
    "You know command-line programs well. You read a manual and answer only with what it says, as JSON."
)
FUZZ_CONSTRAINTS_TASK = (
    "Which options may not be used together (conflict), and which option may only be used with another one "
    "(dependency: needs all or any of some)? Assume that each option is given once at most. List only relations that "
    "the descriptions state.\n"
    "Example. Of '-q, --quiet: Write nothing.', '-v, --verbose: Write more; not with --quiet.', '--color: Color the "
    "report of --verbose.', '--key FILE: Needs --sign or --verify.': conflicts: --quiet and --verbose; dependencies: "
    "--color needs all of --verbose, --key needs any of --sign, --verify.\n"
    "Now:"
)
Name = Annotated[str, Field(max_length=40)]
FUZZ_MOST = 12
KEEP = 0.5


class Conflict(BaseModel):
    first: Name
    second: Name


class FuzzNeed(BaseModel):
    option: Name
    kind: Literal["all", "any"]
    needs: Annotated[list[Name], Field(min_length=1, max_length=4)]


class Relations(BaseModel):
    """One sample of a manual's relations."""

    conflicts: Annotated[list[Conflict], Field(max_length=FUZZ_MOST)]
    dependencies: Annotated[list[FuzzNeed], Field(max_length=FUZZ_MOST)]


class Vote(BaseModel):
    """Answers to the question as it is and to its contrary."""

    first: Literal["yes", "no"]
    second: Literal["yes", "no"]


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation by option keys: kind "conflict" (of two), "all" or "any" (`of[0]` needs the others)."""

    kind: Literal["conflict", "all", "any"]
    of: tuple[str, ...]

    def sentence(self) -> str:
        if self.kind == "conflict":
            return f"{self.of[0]} cannot be used with {self.of[1]}."
        word = " and ".join(self.of[1:]) if self.kind == "all" else "at least one of " + ", ".join(self.of[1:])
        return f"{self.of[0]} must be used with {word}."


@dataclass(frozen=True, slots=True)
class Constraints:
    """Relations that were kept, and what each got: (right votes, votes)."""

    relations: tuple[Relation, ...]
    votes: Mapping[Relation, tuple[int, int]] = field(default_factory=dict)

    def broken(self, options: Iterable[str]) -> Relation | None:
        """A relation that a set of options breaks."""
        chosen = set(options)
        for r in self.relations:
            if r.kind == "conflict" and set(r.of) <= chosen:
                return r
            rest = set(r.of[1:])
            if (
                r.kind != "conflict"
                and r.of[0] in chosen
                and not (rest <= chosen if r.kind == "all" else rest & chosen)
            ):
                return r
        return None

    def repaired(self, options: Iterable[str], most: int = 8) -> list[frozenset[str]]:
        """The set with what its options need added, in every way that an "any" allows; those that break a conflict are
        dropped, and at most `most` are given."""
        grown = self._grown(frozenset(options), frozenset())
        return [g for g in sorted(grown, key=lambda g: (len(g), sorted(g))) if self.broken(g) is None][:most]

    def _grown(self, options: frozenset[str], done: frozenset[Relation]) -> set[frozenset[str]]:
        for r in self.relations:
            if r.kind == "conflict" or r in done or r.of[0] not in options:
                continue
            rest = frozenset(r.of[1:])
            ways = [rest] if r.kind == "all" or rest & options else subsets(rest)
            if r.kind == "any" and rest & options:
                ways = [frozenset()]
            return {g for way in ways for g in self._grown(options | way, done | {r})}
        return {options}


def subsets(names: frozenset[str]) -> list[frozenset[str]]:
    """All that are not empty."""
    ordered = sorted(names)
    return [
        frozenset(n for n, on in zip(ordered, bits) if on) for bits in product((0, 1), repeat=len(ordered)) if any(bits)
    ]


async def extract(
    client: AppClient, manual: Manual, samples: int, votes: int, deadline_s: float | None,
    known: Sequence[Relation] = (),
) -> Constraints:  # fmt: skip
    """Relations of a manual: those that are `known` for sure, and the union of the samples, less those that the votes
    reject."""
    prompt = Prompt(FUZZ_CONSTRAINTS_TASK, manual.text(), FUZZ_CONSTRAINTS_SYSTEM)
    settings = AppSettings(max_tokens=500, temperature=0.7, logprobs=False, deadline_s=deadline_s)
    answers = await sample(client, Json(Relations), prompt, samples, settings)
    found = sorted({r for a in answers if a.value for r in normal(a.value, manual)}, key=lambda r: (r.kind, r.of))
    sure = {r.of for r in known}
    tallied = {r: await voted(client, manual, r, votes, deadline_s) for r in found if r.of not in sure}
    kept = tuple(r for r, (right, cast) in tallied.items() if cast and right >= math.ceil(votes * KEEP))
    return Constraints((*known, *kept), tallied)


def normal(said: Relations, manual: Manual) -> Iterable[Relation]:
    """Relations by keys of options that there are; of an option with itself, or of unknown ones, nothing is kept."""
    for pair in said.conflicts:
        keys = sorted({o.key for name in (pair.first, pair.second) if (o := manual.option(name))})
        if len(keys) == 2:
            yield Relation("conflict", tuple(keys))
    for need in said.dependencies:
        option = manual.option(need.option)
        others = sorted({o.key for name in need.needs if (o := manual.option(name)) and o is not option})
        if option is not None and others:
            yield Relation("all" if len(others) == 1 else need.kind, (option.key, *others))


async def voted(
    client: AppClient, manual: Manual, r: Relation, votes: int, deadline_s: float | None
) -> tuple[int, int]:
    """(votes that answered both ways rightly, votes that could be read)."""
    involved = [o for key in r.of if (o := manual.option(key))]
    one, rest = r.of[0], ", ".join(r.of[1:])
    if r.kind == "conflict":
        questions = f"first: Must {one} be used without {rest}?\nsecond: Can {one} be used together with {rest}?"
    else:
        word = "all of" if r.kind == "all" else "one of"
        questions = f"first: Must {one} be used with {word} {rest}?\nsecond: Can {one} be used without {rest}?"
    data = f"Options of {manual.program}:\n" + "\n".join(described(o) for o in involved)
    prompt = Prompt(f"Answer two questions with yes or no.\n{questions}", data, FUZZ_CONSTRAINTS_SYSTEM)
    settings = AppSettings(max_tokens=40, temperature=0.2, logprobs=False, deadline_s=deadline_s)
    answers = await sample(client, Json(Vote), prompt, votes, settings)
    read = [a.value for a in answers if a.value is not None]
    return sum(v.first == "yes" and v.second == "no" for v in read), len(read)
