"""Bounds of chat templates: they are programs that come with a model, and one may loop for ever or make a text without
end. Within `BoundedTemplates`, by which transformers compiles them once `bound_templates` was called, each operation
looks at the processor's time of its thread, and at the size of what it is about to make. Nothing stops an operation
that has begun, so those of Python's own that take long are refused by the size of what they are given."""

import functools
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from math import inf, prod
from string import Formatter
from typing import Any, TypeVar

from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.exceptions import SecurityError
from jinja2.nodes import Compare, Concat, Getitem, Node, Operand, Slice, Tuple
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from paceline.core.errors import InputError

T = TypeVar("T")
RENDER_S, MESSAGE_RENDER_S, TOOL_RENDER_S, MOST_RENDER_S = 1.0, 0.001, 0.01, 10.0
"""Processor seconds of a template with a client's messages: for the first, more for each, and for each tool, whose
schema it may write out part by part; and for all at most."""
TEMPLATE_TRIAL_S = 0.5
"""Processor seconds of all trials of a template with short messages of ours, for one role."""
MOST_TEMPLATE_CHARACTERS = 1 << 26
"""Characters of what one operation of a template makes; and of its output. An item of a list counts as 8."""
FEW_TEMPLATE_CHARACTERS, TEMPLATE_TIMES = 1 << 20, 4
"""Fewer for what is small: this number, and this multiple of what the template is given, as `weigh` has it."""
MOST_MADE_CHARACTERS = 1 << 29
"""Characters that all its operations make together."""
MOST_NUMBER_BITS = 1 << 12
PERCENT_FIELD = re.compile(r"%%|%(?:\([^()]*\))?[-#0 +]*([0-9]+|\*)?(?:\.([0-9]+|\*))?")
ATOMS = (str, bytes, int, float, type(None))
SHALLOW = re.compile(
    "attr|batch|count|d|default|first|items|last|length|list|map|random|reject(attr)?|reverse|select(attr)?|slice"
)
"""Filters that neither write nor compare what is in a list."""


class EndlessTemplateError(InputError):
    """A template took longer than it may."""


class TemplateUse(threading.local):
    """What the template that this thread renders has used, and when it must have ended."""

    seconds, end, made, most = 0.0, inf, 0, MOST_TEMPLATE_CHARACTERS


USED = TemplateUse()


def render_seconds(messages: int, tools: int = 0) -> float:
    """Processor seconds that a template has for a number of messages and tools."""
    return min(MOST_RENDER_S, RENDER_S + MESSAGE_RENDER_S * messages + TOOL_RENDER_S * tools)


def within(seconds: float, work: Callable[[], T], given: Any = ()) -> T:
    """What `work` returns, in `seconds` of this thread's processor time; else EndlessTemplateError. `given`: what its
    template reads. SecurityError where that is too much by itself."""
    USED.most = MOST_TEMPLATE_CHARACTERS
    most = min(MOST_TEMPLATE_CHARACTERS, FEW_TEMPLATE_CHARACTERS + TEMPLATE_TIMES * weigh(given))
    USED.seconds, USED.end, USED.made, USED.most = seconds, time.thread_time() + seconds, 0, most
    try:
        return work()
    finally:
        USED.end, USED.most = inf, MOST_TEMPLATE_CHARACTERS


def look() -> None:
    """EndlessTemplateError where time is up: in each turn of a loop and each call, again and again."""
    if time.thread_time() > USED.end:
        raise EndlessTemplateError(
            f"The chat template takes more than {USED.seconds:g} s of a processor; give fewer or shorter messages, or "
            "another chat_template."
        )


def bound(size: int) -> None:
    if size > USED.most:
        raise SecurityError(f"it makes a text or a list that is too long ({size} or more)")


def make(size: int) -> None:
    """Count what an operation is about to make. SecurityError where that is too much."""
    bound(size)
    if size > 4096 and USED.end < inf:
        USED.made += size
        if USED.made > MOST_MADE_CHARACTERS:
            raise SecurityError(f"it makes texts and lists that are too long ({USED.made} or more)")


def size(value: Any) -> int:
    """Characters of a text, and 8 for each item of a list; of other things 0."""
    if isinstance(value, str | bytes):
        return len(value)
    return 8 * len(value) if isinstance(value, list | tuple | Mapping) else 0


def weigh(value: Any, margin: int = 0) -> int:
    """Characters of a value that is written out, at least, with `margin` more for each level that a part lies deep.
    A list that lies in several places counts in each of them."""
    total, depth, parts = 0, 0, [value]
    while parts:
        below: list[Any] = []
        total += len(parts) * (64 + margin * depth)
        for part in parts:
            if isinstance(part, str | bytes):
                total += len(part)
            elif isinstance(part, int):
                total += part.bit_length() // 3
            elif isinstance(part, Mapping):
                below += part.keys()
                below += part.values()
            elif isinstance(part, Namespace):
                below.append(object.__getattribute__(part, "_Namespace__attrs"))
            elif isinstance(part, Collection) and not isinstance(part, range):
                below += part
            bound(total + 64 * len(below))
        parts, depth = below, depth + 1
    return total


