"""Values for the 15 types of LExecutor and SelfPiCo, where only a type is known."""

import sys
from collections.abc import Callable
from typing import Any

PICO_TYPES = ("None", "Boolean", "Integer", "Float", "String", "List", "Tuple", "Set", "Dictionary", "Tensor", "Array",
         "DataFrame", "Callable", "Resource", "Object")  # fmt: skip


class Dummy:
    """An object of which nothing is known: callable, iterable, of length 1, with every item."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> "Dummy":
        return Dummy()

    def __iter__(self) -> Any:
        return iter([1])

    def __len__(self) -> int:
        return 1

    def __contains__(self, item: Any) -> bool:
        return True

    def __getitem__(self, key: Any) -> "Dummy":
        return Dummy()

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __enter__(self) -> "Dummy":
        return self

    def __exit__(self, *exc: Any) -> None:
        pass


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
