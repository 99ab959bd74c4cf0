"""Values for the 15 types of LExecutor and SelfPiCo, where only a type is known."""

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

PICO_TYPES = ("None", "Boolean", "Integer", "Float", "String", "List", "Tuple", "Set", "Dictionary", "Tensor", "Array",
         "DataFrame", "Callable", "Resource", "Object")  # fmt: skip


class Dummy:
    """An object of which nothing is known: callable, of length 1, with every item and operator; iterable,
    with as many items as it is unpacked to; a number in a format, a name as a path."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> "Dummy":
        return Dummy()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """A class may derive from it: its base is then this class, once."""
        real = any(isinstance(each, type) and issubclass(each, Dummy) for each in bases)
        first = next(each for each in bases if isinstance(each, Dummy))
        return (Dummy,) if first is self and not real else ()

    def __iter__(self) -> Any:
        return iter([Dummy() for _ in range(items_wanted(sys._getframe(1)))])

    def __next__(self) -> Any:
        raise StopIteration

    def __len__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        return still_true(sys._getframe(1))

    def keys(self) -> list[str]:
        """What `**` reads of it."""
        return ["a"]

    def __format__(self, form: str) -> str:
        for made in (1.0, 1):
            try:
                return format(made, form)
            except ValueError:
                pass
        return format("a", form)

    def __fspath__(self) -> str:
        return "a"

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        """What numpy takes it for: one number. Without this numpy looks for items of items without end."""
        import numpy

        return numpy.array([1.0], dtype)

    def __contains__(self, item: Any) -> bool:
        return True

    def __getitem__(self, key: Any) -> "Dummy":
        return Dummy()

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __delitem__(self, key: Any) -> None:
        pass

    def __enter__(self) -> "Dummy":
        return self

    def __exit__(self, *exc: Any) -> None:
        pass

    async def __aenter__(self) -> "Dummy":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        pass

    def __await__(self) -> Any:
        return Dummy()
        yield

    async def __aiter__(self) -> Any:
        yield Dummy()


def items_wanted(frame: FrameType) -> int:
    """Number of items that the frame's instruction takes of what it iterates: those of `a, b = unknown`, else one."""
    code, at = frame.f_code.co_code, frame.f_lasti
    name, count = dis.opname[code[at]], code[at + 1]
    if name == "UNPACK_SEQUENCE":
        return count
    return count + (code[at - 1] if code[at - 2] == dis.EXTENDED_ARG else 0) if name == "UNPACK_EX" else 1


MANY_TRUTHS = 100
"""How often unknown objects are true at one place: a loop that runs while one is true ends."""
TRUTHS: dict[tuple[CodeType, int], int] = {}


def still_true(frame: FrameType) -> bool:
    """Whether an unknown object is true where the frame is."""
    at = (frame.f_code, frame.f_lasti)
    TRUTHS[at] = TRUTHS.get(at, 0) + 1
    return TRUTHS[at] <= MANY_TRUTHS


MANY_COMPARISONS = 3
"""How often a comparison of an unknown object holds: a loop that waits for it ends."""


def operators() -> None:
    """Arithmetic gives another unknown object, with unknown objects and with numbers; a comparison holds
    MANY_COMPARISONS times, then not. With a text or a list it is an error, as it is for nearly every object."""
    number = (int, float, complex, Dummy)

    def arithmetic(self: Dummy, other: Any) -> Any:
        return Dummy() if isinstance(other, number) else NotImplemented

    def compare(self: Dummy, other: Any) -> Any:
        if not isinstance(other, number):
            return NotImplemented
        self.__dict__["compared"] = self.__dict__.get("compared", 0) + 1
        return self.__dict__["compared"] <= MANY_COMPARISONS

    for name in (
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
        "matmul",
    ):
        for side in ("", "r"):
            setattr(Dummy, f"__{side}{name}__", arithmetic)
    for name in ("lt", "le", "gt", "ge"):
        setattr(Dummy, f"__{name}__", compare)
    for name in ("neg", "pos", "abs", "invert"):
        setattr(Dummy, f"__{name}__", lambda self: Dummy())
    for name, made in (("int", 1), ("index", 1), ("float", 1.0)):
        setattr(Dummy, f"__{name}__", lambda self, made=made: made)


operators()


class Resource(Dummy):
    """Something that is opened, read and closed."""

    def read(self, *size: Any) -> str:
        return "a"

    def readline(self, *size: Any) -> str:
        return "a"

    def readlines(self, *size: Any) -> list[str]:
        return ["a"]

    def write(self, text: Any) -> int:
        return 1

    def close(self) -> None:
        pass


class Numbers(list[Any]):
    """Stands for an array, a tensor or a data frame where numpy, torch or pandas is not imported."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self),)


def value(kind: str) -> Any:
    """A value of the type. Raises KeyError for another word."""
    makers: dict[str, Callable[[], Any]] = {
        "None": lambda: None,
        "Boolean": lambda: True,
        "Integer": lambda: 1,
        "Float": lambda: 1.0,
        "String": lambda: "a",
        "List": lambda: [Dummy()],
        "Tuple": lambda: (Dummy(),),
        "Set": lambda: {Dummy()},
        "Dictionary": lambda: {"a": Dummy()},
        "Tensor": lambda: array("torch", "tensor", [[1.0]]),
        "Array": lambda: array("numpy", "array", [1]),
        "DataFrame": lambda: array("pandas", "DataFrame", {"a": [1]}),
        "Callable": lambda: Dummy,
        "Resource": Resource,
        "Object": Dummy,
    }
    return makers[kind]()


def array(module: str, maker: str, data: Any) -> Any:
    """The library's own, where the fragment has imported it: importing torch takes seconds."""
    return getattr(sys.modules[module], maker)(data) if module in sys.modules else Numbers(data)


def type_of(thing: Any) -> str:
    """The type word of a value that was seen."""
    names = [cls.__name__ for cls in type(thing).__mro__]
    plain = {"NoneType": "None", "bool": "Boolean", "int": "Integer", "float": "Float", "str": "String", "list": "List",
             "tuple": "Tuple", "set": "Set", "frozenset": "Set", "dict": "Dictionary", "Tensor": "Tensor",
             "ndarray": "Array", "DataFrame": "DataFrame"}  # fmt: skip
    for name in names:
        if name in plain:
            return plain[name]
    if hasattr(thing, "read") and hasattr(thing, "close") and not isinstance(thing, type):
        return "Resource"
    return "Callable" if callable(thing) else "Object"
