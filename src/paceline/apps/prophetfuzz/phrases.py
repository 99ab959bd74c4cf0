"""Relations of options that a manual states in set phrases, such as "ignored unless -x is given": read without a model.

Where a page says it in so many words, no sampling and no vote is needed; a model is for what is said in other words.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import combinations, product

from .constraints import Relation
from .manual import Manual, named, sentences

ONE = r"(?:the |option |options |-?- )*['\"]?--?[A-Za-z0-9][\w-]*(?:\[?=[^\s,;)]*)?['\"]?(?: \([^)]*\))?(?: options?)?"
SEVERAL = rf"(?P<names>{ONE}(?:(?:, and |, or |, | and | or |/){ONE})*)"
NOT_WITH = r"(?:cannot|can not|can't|may not|must not|should not) be (?:used|combined|given|specified|mixed)"
CONFLICTS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"(?:{NOT_WITH}|not allowed|not compatible|not valid)(?: together| in \w+)? with {SEVERAL}",
        rf"(?:incompatible|mutually exclusive|conflicts?) (?:with|to) {SEVERAL}",
        rf"overrid(?:es|den by) (?:a |any )?(?:previous |earlier )?{SEVERAL}",
        rf"(?:ignored|no effect|ineffective|disabled) (?:when|if|with|by) {SEVERAL}",
        rf"with {SEVERAL},? this (?:option )?has no effect",
        rf"does not (?:take|work with) {SEVERAL}(?: into account)?",
        rf"any use of {SEVERAL}(?: \([^)]*\))? disables",
    )
)
"""In an option's own text: it and those named exclude each other."""
ONLY = (
    r"only (?:useful|valid|meaningful|effective|relevant|applicable|allowed|available|makes sense|works|used|applies|"
    r"has effect)"
)
USED_WITH = (
    r"(?:must|should|can only|may only) be (?:used|given|specified|combined) (?:together |in conjunction )?with|"
    r"used only with|only used with|only with"
)
SPECIFIED = r"(?:is|are) (?:in use|given|specified|used|active|set|enabled|also used)"
NEEDS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"^with {SEVERAL}[,:]",
        rf"(?:requires?|needs?|depends on|{USED_WITH}|{ONLY} (?:with|when|if|together with)) {SEVERAL}",
        rf"(?<!either ){SEVERAL} (?:is|are) required",
        rf"(?:ignored|no effect|effective|valid) (?:unless|without) {SEVERAL}",
        rf"^when {SEVERAL} {SPECIFIED},",
        rf"(?:to use|to be used|used only|only has effect) when {SEVERAL} {SPECIFIED}",
        rf"^(?:do|immediately)\b.* with {SEVERAL}\.?$",
    )
)
"""In an option's own text: it has its effect only with those named."""
UNLIKE_NEEDS = re.compile(r"\b(?:without|otherwise|not used together)\b", re.IGNORECASE)
"""In a sentence that also says what the option does alone."""
EXCLUSIVE = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"(?:one,? and only one|only one|at most one|exactly one) of {SEVERAL}",
        rf"{SEVERAL} (?:are|is) mutually exclusive",
        rf"{SEVERAL} {NOT_WITH} together",
    )
)
IGNORES = re.compile(rf"using {SEVERAL} (?:ignores|disables|overrides) {SEVERAL.replace('names', 'others')}", re.I)
MEMBER = re.compile(r"(--?[A-Za-z0-9][\w-]*)((?: \([^)]*\))?)")
LONGEST_SENTENCE = 700


def stated(manual: Manual) -> tuple[Relation, ...]:
    """Relations by keys of options, without doubles, conflicts first."""
    found = {r for o in manual.options for r in of_option(o.key, o.text, manual)}
    found |= {r for note in manual.notes for r in of_note(note, manual)}
    return tuple(sorted(found, key=lambda r: (r.kind != "conflict", r.of, r.kind)))


def of_option(key: str, text: str, manual: Manual) -> Iterator[Relation]:
    for sentence in (each[:LONGEST_SENTENCE] for each in sentences(text)):
        against = {name for each in matched(CONFLICTS, sentence) for name in named(each, manual)} - {key}
        yield from (Relation("conflict", tuple(sorted((key, name)))) for name in against)
        if UNLIKE_NEEDS.search(sentence) and not re.search(r"(?:ignored|no effect) without", sentence):
            continue
        for each in matched(NEEDS, sentence):
            names = [name for name in named(each, manual) if name != key and name not in against]
            if names:
                either = len(names) > 1 and re.search(r"\bor\b", each) is not None
                yield Relation("any" if either else "all", (key, *sorted(names)))


def of_note(note: str, manual: Manual) -> Iterator[Relation]:
    for each in matched(EXCLUSIVE, note):
        groups = [named(" ".join(parts), manual) for parts in MEMBER.findall(each)]
        for one, other in combinations([group for group in groups if group], 2):
            yield from pairs(one, other)
    for found in IGNORES.finditer(note):
        yield from pairs(named(found["names"], manual), named(found["others"], manual))


def pairs(one: Iterable[str], other: Iterable[str]) -> Iterator[Relation]:
    for a, b in product(one, other):
        if a != b:
            yield Relation("conflict", (min(a, b), max(a, b)))


def matched(forms: Iterable[re.Pattern[str]], sentence: str) -> Iterator[str]:
    return (found["names"] for form in forms for found in form.finditer(sentence))
