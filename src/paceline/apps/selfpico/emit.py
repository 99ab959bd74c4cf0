"""A fragment as a program that runs by itself: what was put in stands before it, in plain Python."""

import textwrap

from .box.modules import ALIASES, MEMBER_OF, content
from .fragment import Ran
from .instrument import FUNCTION, runnable

EMITTED_VALUES = {
    "None": "None", "Boolean": "True", "Integer": "1", "Float": "1.0", "String": "'a'", "List": "[StandIn()]",
    "Tuple": "(StandIn(),)", "Set": "{StandIn()}", "Dictionary": "{'a': StandIn()}", "Tensor": "[[1.0]]",
    "Array": "[1]", "DataFrame": "{'a': [1]}", "Callable": "StandIn", "Resource": "StandIn()", "Object": "StandIn()",
}  # fmt: skip
STAND_IN = """class StandIn:
    \"\"\"Stands in for an object of which nothing is known.\"\"\"

    ATTRIBUTES = {attributes}
    CALLS = {calls}

    def __init__(self, *args, path="", **kwargs): self.__dict__["path"] = path
    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"): raise AttributeError(name)
        value = StandIn.ATTRIBUTES.get(name)
        return value() if value else StandIn(path=f"{{self.path}}.{{name}}")
    def __call__(self, *args, **kwargs):
        value = StandIn.CALLS.get(self.path.rpartition(".")[2])
        return value() if value else StandIn(path=f"{{self.path}}()")
    def __iter__(self): return iter([StandIn()])
    def __next__(self): raise StopIteration
    def __len__(self): return 1
    def keys(self): return ["a"]
    def __contains__(self, item): return True
    def __getitem__(self, key): return StandIn()
    def __setitem__(self, key, value): pass
    def __delitem__(self, key): pass
    def __enter__(self): return self
    def __exit__(self, *exc): pass
    def __int__(self): return 1
    __index__ = __int__
    def __float__(self): return 1.0
    def __add__(self, other): return StandIn()
    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __mod__ = __pow__ = __add__
    __and__ = __or__ = __xor__ = __floordiv__ = __rfloordiv__ = __matmul__ = __add__
    def __neg__(self): return StandIn()
    def __lt__(self, other):
        self.__dict__["compared"] = self.__dict__.get("compared", 0) + 1
        return self.compared <= 3
    __le__ = __gt__ = __ge__ = __lt__


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


def standalone(ran: Ran) -> str:
    """The program's text. A call of known code that failed and got a value cannot be written down: it fails again."""
    values = {p.key: p.guess for p in ran.puts}
    made = {key: f"lambda: {written(guess)}" for key, guess in values.items()}
    table = {
        kind: "{" + ", ".join(
            f"{key.partition(':')[2].rpartition('.')[2]!r}: {text}" for key, text in made.items()
            if key.startswith(kind + ":") and text != "lambda: StandIn()"
        ) + "}"
        for kind in ("attribute", "call")
    }  # fmt: skip
    lines = [f'"""{ran.name}, with what it lacks put in; written by paceline-apps selfpico."""', ""]
    imported = [usual(name) for _, what in ran.found if (name := what.partition(" is ")[0]) and " is " in what]
    absent = sorted(set(ran.absent))
    lines += [*imported, *(["import importlib.machinery", "import sys", "import types"] if absent else []), ""]
    lines.append(STAND_IN.format(attributes=table["attribute"], calls=table["call"]))
    if absent:
        lines.append(ABSENT_FINDER.format(modules=absent))
    code = [str(guess["code"]) for guess in values.values() if guess.get("code")]
    lines += [*dict.fromkeys(code)]
    for _, what in ran.found:
        if what.startswith("file ") and what.endswith(" made"):
            path = what[5:-5]
            lines.append(f"import pathlib; pathlib.Path({path!r}).write_text({content(path)!r})")
    for key, guess in values.items():
        kind, _, name = key.partition(":")
        if kind == "name" and name.isidentifier():
            text = written(guess)
            lines.append(f"{name} = {text if text != 'StandIn()' else f'StandIn(path={name!r})'}")
    text, shift = runnable(textwrap.dedent(ran.source))
    lines += ["", text]
    if shift:
        call = f"{FUNCTION}()"
        run = [f"import asyncio; asyncio.run({call})"]
        plain = [f"result = {call}", 'if hasattr(result, "__next__"):', "    list(result)"]
        lines += run if text.startswith("async") else plain
    return "\n".join(lines) + "\n"


def written(guess: dict[str, object]) -> str:
    return str(guess["expression"]) if guess.get("expression") else EMITTED_VALUES[str(guess.get("type", "Object"))]


def usual(name: str) -> str:
    if name in MEMBER_OF:
        return f"from {MEMBER_OF[name]} import {name}"
    module = ALIASES.get(name, name)
    return f"import {module} as {name}" if module != name else f"import {name}"
