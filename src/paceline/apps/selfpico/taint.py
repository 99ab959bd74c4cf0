"""Which lines of a fragment read a value that was put in, directly or by what was made from it.

An error is the fragment's own only where no such value reaches its line. The flow is followed by names, over the whole
fragment and in any order, so it errs on the side of "not sure": a name that once held a put-in value holds it always.
What is followed: assignments, loops, `with`, arguments into functions of the fragment, returns, methods that may change
their object, attributes and items. What a condition decides is not followed: the error of a branch stands in its text.
"""

import ast
import textwrap
from collections.abc import Collection, Iterator

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def tainted(
    source: str, shift: int, keys: Collection[str], modules: Collection[int], files: Collection[int] = ()
) -> frozenset[int]:
    """Lines that read put-in values. `keys`: what was put in, as "name:x", "attribute:y" or "call:f(...)'s text";
    `modules`: lines whose imports are of modules that are absent; `files`: lines whose calls
    read a file or folder that was made; `shift`: lines before the fragment in `source`."""
    tree = ast.parse(source)
    flow = Flow(set(keys), {line + shift for line in files})
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and node.lineno - shift in modules:
            flow.names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    while flow.grown(tree):
        pass
    return frozenset(line - shift for line in flow.lines(tree) if line > shift)


class Flow:
    """Names and functions that carry put-in values; grows until nothing is added."""

    def __init__(self, keys: set[str], files: set[int]) -> None:
        self.keys, self.files = keys, files
        self.names: set[str] = set()

    def grown(self, tree: ast.AST) -> bool:
        before = len(self.names)
        for node in ast.walk(tree):
            self.follow(node)
        return len(self.names) > before

    def follow(self, node: ast.AST) -> None:
        """What one node hands on."""
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                items = [part.slice for part in ast.walk(target) if isinstance(part, ast.Subscript)]
                if any(part is not None and self.reads(part) for part in (node.value, *items)):
                    self.names |= set(bound(target))
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            if self.reads(node.iter):
                self.names |= set(bound(node.target))
        elif isinstance(node, ast.withitem):
            if node.optional_vars is not None and self.reads(node.context_expr):
                self.names |= set(bound(node.optional_vars))
        elif isinstance(node, ast.Match):
            if self.reads(node.subject):
                self.names |= {part.name for part in ast.walk(node) if isinstance(part, ast.MatchAs) and part.name}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            made = [part.value for part in ast.walk(node) if isinstance(part, ast.Return | ast.Yield | ast.YieldFrom)]
            if any(value is not None and self.reads(value) for value in made):
                self.names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            if any(map(self.reads, [*node.bases, *(k.value for k in node.keywords)])):
                self.names.add(node.name)
        elif isinstance(node, ast.Call) and any(map(self.reads, [*node.args, *(k.value for k in node.keywords)])):
            self.handed(node)

    def handed(self, call: ast.Call) -> None:
        """A put-in value goes into a call: into the parameters of a function of that name, and into the object of a
        method, which may keep it."""
        if isinstance(call.func, ast.Name):
            self.names.add(f"({call.func.id}")
        elif isinstance(call.func, ast.Attribute):
            self.names |= {f"({call.func.attr}", *bound(call.func.value)}

    def reads(self, node: ast.AST) -> bool:
        return any(self.hit(part) for part in ast.walk(node))

    def hit(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            return node.id in self.names or f"name:{node.id}" in self.keys
        if isinstance(node, ast.Attribute):
            own = {f"attribute:{node.attr}", f"name:{node.attr}"} & self.keys
            return bool(own) or f".{node.attr}" in self.names
        if isinstance(node, ast.Call):
            return (
                node.lineno in self.files
                or f"call:{ast.unparse(node.func)}" in self.keys
                or any(key.startswith("call:") and plain(key[5:]) == plain(ast.unparse(node.func)) for key in self.keys)
            )
        return False

    def lines(self, tree: ast.AST) -> Iterator[int]:
        """Lines of the innermost statements that read a put-in value, and whole functions that are handed one."""
        inner: dict[str, Scope] = {
            n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        added = {
            arg.arg
            for name, node in inner.items()
            if f"({name}" in self.names
            for arg in ast.walk(node.args)
            if isinstance(arg, ast.arg)
        }
        if added - self.names:
            self.names |= added
            while self.grown(tree):
                pass
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt):
                parts = [part for part in heads(node) if self.reads(part)]
                for part in parts:
                    yield from range(begun(node), (getattr(part, "end_lineno", None) or node.lineno) + 1)


def begun(node: ast.stmt) -> int:
    """The first line of a statement, its decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def heads(node: ast.stmt) -> list[ast.AST]:
    """The parts of a statement without the statements inside it."""
    return [
        child
        for child in ast.iter_child_nodes(node)
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)
    ]


def bound(target: ast.AST) -> Iterator[str]:
    """Names that an assignment to the target makes or changes."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from bound(each)
    elif isinstance(target, ast.Starred):
        yield from bound(target.value)
    elif isinstance(target, ast.Attribute):
        yield f".{target.attr}"
        yield from bound(target.value)
    elif isinstance(target, ast.Subscript | ast.Call):
        yield from bound(target.value if isinstance(target, ast.Subscript) else target.func)


def plain(text: str) -> str:
    """The text of a callee without its spaces and quotes' kind."""
    return "".join(textwrap.dedent(text).split()).replace('"', "'")
