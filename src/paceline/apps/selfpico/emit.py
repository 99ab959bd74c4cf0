"""A fragment as a program that runs by itself: what was put in stands before it, in plain Python."""

import ast
import keyword
import re
import textwrap

from .box.modules import content
from .fragment import PicoFound, Ran
from .instrument import FUNCTION, runnable
from .predict import Guess
from .uses import fields_of, files_within, form_of, given_argv

EMITTED_VALUES = {
    "None": "None", "Boolean": "True", "Integer": "1", "Float": "1.0", "String": "'a'", "List": "[StandIn()]",
    "Tuple": "(StandIn(),)", "Set": "{StandIn()}", "Dictionary": "{'a': StandIn()}", "Tensor": "[[1.0]]",
    "Array": "[1]", "DataFrame": "{'a': [1]}", "Callable": "StandIn", "Resource": "StandIn()", "Object": "StandIn()",
}  # fmt: skip
STAND_IN = """class StandIn:
    \"\"\"Stands in for an object of which nothing is known.\"\"\"

    ATTRIBUTES = {attributes}
    CALLS = {calls}
    path = ""
    truths = {{}}

    def __init__(self, *args, path="", **kwargs): self.__dict__["path"] = path
    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"): raise AttributeError(name)
        value = StandIn.ATTRIBUTES.get(name)
        return value() if value else StandIn(path=f"{{self.path}}.{{name}}")
    def __call__(self, *args, **kwargs):
        value = StandIn.CALLS.get(self.path.rpartition(".")[2])
        return value() if value else StandIn(path=f"{{self.path}}()")
    def __mro_entries__(self, bases):
        real = any(isinstance(each, type) and issubclass(each, StandIn) for each in bases)
        first = next(each for each in bases if isinstance(each, StandIn))
        return (StandIn,) if first is self and not real else ()
    def __iter__(self):  # as many as `a, b = unknown` takes, else one
        import dis, sys
        frame = sys._getframe(1)
        code, at = frame.f_code.co_code, frame.f_lasti
        name, count = dis.opname[code[at]], code[at + 1]
        more = code[at - 1] if code[at - 2] == dis.EXTENDED_ARG else 0
        wanted = {{"UNPACK_SEQUENCE": count, "UNPACK_EX": count + more}}.get(name, 1)
        return iter([StandIn() for _ in range(wanted)])
    def __next__(self): raise StopIteration
    def __len__(self): return 1
    def __bool__(self):  # true a hundred times at one place: loops end
        import sys
        frame = sys._getframe(1)
        at = frame.f_code, frame.f_lasti
        StandIn.truths[at] = StandIn.truths.get(at, 0) + 1
        return StandIn.truths[at] <= 100
    def keys(self): return ["a"]
    def __contains__(self, item): return True
    def __getitem__(self, key): return StandIn()
    def __setitem__(self, key, value): pass
    def __delitem__(self, key): pass
    def __enter__(self): return self
    def __exit__(self, *exc): pass
    async def __aenter__(self): return self
    async def __aexit__(self, *exc): pass
    async def __aiter__(self): yield StandIn()
    def __await__(self):
        return StandIn()
        yield
    def __fspath__(self): return "a"
    def __array__(self, dtype=None, copy=None):
        import numpy

        return numpy.array([1.0], dtype)
    def __format__(self, form):
        for made in (1.0, 1):
            try: return format(made, form)
            except ValueError: pass
        return format("a", form)
    def __int__(self): return 1
    __index__ = __int__
    def __float__(self): return 1.0
    def __lt__(self, other):
        self.__dict__["compared"] = self.__dict__.get("compared", 0) + 1
        return self.compared <= 3
    __le__ = __gt__ = __ge__ = __lt__


for _name in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split():
    for _side in ("", "r"):
        setattr(StandIn, f"__{{_side}}{{_name}}__", lambda self, other: StandIn())
for _name in "neg pos abs invert".split():
    setattr(StandIn, f"__{{_name}}__", lambda self: StandIn())
"""
ABSENT_FINDER = """class Absent:
    \"\"\"Finds the modules that are not installed.\"\"\"

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {modules}:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: StandIn(path=name)
        return module
    def exec_module(self, module): pass


sys.meta_path.append(Absent())
"""