def whole(value: T) -> T:
    """The value, which is about to be written out, compared or hashed."""
    if not isinstance(value, ATOMS):
        weigh(value)
    return value


def counted(value: T) -> T:
    """The value, which a call has made."""
    make(size(value))
    if isinstance(value, int) and value.bit_length() > MOST_NUMBER_BITS:
        raise SecurityError("it computes with a number that is too large")
    return value


def check_operation(operator: str, left: Any, right: Any) -> None:
    if operator == "+":
        make(size(left) + size(right))
    elif operator == "*":
        for text, times in ((left, right), (right, left)):
            if isinstance(times, int):
                make(size(text) * max(0, times))
    elif operator == "%" and isinstance(left, str | bytes):
        check_percent(left, right)
    numbers = [abs(int(it)) for it in (left, right) if isinstance(it, int)]
    if len(numbers) == 2 and operator in ("*", "**"):
        base, other = numbers[0].bit_length(), numbers[1]
        if (base * other if operator == "**" else base + other.bit_length()) > MOST_NUMBER_BITS and min(numbers) > 1:
            raise SecurityError("it computes with a number that is too large")


def check_percent(form: str | bytes, right: Any) -> None:
    text = form if isinstance(form, str) else form.decode("latin-1")
    given = list(right.values() if isinstance(right, Mapping) else right if isinstance(right, tuple) else [right])
    if re.search(r"%\([^()]*\(", text):
        raise SecurityError("it formats a text with names that have parentheses")
    fields = PERCENT_FIELD.findall(text)
    told = [str(abs(it)) for it in given if isinstance(it, int)] if any("*" in it for it in fields) else []
    check_fields(text, [width for field in fields for width in field], len(fields), told, given)


def check_braces(form: str, given: Iterable[Any]) -> None:
    try:
        specs = [spec or "" for _, name, spec, _ in Formatter().parse(form) if name is not None]
    except ValueError:
        return  # as the call itself will say
    values, nested = list(given), "".join(spec for spec in specs if "{" in spec)
    if "[" in nested or "." in nested:
        raise SecurityError("it formats a text with widths that are parts of an argument")
    told = [str(it) for it in values if isinstance(it, int | str)] if nested else []
    check_fields(form, re.findall("[0-9]+", " ".join(specs)), len(specs), re.findall("[0-9]+", " ".join(told)), values)


def check_fields(form: str, widths: list[str], fields: int, told: list[str], given: list[Any]) -> None:
    """The size of a formatted text, at most: each field may be the longest argument, or as wide as a number."""
    wide = [int(it.lstrip("0")[:9] or 0) for it in widths if it not in ("", "*")]
    most = max((int(it.lstrip("0")[:9] or 0) for it in told), default=0)
    make(len(form) + sum(wide) + fields * max([most, *map(weigh, given)]))


