"""Relations of options that a manual states in set phrases, such as "ignored unless -x is given": read without a model.

Where a page says it word for word, no sampling and no vote is needed; a model is for what is said in other words. A
negation before a phrase voids it ("does not require -x"), one behind its options turns it ("ignored if -x is not set").
"""

import re
from collections.abc import Iterable, Iterator
from itertools import combinations, product

from .constraints import Relation
from .manual import Manual, named, sentences
from .synopsis import alternatives

PHRASE_ONE = (
    r"(?:the |option |options |-?- )*['\"]?--?[A-Za-z0-9][\w-]*(?:\[?=[^\s,;)]*)?['\"]?(?: \([^)]*\))?"
    r"(?: options?| flags?| switch(?:es)?)?"
)
PHRASE_SEVERAL = rf"(?P<names>{PHRASE_ONE}(?:(?:, and |, or |, | and | or | nor |/){PHRASE_ONE})*)"
PHRASE_OTHERS = PHRASE_SEVERAL.replace("names", "others")
PHRASE_NOT = r"(?:cannot|can not|can't|may not|must not|mustn't|should not|shouldn't|must never|should never|not to)"
PHRASE_USED = r"(?:used|combined|given|specified|mixed)"
PHRASE_NOT_WITH = rf"{PHRASE_NOT} be {PHRASE_USED}"
PHRASE_DO_NOT = rf"(?:do not|don't|never|{PHRASE_NOT}) (?:use|combine|give|specify|mix)"
PHRASE_TOGETHER = r"(?:together|along|in combination|in conjunction|in connection)"
PHRASE_SPECIFIED = (
    r"(?:is|are) (?:in use|given|specified|used|active|set|enabled|present|also used|also given|also specified)"
)
PHRASE_VAIN = r"(?:ignored|no effect|ineffective|meaningless|useless)"
PHRASE_BARRED = r"(?:invalid|not (?:\w+ )?(?:allowed|permitted|supported|compatible|valid|effective|useful|possible))"
PHRASE_IS_VAIN = rf"(?:is|are|has|have|will be)(?: \w+)? (?:{PHRASE_VAIN}|{PHRASE_BARRED})"


def forms(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns)


