"""Rewriting a fragment so that each read of a name or attribute and each call passes through the runtime.

    x       ->  _n_(3, lambda: x)              what is NameError today may get a value
    e.a     ->  _a_(4, e)                      attribute a of site 4
    f(x)    ->  _c_(5, f, x)
    x += 1  ->  x = _n_(6, lambda: x); x += 1
    @d      ->  @_d_(d)                        remembers the function below it

Line numbers stay as they are, so the lines that ran can be compared with the original. A site is a number, never a
text, so that it can stand in an f-string. Not rewritten: targets, annotations, patterns, `f"{x=}"`, names of a
class's own body, and calls that look at their caller's frame (super, locals, ...).
"""

import ast
import textwrap
from dataclasses import asdict, dataclass
from typing import Any

import libcst as cst
from libcst.metadata import (
    ClassScope,
    ExpressionContext,
    ExpressionContextProvider,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    ScopeProvider,
)

FRAME_READERS = frozenset({"super", "locals", "globals", "vars", "dir", "eval", "exec"})
CONSTANTS = frozenset({"True", "False", "None", "__class__", "__debug__"})
FUNCTION = "__fragment__"


class FragmentError(Exception):
    """A fragment that is not Python; the text says where."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place where something may be missing. `name` is the name or attribute, or the callee's text; `guards` are the
    exceptions that a try around it handles ("" for all); `owner` is the class it is in, for private names."""

    kind: str
    name: str
    line: int
    guards: tuple[str, ...]
    owner: str = ""


@dataclass(frozen=True, slots=True)
class PicoProgram:
    """An instrumented fragment. `lines` are those with code, counted in the fragment as given; `shift` lines were put
    before it (a `def` where the fragment returns, yields or awaits outside a function); `call` is whether to call
    it."""

    source: str
    sites: tuple[Site, ...]
    imports: dict[int, tuple[str, ...]]
    lines: frozenset[int]
    shift: int
    call: bool

    def as_dict(self) -> dict[str, Any]:
        return {
            "sites": [asdict(s) for s in self.sites],
            "imports": self.imports,
            "call": self.call,
            "shift": self.shift,
        }


def instrument(source: str, first: int = 0) -> PicoProgram:
    """Rewrite a fragment; its sites are numbered from `first`. Raises FragmentError."""
    text, shift = runnable(textwrap.dedent(source))
    try:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        rewriter = Rewriter(shift, first)
        made = wrapper.visit(rewriter).code
        ast.parse(made)
    except (cst.ParserSyntaxError, SyntaxError, RecursionError) as error:
        raise FragmentError(f"This is not valid Python: {error}") from error
    if made.count("\n") != text.count("\n"):
        raise FragmentError("Its line breaks cannot be kept while it is rewritten; join the lines of long expressions.")
    lines = frozenset(line - shift for line in executable(text) if line > shift)
    return PicoProgram(made, tuple(rewriter.sites), rewriter.imports, lines, shift, bool(shift))


def runnable(text: str) -> tuple[str, int]:
    """The text as a module, or as a function's body where only that can be compiled, and the lines put before it."""
    problem: Exception | None = None
    for head in ("", f"def {FUNCTION}():\n", f"async def {FUNCTION}():\n"):
        made = head + (textwrap.indent(text, "    ") if head else text)
        try:
            compile(made, "fragment", "exec", dont_inherit=True)
            return made, head.count("\n")
        except (SyntaxError, ValueError) as error:
            problem = problem or error
    raise FragmentError(f"This is not valid Python: {problem}")


def executable(text: str) -> set[int]:
    """Lines with byte code, those of functions and classes included, docstrings not."""
    codes, lines = [compile(text, "fragment", "exec", dont_inherit=True)], set()
    while codes:
        code = codes.pop()
        lines |= {line for _, _, line in code.co_lines() if line}
        codes += [c for c in code.co_consts if isinstance(c, type(code))]
    return lines - docstrings(ast.parse(text))


def docstrings(tree: ast.AST) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


