"""Relations of options that a manual states in set phrases, such as "ignored unless -x is given": read without a model.

Where a page says it word for word, no sampling and no vote is needed; a model is for what is said in other words.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import combinations, product

from .constraints import Relation
from .manual import Manual, named, sentences

PHRASE_ONE = (
    r"(?:the |option |options |-?- )*['\"]?--?[A-Za-z0-9][\w-]*(?:\[?=[^\s,;)]*)?['\"]?(?: \([^)]*\))?(?: options?)?"
)
PHRASE_SEVERAL = rf"(?P<names>{PHRASE_ONE}(?:(?:, and |, or |, | and | or |/){PHRASE_ONE})*)"
PHRASE_NOT_WITH = r"(?:cannot|can not|can't|may not|must not|should not) be (?:used|combined|given|specified|mixed)"
PHRASE_CONFLICTS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"(?:{PHRASE_NOT_WITH}|not allowed|not compatible|not valid)(?: together| in \w+)? with {PHRASE_SEVERAL}",
        rf"(?:incompatible|mutually exclusive|conflicts?) (?:with|to) {PHRASE_SEVERAL}",
        rf"overrid(?:es|den by) (?:a |any )?(?:previous |earlier )?{PHRASE_SEVERAL}",
        rf"(?:ignored|no effect|ineffective|disabled) (?:when|if|with|by) {PHRASE_SEVERAL}",
        rf"with {PHRASE_SEVERAL},? this (?:option )?has no effect",
        rf"does not (?:take|work with) {PHRASE_SEVERAL}(?: into account)?",
        rf"any use of {PHRASE_SEVERAL}(?: \([^)]*\))? disables",
    )
)
"""In an option's own text: it and those named exclude each other."""
PHRASE_ONLY = (
    r"only (?:useful|valid|meaningful|effective|relevant|applicable|allowed|available|makes sense|works|used|applies|"
    r"has effect)"
)
PHRASE_USED_WITH = (
    r"(?:must|should|can only|may only) be (?:used|given|specified|combined) (?:together |in conjunction )?with|"
    r"used only with|only used with|only with"
)
PHRASE_SPECIFIED = r"(?:is|are) (?:in use|given|specified|used|active|set|enabled|also used)"
PHRASE_NEEDS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"^with {PHRASE_SEVERAL}[,:]",
        rf"(?:requires?|needs?|depends on|{PHRASE_USED_WITH}) {PHRASE_SEVERAL}",
        rf"{PHRASE_ONLY} (?:with|when|if|together with) {PHRASE_SEVERAL}",
        rf"(?<!either ){PHRASE_SEVERAL} (?:is|are) required",
        rf"(?:ignored|no effect|effective|valid) (?:unless|without) {PHRASE_SEVERAL}",
        rf"^when {PHRASE_SEVERAL} {PHRASE_SPECIFIED},",
        rf"(?:to use|to be used|used only|only has effect) when {PHRASE_SEVERAL} {PHRASE_SPECIFIED}",
        rf"^(?:do|immediately)\b.* with {PHRASE_SEVERAL}\.?$",
    )
)
"""In an option's own text: it has its effect only with those named."""
PHRASE_UNLIKE_NEEDS = re.compile(r"\b(?:without|otherwise|not used together)\b", re.IGNORECASE)
"""In a sentence that also says what the option does alone."""
PHRASE_EXCLUSIVE = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"(?:one,? and only one|only one|at most one|exactly one) of {PHRASE_SEVERAL}",
        rf"{PHRASE_SEVERAL} (?:are|is) mutually exclusive",
        rf"{PHRASE_SEVERAL} {PHRASE_NOT_WITH} together",
    )
)
PHRASE_IGNORES = re.compile(
    rf"using {PHRASE_SEVERAL} (?:ignores|disables|overrides) {PHRASE_SEVERAL.replace('names', 'others')}", re.I
)
PHRASE_MEMBER = re.compile(r"(--?[A-Za-z0-9][\w-]*)((?: \([^)]*\))?)")
PHRASE_LONGEST_SENTENCE = 700


def stated(manual: Manual) -> tuple[Relation, ...]:
    """Relations by keys of options, without doubles, conflicts first."""
    found = {r for o in manual.options for r in of_option(o.key, o.text, manual)}
    found |= {r for note in manual.notes for r in of_note(note, manual)}
    return tuple(sorted(found, key=lambda r: (r.kind != "conflict", r.of, r.kind)))


def of_option(key: str, text: str, manual: Manual) -> Iterator[Relation]:
    for sentence in (each[:PHRASE_LONGEST_SENTENCE] for each in sentences(text)):
        against = {name for each in matched(PHRASE_CONFLICTS, sentence) for name in named(each, manual)} - {key}
        yield from (Relation("conflict", tuple(sorted((key, name)))) for name in against)
        if PHRASE_UNLIKE_NEEDS.search(sentence) and not re.search(r"(?:ignored|no effect) without", sentence):
            continue
        for each in matched(PHRASE_NEEDS, sentence):
            names = [name for name in named(each, manual) if name != key and name not in against]
            if names:
                either = len(names) > 1 and re.search(r"\bor\b", each) is not None
                yield Relation("any" if either else "all", (key, *sorted(names)))


def of_note(note: str, manual: Manual) -> Iterator[Relation]:
    for each in matched(PHRASE_EXCLUSIVE, note):
        groups = [named(" ".join(parts), manual) for parts in PHRASE_MEMBER.findall(each)]
        for one, other in combinations([group for group in groups if group], 2):
            yield from pairs(one, other)
    for found in PHRASE_IGNORES.finditer(note):
        yield from pairs(named(found["names"], manual), named(found["others"], manual))


def pairs(one: Iterable[str], other: Iterable[str]) -> Iterator[Relation]:
    for a, b in product(one, other):
        if a != b:
            yield Relation("conflict", (min(a, b), max(a, b)))


def matched(forms: Iterable[re.Pattern[str]], sentence: str) -> Iterator[str]:
    return (found["names"] for form in forms for found in form.finditer(sentence))
