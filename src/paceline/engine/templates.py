"""Bounds of chat templates: they are programs that come with a model, and one may loop for ever or make a text without
end. What they compute is bounded by size, operation by operation, and by the processor's time of the thread that
renders. transformers compiles them within `BoundedTemplates` once `bound_templates` was called."""

import ctypes
import functools
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, TypeVar

from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.nodes import Concat, Getitem, Slice
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline.core.errors import InputError

T = TypeVar("T")
RENDER_S, TEMPLATE_TRIAL_S = 10.0, 2.0
"""Processor seconds of a template with a client's messages, and with a short message of ours."""
TEMPLATE_LOOK_S = 0.1
"""Seconds between two looks at how long templates have taken."""
MOST_TEMPLATE_CHARACTERS = 1 << 26
"""Characters, or items, of what one operation of a template makes; and of its output."""
MOST_MADE_CHARACTERS = 1 << 29
"""Characters that all its operations make together."""
MOST_TEMPLATE_NUMBER = 1 << 20
"""Largest number that a template gives to a function: a width, a count."""
MOST_NUMBER_BITS = 1 << 12
MOST_MARGIN = 64
WIDE_FIELDS = re.compile(r"[0-9*]{6}|\*")
"""A format whose fields are very wide, or as wide as an argument says."""


class EndlessTemplateError(InputError):
    """A template took longer than it may."""


class TemplateStopped(BaseException):
    """Raised within a template's thread from outside; no `except Exception` of a library takes it."""


class TemplateOutput(threading.local):
    """Characters that the template which this thread renders has made."""

    characters = 0


MADE = TemplateOutput()


def make(size: int) -> None:
    """Count what an operation is about to make. SecurityError where that is too much."""
    if size > 4096:
        MADE.characters += size
        if size > MOST_TEMPLATE_CHARACTERS or MADE.characters > MOST_MADE_CHARACTERS:
            raise SecurityError(f"it makes a text or a list that is too long ({size} or more)")


def size(value: Any) -> int:
    """Characters or items of a value; of other things 0."""
    return len(value) if isinstance(value, str | bytes | list | tuple | Mapping) else 0


def check_operation(operator: str, left: Any, right: Any) -> None:
    if operator == "+":
        make(size(left) + size(right))
    elif operator == "*":
        for text, times in ((left, right), (right, left)):
            if isinstance(times, int):
                make(size(text) * max(0, times))
    elif operator == "%" and isinstance(left, str | bytes):
        check_format(left, [right])
    numbers = [abs(int(it)) for it in (left, right) if isinstance(it, int)]
    if len(numbers) == 2 and operator in ("*", "**"):
        base, other = numbers[0].bit_length(), numbers[1]
        if (base * other if operator == "**" else base + other.bit_length()) > MOST_NUMBER_BITS and min(numbers) > 1:
            raise SecurityError("it computes with a number that is too large")


def check_format(form: str | bytes, given: Iterable[Any]) -> None:
    """The size of a formatted text, at most: each field may be the longest argument."""
    text = form if isinstance(form, str) else form.decode("latin-1")
    if WIDE_FIELDS.search(text):
        raise SecurityError("it formats a text with fields that are too wide")
    longest = max((each for it in given for each in sizes(it)), default=0)
    make(len(text) + (text.count("%") + text.count("{")) * longest)


def sizes(value: Any) -> Iterable[int]:
    """Sizes of a value as text, and of those in it."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    yield 32 + size(value)
    for part in parts:
        yield 32 + size(part)


def check_call(name: str, value: Any, args: Iterable[Any], named: Mapping[str, Any]) -> None:
    """Look at a call of a filter, or of a method of `value`, before it is made."""
    given = [*args, *named.values()]
    for each in given:
        if isinstance(each, int) and abs(each) > MOST_TEMPLATE_NUMBER:
            raise SecurityError(f"it calls {name} with a number that is too large")
    texts = [it for it in given if isinstance(it, str | bytes)]
    if name == "replace" and len(texts) > 1 and isinstance(value, str):
        make(len(value) + value.count(str(texts[0])) * len(texts[1]))
    elif name in ("join", "sum"):
        many = [it for it in (value, *given) if size(it)]
        make(sum(size(each) for it in many if isinstance(it, list | tuple) for each in it))
        make(prod(map(size, many)) if name == "join" or many[1:] else 0)
    elif name in ("format", "format_map"):
        check_format(value if isinstance(value, str | bytes) else "", given)
    elif name == "tojson":
        if any(each > MOST_MARGIN for it in given for each in (it if isinstance(it, int) else 0, *sizes(it))):
            raise SecurityError("it writes JSON with margins that are too wide")
    elif name in ("expandtabs", "indent", "wordwrap", "translate", "batch", "slice"):
        numbers = [it for it in given if isinstance(it, int)]
        parts = [each for it in given for each in sizes(it)]
        make(size(value) + places(value, name) * max([8, *numbers, *parts]))


def places(value: Any, name: str) -> int:
    """How often a filter puts something in, at most."""
    marks = {"expandtabs": "\t", "indent": "\n"}
    return 1 + value.count(marks[name]) if name in marks and isinstance(value, str) else 1 + size(value)


class CountingCoder(CodeGenerator):
    """Jinja's own, but what `~` and slices make is counted."""

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