MAKE_FILES = """def _made(path, text=None):
    \"\"\"A file with this text, or a folder, where nothing is yet.\"\"\"
    import pathlib

    place = pathlib.Path(path)
    if text is None:
        place.mkdir(parents=True, exist_ok=True)
    elif not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


"""
FINISH = """

def _finish(result):
    \"\"\"Run what the fragment made, a coroutine or a generator, to its end; of items a thousand at most.\"\"\"
    import asyncio, inspect, itertools

    async def through():
        count = 0
        async for _ in result:
            count += 1
            if count == 1000:
                break

    if inspect.iscoroutine(result):
        asyncio.run(result)
    elif inspect.isasyncgen(result):
        asyncio.run(through())
    elif inspect.isgenerator(result):
        for _ in itertools.islice(result, 1000):
            pass


"""
OPEN_BY_NAME = """

def open(file, *args, **kwargs):
    \"\"\"The builtin; a stand-in, which is a number as well, stands for a name here.\"\"\"
    import builtins

    return builtins.open(file.__fspath__() if isinstance(file, StandIn) else file, *args, **kwargs)


"""
CALL_THE_REST = """

def _object(cls):
    \"\"\"An object of the class; one that is not initialised where that fails.\"\"\"
    import inspect

    try:
        needed = [p for p in inspect.signature(cls).parameters.values() if p.default is p.empty]
        named = {p.name: StandIn(path=p.name) for p in needed if p.kind == p.KEYWORD_ONLY}
        return cls(*[StandIn(path=p.name) for p in needed if p.kind in (0, 1)], **named)
    except Exception:
        return next(iter(cls)) if hasattr(cls, "__members__") else cls.__new__(cls)


def _bare(thing, part="fget"):
    \"\"\"The function of a property; what can be called as it is.\"\"\"
    return thing if callable(thing) else getattr(thing, part, None) or getattr(thing, "func", thing)


def _call(function):
    \"\"\"Call what nobody calls, and say how it failed if it did.\"\"\"
    try:
        _finish(function())
    except (Exception, SystemExit) as error:
        print(f"{type(error).__name__}: {error}")


"""