class Rewriter(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (ScopeProvider, PositionProvider, ParentNodeProvider, ExpressionContextProvider)

    def __init__(self, shift: int, first: int) -> None:
        super().__init__()
        self.shift, self.first = shift, first
        self.sites: list[Site] = []
        self.imports: dict[int, tuple[str, ...]] = {}
        self.guards: list[tuple[str, ...]] = []
        self.owners: list[str] = []

    # What is left alone

    def visit_Annotation(self, node: cst.Annotation) -> bool:
        return False

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.MatchPattern | cst.Import | cst.ImportFrom | cst.Global | cst.Nonlocal):
            self.note_import(node)
            return False
        if isinstance(node, cst.FormattedStringExpression) and node.equal is not None:
            return False
        return super().on_visit(node)

    def note_import(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Import | cst.ImportFrom):
            self.imports[self.line(node)] = self.here()

    # Where we are

    def visit_Try_body(self, node: cst.Try) -> None:
        self.guards.append(tuple(name for handler in node.handlers for name in handled(handler)))

    def leave_Try_body(self, node: cst.Try) -> None:
        self.guards.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.guards.append(("|",))

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        self.guards.pop()
        if not updated_node.decorators:
            return updated_node
        *before, last = updated_node.decorators
        return updated_node.with_changes(
            decorators=[*before, last.with_changes(decorator=call("_d_", cst.Arg(last.decorator)))]
        )

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.owners.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        self.owners.pop()
        return updated_node

    def here(self) -> tuple[str, ...]:
        """Exceptions handled around this place, within its function."""
        found: list[str] = []
        for names in reversed(self.guards):
            if names == ("|",):
                break
            found += names
        return tuple(found)

    def line(self, node: cst.CSTNode) -> int:
        return int(self.get_metadata(PositionProvider, node).start.line) - self.shift

    def site(self, kind: str, name: str, node: cst.CSTNode) -> cst.Arg:
        self.sites.append(Site(kind, name, self.line(node), self.here(), self.owners[-1] if self.owners else ""))
        return cst.Arg(cst.Integer(str(self.first + len(self.sites) - 1)))

    def loaded(self, node: cst.CSTNode) -> bool:
        return self.get_metadata(ExpressionContextProvider, node, None) is ExpressionContext.LOAD

    # What is rewritten

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        if original_node.value in CONSTANTS or not self.loaded(original_node) or self.own_of_class(original_node):
            return updated_node
        parent = self.get_metadata(ParentNodeProvider, original_node)
        if isinstance(parent, cst.Arg) and parent.keyword is original_node:
            return updated_node
        if isinstance(parent, cst.Call) and parent.func is original_node and original_node.value in FRAME_READERS:
            return updated_node
        return self.named(original_node, updated_node)

    def named(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Call:
        read = cst.Lambda(cst.Parameters(), updated_node.with_changes(lpar=[], rpar=[]))
        made = call("_n_", self.site("name", original_node.value, original_node), cst.Arg(read))
        return made.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)

    def own_of_class(self, node: cst.Name) -> bool:
        """A name of the class's body: a lambda would not see it."""
        scope = self.get_metadata(ScopeProvider, node, None)
        return isinstance(scope, ClassScope) and node.value in scope

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if not self.loaded(original_node) or text_of(original_node.value) == "super()":
            return updated_node
        site = self.site("attribute", original_node.attr.value, original_node)
        dot = updated_node.dot
        gap = (
            dot.whitespace_after
            if isinstance(dot.whitespace_after, cst.ParenthesizedWhitespace)
            else dot.whitespace_before
        )
        made = call("_a_", site, cst.Arg(updated_node.value, whitespace_after_arg=gap))
        return made.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        if isinstance(original_node.func, cst.Name) and original_node.func.value in FRAME_READERS:
            return updated_node
        args = [generator_in_parentheses(a) for a in updated_node.args]
        site = self.site("call", text_of(original_node.func), original_node)
        head = [with_comma(site), with_comma(cst.Arg(updated_node.func))]
        first = head if args else [head[0], cst.Arg(updated_node.func)]
        return updated_node.with_changes(func=cst.Name("_c_"), args=[*first, *args])

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        body: list[cst.BaseSmallStatement] = []
        for before, after in zip(original_node.body, updated_node.body):
            target = before.target if isinstance(before, cst.AugAssign) else None
            if isinstance(target, cst.Name) and not self.own_of_class(target):
                body.append(cst.Assign([cst.AssignTarget(cst.Name(target.value))], self.named(target, target)))
            body.append(after)
        return updated_node.with_changes(body=body)


def call(name: str, *args: cst.Arg) -> cst.Call:
    return cst.Call(cst.Name(name), [*(with_comma(a) for a in args[:-1]), args[-1]])


def with_comma(arg: cst.Arg) -> cst.Arg:
    return arg.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))


def generator_in_parentheses(arg: cst.Arg) -> cst.Arg:
    """`f(x for x in y)` needs parentheses next to other arguments."""
    if isinstance(arg.value, cst.GeneratorExp) and not arg.value.lpar:
        inner = arg.value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return arg.with_changes(value=inner)
    return arg


def text_of(node: cst.BaseExpression) -> str:
    return cst.Module([]).code_for_node(node)


def handled(handler: cst.ExceptHandler) -> list[str]:
    """The last names of what a handler catches."""
    if handler.type is None:
        return [""]
    if isinstance(handler.type, cst.Tuple):
        parts: list[cst.BaseExpression] = [element.value for element in handler.type.elements]
    else:
        parts = [handler.type]
    return [text_of(part).rpartition(".")[2] for part in parts]