class BoundedTemplates(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with bounds on what one operation makes. (Loops end by the clock of `within`.)"""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = CountingCoder

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(__obj, "__name__", None)
        if isinstance(name, str) and name != "safe_range":
            args = drawn_out(name, args)
            check_call(name, getattr(__obj, "__self__", None), args, kwargs)
        return __self.counted(super().call(__context, __obj, *args, **kwargs))

    @staticmethod
    def counted(value: T) -> T:
        make(size(value))
        return value

    def joined(self, parts: Iterable[Any]) -> str:
        texts = [*map(str, parts)]
        make(sum(map(len, texts)))
        return "".join(texts)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """The output of a template, or of a part of it."""
        out, count = list[str](), 0
        for part in parts:
            out.append(part)
            count += len(part)
            if count > MOST_TEMPLATE_CHARACTERS:
                raise SecurityError(f"it makes a text that is too long ({count} characters or more)")
        return "".join(out)

    def from_string(self, *args: Any, **kwargs: Any) -> Any:
        self.filters.update({name: checked(name, it) for name, it in self.filters.items()})
        return super().from_string(*args, **kwargs)


def checked(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments are looked at."""
    if getattr(work, "bounded", False):
        return work
    first = int(hasattr(work, "jinja_pass_arg"))

    @functools.wraps(work)
    def called(*args: Any, **named: Any) -> Any:
        value, *more = given = drawn_out(name, args[first:])
        check_call(name, value, more, named)
        return BoundedTemplates.counted(work(*args[:first], *given, **named))

    called.bounded = True  # type: ignore[attr-defined]
    return called


def drawn_out(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of `join` and `sum`, with lists in place of iterators, which have no size."""
    lists = name in ("join", "sum")
    return tuple(list(it) if lists and hasattr(it, "__next__") else it for it in args)


def bound_templates() -> None:
    """From now on transformers compiles templates within these bounds."""
    from transformers.utils import chat_template_utils

    vars(chat_template_utils)["ImmutableSandboxedEnvironment"] = BoundedTemplates


class Rendering:
    """A template that is being rendered, and the clock of its thread."""

    def __init__(self, seconds: float) -> None:
        self.thread, self.stopped = threading.get_ident(), False
        clock = getattr(time, "pthread_getcpuclockid", None)
        self._clock = None if clock is None else clock(self.thread)
        self.end = self.now() + seconds

    def now(self) -> float:
        return time.monotonic() if self._clock is None else time.clock_gettime(self._clock)


class RenderClock:
    """Stops templates that take too long, from a thread of its own, which sleeps while there is none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = set[Rendering]()
        self._thread: threading.Thread | None = None

    def enter(self, it: Rendering) -> None:
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="paceline-templates", daemon=True)
                self._thread.start()
            if not self._running:
                self._changed.notify_all()
            self._running.add(it)

    def leave(self, it: Rendering) -> None:
        """Nothing is raised in its thread any more."""
        with self._changed:
            self._running.discard(it)
            if it.stopped:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(it.thread), None)

    def _watch(self) -> None:
        while True:
            with self._changed:
                while not self._running:
                    self._changed.wait()
                for it in self._running:
                    if not it.stopped and it.now() > it.end:
                        it.stopped = True
                        stop = ctypes.py_object(TemplateStopped)
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(it.thread), stop)
            time.sleep(TEMPLATE_LOOK_S)


CLOCK = RenderClock()


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns, in `seconds` of this thread's processor time; else EndlessTemplateError."""
    it, MADE.characters = Rendering(seconds), 0
    try:
        try:
            CLOCK.enter(it)
            return work()
        finally:
            CLOCK.leave(it)
    except TemplateStopped:
        CLOCK.leave(it)
        raise EndlessTemplateError(
            f"The chat template takes more than {seconds:g} s of a processor; give fewer or shorter messages, or "
            "another chat_template."
        ) from None
