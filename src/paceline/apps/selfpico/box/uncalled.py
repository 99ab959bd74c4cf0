"""Functions of a fragment that nobody called: each is called once, with values that are put in for its parameters.

What stands last is called first, since callers usually stand below what they call. A method gets an object of its
class.
"""

import inspect
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType
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
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Uncalled:
    """A function, the class it is of, and what it gets first: "self", "class" or nothing."""

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
        for part in (member.fget, member.fset):
            if isinstance(part, FunctionType):
                yield Uncalled(part, owner, "self")


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


def raised_on_purpose(error: BaseException, file: str, source: list[str]) -> bool:
    """Whether the fragment's own `raise` or `assert` ended the call: it refuses a value that was put in."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    if last is None or last.filename != file or last.lineno is None or last.lineno > len(source):
        return False
    return source[last.lineno - 1].strip().startswith(("raise", "assert"))