PHRASE_CONFLICTS = forms(
    rf"(?:{PHRASE_NOT_WITH}|{PHRASE_BARRED}|{PHRASE_DO_NOT}(?: it| this(?: option)?)?|not for use)"
    rf"(?: {PHRASE_TOGETHER}| in \w+)? with {PHRASE_SEVERAL}",
    rf"{PHRASE_DO_NOT} {PHRASE_SEVERAL} (?:{PHRASE_TOGETHER} )?with (?:it|this)\b",
    rf"(?:{PHRASE_NOT_WITH}|{PHRASE_BARRED}|{PHRASE_DO_NOT}(?: it| this(?: option)?)?) (?:when|if) {PHRASE_SEVERAL}",
    rf"(?:incompatible|mutually exclusive|conflicts?) (?:with|to) {PHRASE_SEVERAL}",
    rf"overrid(?:es?|den by) (?:a |any )?(?:previous |earlier )?{PHRASE_SEVERAL}",
    rf"(?:{PHRASE_VAIN}|disabled) (?:when|if|with|by) {PHRASE_SEVERAL}",
    rf"with {PHRASE_SEVERAL},? this (?:option )?has no effect",
    rf"(?:when|if) {PHRASE_SEVERAL} {PHRASE_SPECIFIED},? (?:then )?this(?: option)? {PHRASE_IS_VAIN}",
    rf"does not (?:take|work with) {PHRASE_SEVERAL}(?: into account)?",
    rf"any use of {PHRASE_SEVERAL}(?: \([^)]*\))? disables",
)
"""In an option's own text: it and those named exclude each other."""
PHRASE_USEFUL = (
    r"(?:useful|valid|meaningful|effective|relevant|applicable|allowed|available|makes sense|works|used|applies|"
    r"has (?:an )?effect)"
)
PHRASE_ONLY = rf"(?:only {PHRASE_USEFUL}|{PHRASE_USEFUL} only)"
PHRASE_USED_WITH = (
    r"(?:must|should|can only|may only) be (?:used|given|specified|combined) "
    rf"(?:{PHRASE_TOGETHER} )?with|used only with|only used with|only (?:{PHRASE_TOGETHER} )?with"
)
PHRASE_NEEDS = forms(
    rf"^with {PHRASE_SEVERAL}[,:]",
    rf"(?:requires?|needs?|depends on|{PHRASE_USED_WITH}) (?:that |(?:the )?use of )?"
    rf"(?:either |both )?{PHRASE_SEVERAL}",
    rf"{PHRASE_ONLY} (?:with|when|if|{PHRASE_TOGETHER} with) (?:either |both )?{PHRASE_SEVERAL}",
    rf"(?<!either ){PHRASE_SEVERAL} (?:is|are) required",
    rf"(?:{PHRASE_VAIN}|{PHRASE_BARRED}|{PHRASE_NOT_WITH}|{PHRASE_DO_NOT}(?: it| this(?: option)?)?) "
    rf"(?:unless|without) (?:either )?{PHRASE_SEVERAL}",
    rf"(?:{PHRASE_VAIN}|{PHRASE_BARRED}) (?:when|if) (?:it is )?not {PHRASE_USED} (?:{PHRASE_TOGETHER} )?with "
    rf"{PHRASE_SEVERAL}",
    rf"(?:{PHRASE_VAIN}|{PHRASE_BARRED}) (?:when|if) neither {PHRASE_SEVERAL} {PHRASE_SPECIFIED}",
    rf"(?:(?:when|if) (?:{PHRASE_SEVERAL} (?:is not|are not|isn't|aren't) \w+)|unless {PHRASE_OTHERS} "
    rf"{PHRASE_SPECIFIED}),? (?:then )?(?:this(?: option)?|it) {PHRASE_IS_VAIN}",
    rf"^without {PHRASE_SEVERAL},? (?:this(?: option)?|it) {PHRASE_IS_VAIN}",
    rf"^when {PHRASE_SEVERAL} {PHRASE_SPECIFIED},",
    rf"(?:to use|to be used|used only|only has effect) when {PHRASE_SEVERAL} {PHRASE_SPECIFIED}",
    rf"^(?!do not (?:use|combine|give|specify|mix|work)\b)(?:do|immediately)\b(?:(?! (?:never|no|but) ).)*"
    rf" with {PHRASE_SEVERAL}\.?$",
)
"""In an option's own text: it has its effect only with those named."""
PHRASE_UNLIKE_NEEDS = re.compile(r"\b(?:without|otherwise|not used together)\b", re.IGNORECASE)
"""In a sentence that also says what the option does alone."""
PHRASE_EXCLUSIVE = forms(
    rf"(?:one,? and only one|only one|at most one|no more than one|not more than one|exactly one) of {PHRASE_SEVERAL}"
    r"(?! (?:is|are) (?:required|needed|necessary))",
    rf"{PHRASE_SEVERAL} (?:are|is) mutually exclusive",
    rf"{PHRASE_SEVERAL} {PHRASE_NOT_WITH} {PHRASE_TOGETHER}",
    rf"{PHRASE_SEVERAL} {PHRASE_NOT} both be",
    rf"{PHRASE_SEVERAL} (?:exclude|conflict with) (?:each other|one another)",
    rf"{PHRASE_SEVERAL},? but not both",
    rf"(?:{PHRASE_DO_NOT}|(?:error|illegal|invalid|forbidden|impossible|not (?:allowed|permitted|valid|possible)) to "
    rf"(?:use|combine|give|specify|mix|set|pass)) both {PHRASE_SEVERAL}",
    rf"(?:error|illegal|invalid|forbidden|impossible|not (?:allowed|permitted|valid|possible)) to "
    rf"(?:use|combine|give|specify|mix|set|pass) {PHRASE_SEVERAL} together",
)
"""Anywhere: those named exclude one another."""
PHRASE_AGAINST = forms(
    rf"using {PHRASE_SEVERAL} (?:ignores|disables|overrides) {PHRASE_OTHERS}",
    rf"(?:error|illegal|invalid|forbidden|impossible|not (?:allowed|permitted|valid|possible)) to "
    rf"(?:use|combine|give|specify|mix|set|pass) {PHRASE_SEVERAL} (?:{PHRASE_TOGETHER} )?with {PHRASE_OTHERS}",
)
"""Anywhere: each of the first excludes each of the others."""
PHRASE_MEMBER = re.compile(r"(--?[A-Za-z0-9][\w-]*)((?: \([^)]*\))?)")
PHRASE_LONGEST_SENTENCE = 700
PHRASE_NEGATED = re.compile(
    r"(?:\b(?:not|never|no|longer|nor|neither|cannot|without|avoids?|prevents?|used to|formerly|previously|was|were)|"
    r"n't)"
    r"(?:\s+(?!(?:and|but|or|so|which|it|this)\b)[\w-]+){0,2}[\s'\"(]*$",
    re.IGNORECASE,
)
"""What stands before a phrase that it voids, at most two words away."""
PHRASE_TURNED = re.compile(
    r"(?:(?:is|are|was|were|be|been|has|have)(?: also)?(?: not|n't| never)\b|not\b|(?:is|are|(?:to )?be) (?:absent|"
    r"missing|omitted|unset|off|disabled|left out)\b|(?:to not|not to) be\b)",
    re.IGNORECASE,
)
"""What stands behind the options of a phrase that holds where they are absent."""
PHRASE_UNLESS = re.compile(r",? (?:unless|except)\b", re.IGNORECASE)
"""What stands behind a conflict that there is only at times."""
THIS_OPTION = re.compile(r"\bthis (?:option|flag|switch)\b", re.IGNORECASE)


