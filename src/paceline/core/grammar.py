"""What structured output must look like: `Grammar`, validated on construction by llguidance."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, get_args

from paceline.core.errors import BusyError, InputError
from paceline.core.trial import CPU_S, TRIALS, WALL_S, explained

if TYPE_CHECKING:
    from llguidance import LLParserLimits

Kind = Literal["json_schema", "json_object", "regex", "lark"]
JSON_LAYOUT = {"whitespace_pattern": r" |\n[ \t]{0,32}"}
"""Text that may stand between the parts of a JSON text, apart from nothing: any usual layout. A model that may go on
with white space for ever sometimes does."""


MOST_TEXT = 1 << 17
"""Characters of a grammar: compiling them takes a fraction of a second."""
MOST_DEPTH = 100
"""Objects and arrays of a JSON schema inside one another."""
SEARCH_S = 0.25
"""How long the part of a schema is looked for that cannot be enforced; of one that takes too long no part is."""
LEAST_TRIAL_S = 0.02
"""Processor time that a part's trial is worth beginning with."""
LIMITS: dict[str, Any] = {"initial_lexer_fuel": 100_000, "step_lexer_fuel": 20_000, "max_lexer_states": 20_000}
"""llguidance's own limits, lowered: what a mask may cost of time, and a compiled grammar of memory."""
NUMBER_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "enum")
EDGE = 2**63
"""Whole numbers up to here are known exactly if a double holds them, and the largest of 64 bits."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The whole output, from its first token to its end, must be a text of this language.

    json_schema: `text` is a JSON schema. json_object: any JSON object, `text` is empty. regex: Rust syntax without
    look-around, matched as a whole. lark: llguidance's dialect of Lark, from the rule `start`.

    Raises InputError, which says where, for what does not parse, uses a keyword that cannot be enforced or has no text
    at all.
    """

    kind: Kind
    """json_schema, json_object, regex or lark."""
    text: str = ""
    """The schema, the expression or the grammar; empty for json_object."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"The grammar's kind is {self.kind!r}, but it must be {', '.join(get_args(Kind))}.")
        if not isinstance(self.text, str):
            raise InputError(f"The grammar's text is of type {type(self.text).__name__}, but it must be a str.")
        if (self.kind == "json_object") is not (self.text == ""):
            need = "must be empty" if self.kind == "json_object" else "must not be empty"
            raise InputError(f"A grammar of kind {self.kind} has the text {self.text[:80]!r}, but it {need}.")
        if len(self.text) > MOST_TEXT:
            raise InputError(f"The grammar has {len(self.text)} characters, but it may have at most {MOST_TEXT}.")
        if self.kind == "json_schema":
            check_schema(self.text)
        elif self.kind != "json_object" and (error := fault(self.source())):
            raise InputError(f"The {self.kind} grammar is not usable: {brief(error)}.")

    @classmethod
    def of(cls, value: Any) -> "Grammar":
        """From JSON-like data, {"kind": ..., "text": ...}; the text of a schema may be the schema itself."""
        if isinstance(value, Grammar):
            return value
        if not isinstance(value, Mapping) or not {"kind"} <= set(value) <= {"kind", "text"}:
            raise InputError(f'grammar is {value!r}, but it must be {{"kind": ..., "text": ...}}.')
        text = value.get("text", "")
        if value["kind"] == "json_schema" and isinstance(text, Mapping):
            try:
                text = json.dumps(text)
            except (TypeError, ValueError, RecursionError) as problem:
                raise InputError(f"The JSON schema is not JSON: {problem}.") from None
        return cls(value["kind"], text)

    def source(self) -> str:
        """Grammar in llguidance's own form."""
        from llguidance import LLMatcher

        if self.kind == "regex":
            return LLMatcher.grammar_from_regex(self.text)
        if self.kind == "lark":
            return LLMatcher.grammar_from_lark(self.text)
        return of_schema(self.text or '{"type": "object"}')


