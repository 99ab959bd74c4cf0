"""docs/python.md, from the docstrings. `python -m tests.python_page` writes it."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import paceline
from paceline.engine.options import Options

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
HEAD = """# Python

Every public name, field by field. This page is made from the docstrings (`python -m tests.python_page`).

    from paceline import LLM, SamplingParams

`paceline.` and TAB lists the same names. Programs to begin with: [examples](../examples). All errors that bad input can
cause are `PacelineError`, with one sentence that says what was wrong, what was expected and what to do.
"""
SECTIONS: list[tuple[str, Any, str]] = [
    ("LLM", paceline.LLM, "The offline face: results in order, in the caller's thread."),
    ("Options of LLM and AsyncLLM", Options, "Keyword arguments; the command line and the server have the same."),
    ("AsyncLLM", paceline.AsyncLLM, "The same for asyncio, over one engine thread."),
    ("SamplingParams", paceline.SamplingParams, "What one request asks for."),
    ("Grammar", paceline.Grammar, "Structured output."),
    ("RequestOutput", paceline.RequestOutput, "What `generate` and `chat` return."),
    ("Completion", paceline.Completion, "One sample."),
    ("Chunk", paceline.Chunk, "What `stream` yields."),
    ("SpecStats", paceline.SpecStats, "What speculation did."),
    ("TokenLogprob", paceline.TokenLogprob, "A token's log-probability."),
    ("PacelineError", paceline.PacelineError, "The base of the errors."),
    ("InputError", paceline.InputError, "Also a ValueError."),
    ("CheckpointError", paceline.CheckpointError, ""),
    ("RefusalError", paceline.RefusalError, ""),
    ("CapacityError", paceline.CapacityError, ""),
]
HIDDEN = {"submit", "abort", "ids", "call", "stuck", "greedy", "stops", "resolve", "from_dict", "of", "source", "count"}
"""Public for other rooms of the package; users have no need of them."""


def page() -> str:
    parts = [HEAD]
    for name, cls, about in SECTIONS:
        parts.append(f"## {name}\n\n" + "\n".join(filter(None, (about, *section(cls)))))
    return "\n".join(parts)


def section(cls: Any) -> Iterator[str]:
    yield "\n" + prose(inspect.getdoc(cls) or "") + "\n"
    if is_dataclass(cls):
        yield "| field | default | |\n|---|---|---|"
        docs = field_docs(cls)
        for field in sorted(fields(cls), key=lambda field: field.kw_only):
            default = "" if field.default is MISSING else f"`{field.default!r}`"
            if field.default_factory is not MISSING:
                default = f"`{field.default_factory()!r}`"
            yield f"| `{field.name}` | {default} | {one_line(docs.get(field.name, ''))} |"
        yield ""
    for name, member in own_members(cls):
        if isinstance(member, property):
            yield f"- `{name}`: {one_line(inspect.getdoc(member) or '')}"
        else:
            signature = re.sub(r"'?paceline\.[\w.]+\.(\w+)'?", r"\1", str(inspect.signature(member)))
            yield f"\n### {name}\n\n    {wrapped(name, signature)}\n\n{prose(inspect.getdoc(member) or '')}\n"


def own_members(cls: Any) -> Iterator[tuple[str, Any]]:
    for name, member in vars(cls).items():
        public = not name.startswith("_") and name not in HIDDEN
        if public and (isinstance(member, property) or inspect.isfunction(member)):
            yield name, member


def wrapped(name: str, signature: str) -> str:
    signature = re.sub(r"\b(collections\.abc|typing|pathlib)\.", "", signature)
    signature = signature.replace("(self, ", "(").replace("(self)", "()").replace('"', "").replace("'", "")
    return ("\n" + " " * 8).join(textwrap.wrap(name + signature, 106))


def field_docs(cls: Any) -> dict[str, str]:
    """{field: the text that follows it in the class}."""
    if issubclass(cls, Options):
        hints = get_type_hints(cls, include_extras=True)
        return {name: get_args(hint)[-1].text for name, hint in hints.items()}
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for here, after in zip(tree.body, tree.body[1:]):
        if isinstance(here, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            assert isinstance(here.target, ast.Name)
            found[here.target.id] = str(after.value.value)
    return found


def prose(text: str) -> str:
    """A docstring as Markdown: what is an example becomes a block of code."""
    lines, inside = [], False
    for line in text.splitlines():
        inside = bool(line) and (inside or line.startswith(">>>"))
        lines.append(f"    {line}" if inside else line)
    return "\n".join(lines)


def one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def undocumented() -> list[str]:
    """Public fields, methods and properties without a word."""
    missing = []
    for name, cls, _ in SECTIONS:
        docs = field_docs(cls) if is_dataclass(cls) else {}
        missing += [f"{name}.{f.name}" for f in (fields(cls) if is_dataclass(cls) else ()) if f.name not in docs]
        missing += [f"{name}.{member}" for member, it in own_members(cls) if not inspect.getdoc(it)]
        missing += [] if inspect.getdoc(cls) else [name]
    return missing


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
