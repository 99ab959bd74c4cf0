"""Functions of a fragment that nobody called: each is called once, with values that are put in for its parameters.

What stands last is called first, since callers usually stand below what they call. A method gets an object of its
class.
"""

import ast
import contextlib
import inspect
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any

ANNOTATED = {"int": "Integer", "float": "Float", "str": "String", "bool": "Boolean", "list": "List", "List": "List",
             "Sequence": "List", "Iterable": "List", "dict": "Dictionary", "Dict": "Dictionary",
             "Mapping": "Dictionary", "tuple": "Tuple", "Tuple": "Tuple", "set": "Set", "Set": "Set",
             "Callable": "Callable"}  # fmt: skip
"""Words of types by the annotation's first name."""
UNSAFE = frozenset({"__new__", "__del__", "__init_subclass__", "__class_getitem__", "__getattr__", "__getattribute__",
                    "__setattr__", "__delattr__"})  # fmt: skip
"""Methods that Python itself calls, with what only it has."""
MOST_CALLED = 200
CALL_S = 2
"""Seconds after which a call is left."""
MOST_LATE = 3
"""Calls that are left in this way before no more are made."""
DOTTED_NAME = re.compile(r"(?:\w+|<\w+>)(?:\.(?:\w+|<\w+>))*")
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Uncalled:
    """A function, the class it is of, and what it gets first: "self" ("set" where it sets a property), "class" or
    nothing."""

    function: FunctionType
    owner: type | None = None
    gets: str = ""


def functions(names: dict[str, Any], registered: list[FunctionType], file: str) -> Iterator[Uncalled]:
    """Functions and methods of the fragment, the last first, each once."""
    found: dict[Any, Uncalled] = {}
    for thing in list(names.values()):
        if isinstance(thing, FunctionType):
            found.setdefault(thing.__code__, Uncalled(thing))
        elif isinstance(thing, type):
            for name, member in list(vars(thing).items()):
                if name not in UNSAFE:
                    found.update({each.function.__code__: each for each in members(thing, member)})
    for function in registered:
        found.setdefault(function.__code__, Uncalled(function))
    own = [each for each in found.values() if each.function.__code__.co_filename == file]
    return iter(sorted(own, key=lambda each: -each.function.__code__.co_firstlineno)[:MOST_CALLED])


def members(owner: type, member: Any) -> Iterator[Uncalled]:
    """The functions of one member of a class."""
    if isinstance(member, FunctionType):
        yield Uncalled(member, owner, "self")
    elif isinstance(member, staticmethod | classmethod) and isinstance(member.__func__, FunctionType):
        yield Uncalled(member.__func__, owner, "class" if isinstance(member, classmethod) else "")
    elif isinstance(member, property):
        for part, gets in ((member.fget, "self"), (member.fset, "set")):
            if isinstance(part, FunctionType):
                yield Uncalled(part, owner, gets)


def name_of(function: FunctionType) -> str:
    """The qualified name; that of its code where the fragment wrote another that is none."""
    name = function.__qualname__
    return name if DOTTED_NAME.fullmatch(name) else function.__code__.co_qualname


def wanted(function: Any, skipped: int) -> list[tuple[str, str]]:
    """Names of the parameters that need a value, and the word of each one's type ("" where no annotation says it)."""
    parameters = list(inspect.signature(function).parameters.values())[skipped:]
    return [(p.name, word_of(p.annotation)) for p in parameters if p.default is p.empty and p.kind in POSITIONAL]


def named(function: Any) -> list[tuple[str, str]]:
    """The parameters that need a value and must be named."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, word_of(p.annotation)) for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]


def word_of(annotation: Any) -> str:
    """The word of the type that an annotation names."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    text = re.sub(r"^(?:\w+\.)*Optional\[(.*)\]$", r"\1", text.strip("'\" "))
    first = re.match(r"(?:\w+\.)*(\w+)", text)
    return ANNOTATED.get(first[1], "") if first else ""


def raised_on_purpose(error: BaseException, file: str, tree: ast.AST) -> bool:
    """Whether the fragment's own `raise` or `assert` ended the call: it refuses a value that was put in. What goes
    wrong within such a statement is an error as any other."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or last.tb_frame.f_code.co_filename != file:
        return False
    place = list(last.tb_frame.f_code.co_positions())[last.tb_lasti // 2]
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.Assert):
            parts: list[ast.stmt | ast.expr] = [node] if isinstance(node, ast.Raise) else [node, node.test]
            by_assert = isinstance(node, ast.Raise) or type(error) is AssertionError
            if by_assert and any(
                place == (part.lineno, part.end_lineno, part.col_offset, part.end_col_offset) for part in parts
            ):
                return True
    return False


class Unending(BaseException):
    """Error: a function that nobody calls, or a loop of the fragment, had not ended in time."""


@contextlib.contextmanager
def alarm(
    seconds: int, error: type[BaseException], due: Callable[[FrameType | None], bool] = lambda frame: True
) -> Iterator[None]:
    """Raises the error where this takes longer and is `due` in the frame that runs, again each second since a fragment
    may catch it; 0 for no limit. An alarm around this one stands still meanwhile. Threads have none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def rings(_: int, frame: FrameType | None) -> None:
        if due(frame):
            raise error(f"it was not ready within {seconds} seconds")

    before = signal.signal(signal.SIGALRM, rings)
    left = signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)