def of_schema(text: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(text, defaults=JSON_LAYOUT)  # type: ignore[arg-type]


def limits() -> "LLParserLimits":
    from llguidance import LLParserLimits

    return LLParserLimits(**LIMITS)


def fault(source: str, seconds: float = CPU_S, wall: float = WALL_S) -> str:
    """llguidance's complaint about a grammar, found in a child process within `seconds` of processor time; empty if it
    has none. BusyError where that takes more than `wall` seconds."""
    return TRIALS.fault(source, LIMITS, seconds, wall)


def brief(message: str) -> str:
    """One line of llguidance's several: the place and the reason."""
    head, *lines = message.strip().splitlines() or ["it is empty"]
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
    caret = next((line for line in lines if re.fullmatch(r"\s+\^+\s*", line)), None)
    if reason:
        column = "" if caret is None else f" at character {caret.index('^') - 3}"
        quoted = re.search(r'invalid regex (".*?")', head)
        return f"{reason}{column}" + (f" of the regex {quoted[1][:80]}" if quoted else "")
    return head[:300].rstrip(".")


def check_schema(text: str) -> None:
    """Raise InputError unless `text` is a JSON schema that can be enforced; it names the part that cannot."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as problem:
        reason = "it is nested too deeply" if isinstance(problem, RecursionError) else problem
        raise InputError(f"The JSON schema does not parse as JSON: {reason}.") from None
    if not isinstance(schema, dict):
        raise InputError(f"The JSON schema is {text[:80]}, but it must be an object ({{}} for any value).")
    check_parts(schema)
    try:
        source = of_schema(text)
    except ValueError as problem:
        raise InputError(f"The JSON schema does not parse as JSON: {problem}.") from None
    if error := fault(source):
        at, error = culprit(schema, error)
        raise InputError(f"The JSON schema cannot be enforced at {at or 'its root'}: {brief(error)}.")


def check_parts(schema: Any) -> None:
    """Raise InputError for what is nested too deeply, and for numbers that would not be kept exactly."""
    left: list[tuple[Any, int]] = [(schema, 1)]
    while left:
        part, depth = left.pop()
        if depth > MOST_DEPTH:
            raise InputError(f"The JSON schema is nested too deeply: more than {MOST_DEPTH} levels.")
        if isinstance(part, dict):
            for key in NUMBER_BOUNDS:
                check_exact(key, part.get(key))
            left += [(value, depth + 1) for value in part.values() if isinstance(value, dict | list)]
        else:
            left += [(value, depth + 1) for value in part if isinstance(value, dict | list)]


def check_exact(key: str, value: Any) -> None:
    """Numbers are compared as doubles: one that is no double would be taken for its neighbour."""
    left = [value]
    while left:
        it = left.pop()
        if isinstance(it, dict | list):
            left += it.values() if isinstance(it, dict) else it
        elif isinstance(it, int | float) and not isinstance(it, bool):
            kept = abs(it) <= EDGE and (it == EDGE - 1 or isinstance(it, float) or int(float(it)) == it)
            if not kept:
                raise InputError(
                    f"The JSON schema has {key} {it}, which cannot be enforced exactly; give whole numbers of up to "
                    "2**53, or a string with a pattern."
                )


def culprit(schema: dict[str, Any], error: str) -> tuple[str, str]:
    """(JSON pointer, complaint) of the deepest part that cannot be used by itself, as far as it is found in time."""
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    pointer, found, end = "", True, monotonic() + SEARCH_S
    while found and explained(error):
        found = False
        for step, part in parts(schema):
            left = end - monotonic()
            if left < LEAST_TRIAL_S:
                return pointer, error
            try:
                complaint = fault(of_schema(json.dumps({**shared, **part})), left, 2 * left)
            except BusyError:  # other work takes the processors: the verdict itself is known
                return pointer, error
            if complaint:
                if not explained(complaint):
                    return pointer, error
                pointer, schema, error, found = pointer + step, part, complaint, True
                break
    return pointer, error


def parts(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas directly inside a schema, with their pointers; `true` and `false` are no culprits."""
    for key, value in schema.items():
        inner: list[tuple[str, Any]] = []
        if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            inner = [(f"/{key}/{name}", part) for name, part in value.items()]
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            inner = [(f"/{key}/{i}", part) for i, part in enumerate(value)]
        elif key in ("items", "additionalProperties", "not"):
            inner = [(f"/{key}", value)]
        yield from ((step, part) for step, part in inner if isinstance(part, dict))