def check_call(name: str, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Look at a call of a filter, or of a method of `value`, before it is made."""
    given = [*args, *named.values()]
    number = max((abs(it) for it in given if isinstance(it, int)), default=0)
    text = max((len(it) for it in given if isinstance(it, str | bytes)), default=0)
    if name in ("center", "ljust", "rjust", "zfill", "to_bytes"):
        make(size(value) + number)
    elif name == "round":
        check_operation("**", 10, number)
    elif name in ("batch", "slice"):
        make((64 if name == "slice" else 8) * number)
    elif name == "expandtabs":
        make(size(value) + value.count("\t" if isinstance(value, str) else b"\t") * max(8, number))
    elif name == "indent":
        make(size(value) + (1 + str(value).count("\n")) * max(4, number, text))
    elif name == "wordwrap":
        lines = 1 + str(value).count("\n") + 2 * size(value) // (number or 79)
        make(size(value) + lines * max(1, text))
    elif name == "urlize":
        make(size(value) + size(value) // 4 * text)
    elif name == "striptags":
        bound(size(value) * str(value).count("<") >> 8)
    elif name == "translate":
        tables = [it for it in given if isinstance(it, Mapping)]
        make(size(value) * max([1, *(size(new) for table in tables for new in table.values())]))
    elif name == "replace":
        words = {**dict(zip(("old", "new"), args, strict=False)), **named}
        as_text = (lambda it: it) if isinstance(value, bytes) else str
        old, new = as_text(words.get("old", "")), as_text(words.get("new", ""))
        make(len(as_text(value)) + as_text(value).count(old) * len(new))
    elif name == "join":
        many = [it for it in (value, *given) if size(it)]
        make(sum(map(weigh, many)) + prod(map(len, many)))
    elif name == "sum":
        if any(isinstance(it, list | tuple) for it in given):
            bound(size(value) * weigh(value) >> 13)
    elif name == "%":
        check_percent(str(value), named or args)
    elif name in ("format", "format_map") and isinstance(value, str):
        check_braces(value, [*given, *(args[0].values() if args and isinstance(args[0], Mapping) else ())])
    elif name == "tojson":
        weigh(value, number + text + sum(map(weigh, named.values())))
    elif name == "pprint":
        weigh(value, 64)


class CountingCoder(CodeGenerator):
    """Jinja's own, but time is looked at in each block, and what operators make and compare is counted."""

    def blockvisit(self, nodes: Iterable[Node], frame: Frame) -> None:
        self.writeline("environment.look()")
        super().blockvisit(nodes, frame)

    def visit_Concat(self, node: Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: Getitem, frame: Frame) -> None:
        self.write("environment.counted(" if isinstance(node.arg, Slice) else "(")
        super().visit_Getitem(node, frame)
        self.write(")")

    def visit_Compare(self, node: Compare, frame: Frame) -> None:
        self.write("(environment.whole(")
        self.visit(node.expr, frame)
        self.write(")")
        for it in node.ops:
            self.visit(it, frame)
        self.write(")")

    def visit_Operand(self, node: Operand, frame: Frame) -> None:
        self.write(f" {operators[node.op]} environment.whole(")
        self.visit(node.expr, frame)
        self.write(")")

    def visit_Tuple(self, node: Tuple, frame: Frame) -> None:
        self.write("environment.whole(" if node.ctx == "load" else "(")
        super().visit_Tuple(node, frame)
        self.write(")")


class BoundedTemplates(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with bounds on the time of a template, and on what one operation makes."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = CountingCoder
    look, whole, counted = staticmethod(look), staticmethod(whole), staticmethod(counted)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operation(operator, left, right)
        made = super().call_binop(context, operator, left, right)
        return whole(made) if isinstance(made, tuple) else made

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, whole(argument))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        look()
        name = getattr(__obj, "__name__", None)
        if isinstance(name, str) and not isinstance(__obj, type):
            owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
            args = drawn_out(name, args)
            for it in (owner if name in ("count", "index") else None, *args, *kwargs.values()):
                whole(it)
            check_call(name, owner, args, kwargs)
        return counted(super().call(__context, __obj, *args, **kwargs))

    @staticmethod
    def joined(parts: Iterable[Any]) -> str:
        texts = [str(whole(it)) for it in parts]
        make(sum(map(len, texts)))
        return "".join(texts)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """The output of a template, or of a part of it."""
        out, count = list[str](), 0
        for part in parts:
            out.append(part)
            count += len(part)
            bound(count)
        make(count)
        return "".join(out)

    def from_string(self, *args: Any, **kwargs: Any) -> Any:
        self.finalize = whole
        self.globals.pop("lipsum", None)
        self.filters.update({name: checked_filter(name, it) for name, it in self.filters.items()})
        tests: list[tuple[str, Any]] = [*self.tests.items()]
        self.tests.update({name: checked_test(it) for name, it in tests})
        return super().from_string(*args, **kwargs)


def checked_filter(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments are looked at."""
    if getattr(work, "bounded", False):
        return work
    first = int(hasattr(work, "jinja_pass_arg"))

    @functools.wraps(work)
    def called(*args: Any, **named: Any) -> Any:
        look()
        value, *more = given = drawn_out(name, args[first:])
        for it in () if SHALLOW.fullmatch(name) else (*given, *named.values()):
            whole(it)
        check_call("%" if name == "format" else name, value, tuple(more), named)
        made = counted(work(*args[:first], *given, **named))
        return looked(made) if hasattr(made, "__next__") else made

    called.bounded = True  # type: ignore[attr-defined]
    return called


def checked_test(work: Callable[..., Any]) -> Callable[..., Any]:
    """A test, such as `is in`, whose arguments are looked at where it compares them."""
    if getattr(work, "bounded", False):
        return work

    @functools.wraps(work)
    def called(*args: Any) -> Any:
        look()
        for it in args if len(args) > 1 else ():
            whole(it)
        return work(*args)

    called.bounded = True  # type: ignore[attr-defined]
    return called


def looked(items: Iterator[T]) -> Iterator[T]:
    for it in items:
        look()
        yield it


def drawn_out(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of `join` and `sum`, with lists in place of iterators, which have no size."""
    lists = name in ("join", "sum")
    return tuple(list(it) if lists and hasattr(it, "__next__") else it for it in args)


def compile_template(template: object) -> None:
    """Compile it now, once, if it is a text. An error in it is raised where it is used."""
    from transformers.utils import chat_template_utils

    if isinstance(template, str):
        with suppress(Exception):
            chat_template_utils._compile_jinja_template(template)


def bound_templates() -> None:
    """From now on transformers compiles templates within these bounds."""
    from transformers.utils import chat_template_utils

    vars(chat_template_utils)["ImmutableSandboxedEnvironment"] = BoundedTemplates
