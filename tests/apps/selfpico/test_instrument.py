"""Rewriting: complete programs behave as before, line for line; each construct keeps its meaning."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("libcst", reason="the extra apps is not installed")

from paceline.apps.selfpico.instrument import FragmentError, instrument, runnable


def hooks(program: object, log: list[str]) -> dict[str, object]:
    """Hooks that change nothing and note what passed."""
    sites = program.sites  # type: ignore[attr-defined]

    def name(site: int, read: object, /) -> object:
        log.append(f"name {sites[site].name}")
        return read()  # type: ignore[operator]

    def attribute(site: int, thing: object, /) -> object:
        attr = sites[site].name
        if attr.startswith("__") and not attr.endswith("__"):
            attr = f"_{sites[site].owner}{attr}"
        return getattr(thing, attr)

    def call(site: int, callee: object, /, *args: object, **kwargs: object) -> object:
        return callee(*args, **kwargs)  # type: ignore[operator]

    return {"_n_": name, "_a_": attribute, "_c_": call}


PROGRAM = '''
from dataclasses import dataclass
import asyncio

@dataclass
class Point(object):
    x: int = 1
    y: "int" = x + 1
    def __private(self): return self.x
    def area(self, *, scale=2):
        """A docstring."""
        return self.__private() * self.y * scale
    def __init_subclass__(cls, **kw):
        super().__init_subclass__(**kw)

class Child(Point, tag="t") if False else Point: pass
'''
PROGRAM = PROGRAM.replace('\nclass Child(Point, tag="t") if False else Point: pass\n', "") + '''
def gen(n):
    for i in range(n):
        got = yield i
        if got: print("got", got)

async def co(x):
    await asyncio.sleep(0)
    return [y async for y in agen(x)]

async def agen(x):
    for i in range(x): yield i

p = Point()
p.x += 2
p.items = [1, 2, 3]
a, (b, *c) = 1, (2, 3, 4)
p.items[0], p.y = b, len(c)
n = 1
n += 1
def outer():
    global n
    n += 5
    total = 0
    def inner():
        nonlocal total
        total += n
        return total
    return inner()
print(outer(), n, p.area(scale=3), f"{p.x!r:>{n}} {n=} {'a' if n else 'b'} {p.items[0]:03d}")
print([k for k in range(3) if (m := k)], m, {k: v for k, v in zip("ab", (1, 2))}, sum(i * i for i in range(4)))
print((lambda q, r=n: q + r)(1), not(n), (n) if(n) else 0)
g = gen(2)
next(g); g.send("x")
match {"k": [1, 2], "t": "v"}:
    case {"k": [first, *rest], **others} if first == 1: print(first, rest, others)
match p:
    case Point(x=3): print("three")
    case _: print("else")
try:
    {}["missing"]
except (KeyError, ValueError) as error:
    print(type(error).__name__)
else:
    print("never")
finally:
    print("finally")
with open(__file__) as p.file, io.StringIO() as s:
    print(len(s.getvalue()))
for p.z in range(2): pass
long = (p
        .x
        .bit_length())
print(long, asyncio.run(co(3)), locals() is globals(), __name__)
while True:
    break
else:
    print("never")
del a
print("".join(
    str(i)
    for i in range(3)
))
'''  # fmt: skip


def run(source: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        program = instrument(source)
        exec(
            compile(program.source, "p", "exec"),
            {"__name__": __name__, "__file__": __file__, "io": io, **hooks(program, [])},
        )
    return out.getvalue()


def test_a_complete_program_prints_what_it_printed() -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(PROGRAM, "p", "exec"), {"__name__": __name__, "__file__": __file__, "io": io})
    assert "three" in out.getvalue() and run(PROGRAM) == out.getvalue()
    assert instrument(PROGRAM).source.count("\n") == PROGRAM.count("\n")


def test_every_read_and_call_is_a_site() -> None:
    program = instrument("try:\n    x = a.b(c, d=e)[f]\nexcept KeyError: y += 1\n")
    assert [(s.kind, s.name, s.line) for s in program.sites] == [
        ("name", "a", 2), ("attribute", "b", 2), ("name", "c", 2), ("name", "e", 2), ("call", "a.b", 2),
        ("name", "f", 2), ("name", "KeyError", 3),
    ]  # fmt: skip
    assert {s.guards for s in program.sites if s.line == 2} == {("KeyError",)}
    assert "y += 1" in program.source and program.lines == {2, 3} | {1}


@pytest.mark.parametrize(
    ("source", "head"),
    [
        ("return x", "def "),
        ("yield x", "def "),
        ("await x", "async def "),
        ("x = 1", ""),
        ("    x = 1\n    y = 2\n", ""),
    ],
)
def test_what_needs_a_function_gets_one(source: str, head: str) -> None:
    import textwrap

    text, shift = runnable(textwrap.dedent(source))
    assert text.startswith(head) and shift == bool(head)
    assert instrument(source).lines >= {1}


def test_what_is_no_python_is_refused() -> None:
    with pytest.raises(FragmentError, match="not valid Python"):
        instrument("if x:\nreturn")


@pytest.mark.parametrize(
    "module", ["textwrap", pytest.param("shlex", marks=pytest.mark.full), pytest.param("heapq", marks=pytest.mark.full)]
)
def test_modules_of_the_standard_library_pass_their_own_tests_rewritten(module: str, tmp_path: Path) -> None:
    import importlib

    source = Path(str(importlib.import_module(module).__file__)).read_text(encoding="utf-8")
    program = instrument(source)
    names = {str(i): (s.owner, s.name) for i, s in enumerate(program.sites)}
    (tmp_path / f"{module}.py").write_text(program.source)
    hook = (
        "import builtins, json\nN = json.load(open(__file__[:-16] + 'names.json'))\n"
        "def a(i, o):\n    w, n = N[str(i)]\n"
        "    return getattr(o, f'_{w}{n}' if n.startswith('__') and not n.endswith('__') else n)\n"
        "vars(builtins).update(_n_=lambda i, r: r(), _a_=a, _c_=lambda i, f, /, *p, **k: f(*p, **k))\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hook)
    (tmp_path / "names.json").write_text(json.dumps(names))
    pytest.importorskip(f"test.test_{module}", reason="Python's own tests are not installed")
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "-q", f"test.test_{module}"],
        env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