def standalone(ran: Ran) -> str:
    """The program's text. A call of known code that failed and got a value cannot be written down: it fails again."""
    values = {p.key: p.guess for p in ran.puts if not {"of", "argv"} & set(p.guess)}
    made = {key: f"lambda: {written(guess)}" for key, guess in values.items()}
    table = {
        kind: "{" + ", ".join(
            f"{key.partition(':')[2].rpartition('.')[2]!r}: {text}" for key, text in made.items()
            if key.startswith(kind + ":") and text != "lambda: StandIn()"
        ) + "}"
        for kind in ("attribute", "call")
    }  # fmt: skip
    text, shift = runnable(textwrap.dedent(ran.source))
    futures, text = without_futures(text)
    lines = [
        f"# {ran.name!a}, with what it lacks put in; written by paceline-apps selfpico.",
        f"from __future__ import {', '.join(futures)}",
        "",
    ]
    packaged = within_package(text)
    absent = sorted({*ran.absent, *([RELATIVE_TO.partition(".")[0]] if packaged else [])})
    lines += dict.fromkeys(statement for each in ran.found for statement in each.imports)
    lines += ["import sys", *(["import importlib.machinery", "import types"] if absent else []), ""]
    lines.append(STAND_IN.format(attributes=table["attribute"], calls=table["call"]))
    if absent:
        lines.append(ABSENT_FINDER.format(modules=absent))
    if packaged:
        lines.append(f"__package__ = {RELATIVE_TO!r}")
    code = [str(p.guess["code"]) for p in ran.puts if p.guess.get("code")]
    lines += [*dict.fromkeys(code)]
    if argv := argv_of(ran, text):
        lines.append(f"sys.argv[1:] = sys.argv[1:] or {argv!r}")
    places = {each.name: each.kind for each in ran.found if each.kind in ("file", "folder")}
    endless = {each.name for each in ran.found if each.kind == "late"}
    called = [
        f"# {each.name} is not called: it does not end." if each.name in endless else called_line(each)
        for each in ran.found
        if each.kind == "called" and called_line(each)
    ]
    lines += [MAKE_FILES] if places else []
    fields, form = fields_of(text), form_of(text)
    for path, made_as in places.items():
        inside = [f"{path}/{name}" for name in files_within(text)] if made_as == "folder" else [path]
        lines += [f"_made({path!r})"] if made_as == "folder" else []
        lines += [f"_made({each!r}, {content(each, fields, form)!r})" for each in inside]
    for key, guess in values.items():
        kind, _, name = key.partition(":")
        if kind == "name" and plain_name(name):
            value = written(guess)
            lines.append(f"{name} = {value if value != 'StandIn()' else f'StandIn(path={name!r})'}")
    lines += [OPEN_BY_NAME] if re.search(r"\bopen\(", text) else []
    lines += ["", text]
    lines += [FINISH] if shift or called else []
    lines += [f"_finish({FUNCTION}())"] if shift else []
    lines += [CALL_THE_REST, *called] if called else []
    return "\n".join(lines) + "\n"


RELATIVE_TO = "here.a.b.c"
"""The package that a written fragment takes itself to be in, where it imports from its own."""


def within_package(text: str) -> bool:
    """Whether the fragment imports from the package around it, as `from .base import Model` does."""
    return any(isinstance(node, ast.ImportFrom) and node.level > 0 for node in ast.walk(ast.parse(text)))


def argv_of(ran: Ran, text: str) -> list[str]:
    """The arguments of the command line that the run was given."""
    return next((p.guess["argv"] for p in reversed(ran.puts) if "argv" in p.guess), given_argv(text))


def called_line(each: PicoFound) -> str:
    """The call of what nobody calls; "" where it has no name by which the program could call it, as a lambda."""
    parts = each.name.split(".")
    if not all(map(plain_name, [*parts, *each.named])):
        return ""
    for at in range(1, len(parts)):  # as Python writes names that are private to a class
        if parts[at].startswith("__") and not parts[at].endswith("__") and parts[at - 1].strip("_"):
            parts[at] = f"_{parts[at - 1].lstrip('_')}{parts[at]}"
    owner, name = ".".join(parts[:-1]), ".".join(parts)
    called = f"_bare({name}{', ' + repr('fset') if each.gets == 'set' else ''})" if owner else name
    first = {"self": [f"_object({owner})"], "set": [f"_object({owner})"], "class": [owner]}.get(each.gets, [])
    values = [(f"{key}=" if key in each.named else "") + written(guess) for key, guess in each.arguments]
    called = f"{name}.__func__" if each.gets == "class" else called
    return f"_call(lambda: {called}({', '.join([*first, *values])}))"


def plain_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def without_futures(text: str) -> tuple[list[str], str]:
    """What the text imports of `__future__`, annotations always, and the text without those lines."""
    lines, names = text.split("\n"), ["annotations"]
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            names += [each.name for each in node.names]
            for at in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[at] = ""
    return list(dict.fromkeys(names)), "\n".join(lines)


def written(guess: Guess) -> str:
    """The expression of a guess, on one line and without comments; that of its type where it has none."""
    try:
        return ast.unparse(ast.parse(str(guess["expression"]).strip(), mode="eval"))
    except (KeyError, SyntaxError, ValueError):
        return EMITTED_VALUES.get(str(guess.get("type", "Object")), EMITTED_VALUES["Object"])