def stated(manual: Manual) -> tuple[Relation, ...]:
    """Relations by keys of options, without doubles, conflicts first."""
    found = {r for o in manual.options for r in of_option(o.key, o.text, manual)}
    found |= {r for note in manual.notes for r in of_note(note, manual)}
    found |= {Relation("conflict", pair) for pair in alternatives(manual)}
    return tuple(sorted(found, key=lambda r: (r.kind != "conflict", r.of, r.kind)))


def of_option(key: str, text: str, manual: Manual) -> Iterator[Relation]:
    for sentence in (each[:PHRASE_LONGEST_SENTENCE] for each in sentences(text)):
        yield from of_note(THIS_OPTION.sub(key, sentence), manual)
        against = [found for found in matched(PHRASE_CONFLICTS, sentence) if not PHRASE_UNLESS.match(after(found))]
        needed = [found for found in matched(PHRASE_NEEDS, sentence) if not is_unlike(found)]
        conflicts = [found for found in against if not turned(found)] + [found for found in needed if turned(found)]
        excluded = {name for found in conflicts for name in others(found, key, manual)}
        yield from (Relation("conflict", (min(key, name), max(key, name))) for name in excluded)
        for found in [found for found in needed if not turned(found)] + [found for found in against if turned(found)]:
            names = [name for name in others(found, key, manual) if name not in excluded]
            if names:
                either = len(names) > 1 and (turned(found) or re.search(r"\bn?or\b", options_of(found)) is not None)
                yield Relation("any" if either else "all", (key, *sorted(names)))


def of_note(note: str, manual: Manual) -> Iterator[Relation]:
    for found in matched(PHRASE_EXCLUSIVE, note):
        groups = [named(" ".join(parts), manual) for parts in PHRASE_MEMBER.findall(found["names"])]
        for one, other in combinations([group for group in groups if group], 2):
            yield from pairs(one, other)
    for found in matched(PHRASE_AGAINST, note):
        yield from pairs(named(found["names"], manual), named(found["others"], manual))


def pairs(one: Iterable[str], other: Iterable[str]) -> Iterator[Relation]:
    for a, b in product(one, other):
        if a != b:
            yield Relation("conflict", (min(a, b), max(a, b)))


def matched(patterns: Iterable[re.Pattern[str]], sentence: str) -> Iterator[re.Match[str]]:
    """Phrases of a sentence that no negation voids."""
    for pattern in patterns:
        for found in pattern.finditer(sentence):
            if not PHRASE_NEGATED.search(sentence[: found.start()]):
                yield found


def options_of(found: re.Match[str]) -> str:
    return found["names"] or found["others"]


def others(found: re.Match[str], key: str, manual: Manual) -> list[str]:
    return [name for name in named(options_of(found), manual) if name != key]


def after(found: re.Match[str]) -> str:
    return found.string[found.end() :]


def turned(found: re.Match[str]) -> bool:
    """Whether it is said of the absence of its options."""
    return PHRASE_TURNED.match(after(found).lstrip()) is not None


def is_unlike(found: re.Match[str]) -> bool:
    return any(PHRASE_UNLIKE_NEEDS.search(part) for part in (found.string[: found.start()], after(found)))
