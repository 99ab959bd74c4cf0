"""How a fragment uses what it lacks, and which values such uses allow: a check of types before anything runs."""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .box.dummies import PICO_TYPES, Dummy, Resource

OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
TAKES: dict[str, Callable[[Any], Any]] = {
    "len": len, "int": int, "float": float, "abs": abs, "sum": sum, "min": min, "max": max, "sorted": sorted,
    "list": list, "tuple": tuple, "set": set, "enumerate": enumerate, "iter": iter, "reversed": reversed,
    "range": range, "ord": ord, "chr": chr, "any": any, "all": all,
}  # fmt: skip
"""Builtin functions that refuse values of other types; `open` and such want a text."""
WANT_TEXT = frozenset({"open", "os.path.join", "os.path.exists", "os.path.isfile", "os.path.isdir", "os.listdir",
                       "os.makedirs", "os.mkdir", "Path", "re.compile", "json.loads",
                       "urlparse", "glob.glob"})  # fmt: skip
EXTRA: dict[str, tuple[str, Any]] = {
    "False": ("False", False), "Zero": ("0", 0), "Ten": ("10", 10), "Number text": ("'1'", "1"),
    "Empty text": ("''", ""), "Empty list": ("[]", []), "Numbers": ("[1, 2, 3]", [1, 2, 3]),
    "Texts": ("['a', 'b']", ["a", "b"]), "Pairs": ("[('a', 1), ('b', 2)]", [("a", 1), ("b", 2)]),
    "Rows": ("[{'id': 1, 'name': 'a'}]", [{"id": 1, "name": "a"}]), "Empty dictionary": ("{}", {}),
    "Bytes": ("b'a'", b"a"),
}  # fmt: skip
"""Values in addition to those of the types: name, expression, value."""
SAMPLES: dict[str, Any] = {
    "None": None, "Boolean": True, "Integer": 1, "Float": 1.0, "String": "a", "List": [Dummy()], "Tuple": (Dummy(),),
    "Set": {Dummy()}, "Dictionary": {"a": Dummy()}, "Callable": Dummy, "Resource": Resource(), "Object": Dummy(),
    **{name: value for name, (_, value) in EXTRA.items()},
}  # fmt: skip
NEEDS = {"Tensor": "torch", "Array": "numpy", "DataFrame": "pandas"}
WORDS_OF_VALUES = (*PICO_TYPES, *EXTRA)


@dataclass(slots=True)
class PicoUses:
    """What is done with the value of a key."""

    attributes: set[str] = field(default_factory=set)
    checks: list[Callable[[Any], Any]] = field(default_factory=list)
    """Uses that can be tried on a value; each raises where the value does not allow it."""

    def allow(self, value: Any) -> bool:
        if isinstance(value, Dummy):
            return True
        if not all(hasattr(value, name) for name in self.attributes):
            return False
        return all(tried(check, value) for check in self.checks)


def tried(check: Callable[[Any], Any], value: Any) -> bool:
    """Whether a use of the value is not refused by its type. Any other error depends on the value, so it allows it."""
    try:
        check(value)
    except (TypeError, AttributeError):
        return False
    except Exception:
        return True
    return True


MOST_FIELDS = 20


def fields_of(source: str) -> list[str]:
    """Names by which the fragment reads items, `row["total"]` or `row.get("total")`, in their order."""
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Subscript):
            parts = [node.slice, *(node.slice.elts if isinstance(node.slice, ast.List | ast.Tuple) else ())]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TAKE_FIELDS:
            parts = [*node.args[:1], *(k.value for k in node.keywords if k.arg in ("by", "on", "index", "columns"))]
            parts += [each for part in parts if isinstance(part, ast.List) for each in part.elts]
        elif isinstance(node, ast.keyword) and node.arg in ("parse_dates", "usecols", "index_col"):
            parts = [node.value, *(node.value.elts if isinstance(node.value, ast.List) else ())]
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and FIELD.fullmatch(part.value):
                found[part.value] = None
    return list(found)[:MOST_FIELDS]


READERS_OF_FORMS = {
    "json": ("json.load(",), "csv": ("csv.reader(", "csv.DictReader(", "read_csv("),
    "yaml": ("yaml.load(", "yaml.safe_load("), "xml": ("ET.parse(", "etree.parse(", "minidom.parse("),
    "toml": ("tomllib.load(", "toml.load("), "html": ("BeautifulSoup(",), "ini": ("configparser.",),
}  # fmt: skip
"""Endings of files, and what reads files of their kind."""


def form_of(source: str) -> str:
    """The ending of files that a fragment reads, for names that do not say it; "" where it reads several kinds."""
    found = [form for form, readers in READERS_OF_FORMS.items() if any(each in source for each in readers)]
    return found[0] if len(found) == 1 else ""


MOST_ARGUMENTS = 20


def given_argv(source: str) -> list[str]:
    """Arguments of the command line, as many as the fragment reads of `sys.argv` by number or by unpacking."""
    found = [0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and is_argv(node.value):
            found.append(number_of(node.slice))
        elif isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            sliced = isinstance(value, ast.Subscript) and is_argv(value.value) and isinstance(value.slice, ast.Slice)
            parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target] if sliced else []
            count = sum(not isinstance(each, ast.Starred) for each in parts)
            if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice) and sliced and count:
                found.append(number_of(value.slice.lower) + count - 1)
            elif is_argv(value):
                found.append(count - 1)
    return ["1"] * min(max(found), MOST_ARGUMENTS)


def is_argv(node: ast.expr) -> bool:
    return getattr(node, "id" if isinstance(node, ast.Name) else "attr", "") == "argv"


def number_of(node: ast.expr | None) -> int:
    """A number that stands in the code, up to 99; else 0."""
    value = node.value if isinstance(node, ast.Constant) else 0
    return value if type(value) is int and value < 100 else 0


def files_within(source: str) -> list[str]:
    """Files of a made folder: one with each ending that the fragment names, else a text."""
    endings = dict.fromkeys(re.findall(r"""["']\*?\.([a-z0-9]{1,5})["']""", source))
    return [f"a.{ending}" for ending in list(endings)[:5]] or ["a.txt"]


TAKE_FIELDS = frozenset({"get", "groupby", "sort_values", "set_index", "pivot_table", "merge", "pop"})
FIELD = re.compile(r"\w[\w .-]{0,29}")


def uses_of(source: str) -> dict[str, PicoUses]:
    """By key ("name:x", "attribute:a", "call:f"), over the whole fragment."""
    found: dict[str, PicoUses] = {}
    for node in ast.walk(ast.parse(source)):
        for part, check in handled(node):
            for key in keys_of(part):
                uses = found.setdefault(key, PicoUses())
                if isinstance(check, str):
                    uses.attributes.add(check)
                else:
                    uses.checks.append(check)
    return found


def keys_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [f"name:{node.id}"]
    if isinstance(node, ast.Attribute):
        return [f"attribute:{node.attr}"]
    if isinstance(node, ast.Call):
        return [f"call:{ast.unparse(node.func)}"]
    return []


def handled(node: ast.AST) -> list[tuple[ast.AST, str | Callable[[Any], Any]]]:
    """(what is used, the attribute or the use) of one node."""
    if isinstance(node, ast.Attribute):
        return [(node.value, node.attr)]
    if isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Constant):
            index = node.slice.value
            return [(node.value, lambda value: value[index])]
        if isinstance(node.slice, ast.Slice):
            return [(node.value, lambda value: value[:1])]
        return [(node.value, lambda value: value.__getitem__)]
    if isinstance(node, ast.For | ast.comprehension):
        if isinstance(node.target, ast.Tuple):
            count = len(node.target.elts)
            return [(node.iter, lambda value: unpacked(value, count))]
        return [(node.iter, iter)]
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        return [(node.value, iter)]
    if isinstance(node, ast.withitem):
        return [(node.context_expr, lambda value: value.__exit__)]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return sides(OPERATORS[type(node.op)], node.left, node.right)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OPERATORS:
        return sides(OPERATORS[type(node.ops[0])], node.left, node.comparators[0])
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return [(node.comparators[0], lambda value: "a" in value)]
    if isinstance(node, ast.Call):
        out: list[tuple[ast.AST, str | Callable[[Any], Any]]] = [(node.func, called)]
        name = ast.unparse(node.func)
        if node.args and name in TAKES and len(node.args) == 1:
            out.append((node.args[0], TAKES[name]))
        if node.args and name in WANT_TEXT:
            out.append((node.args[0], text_wanted))
        if isinstance(node.func, ast.Attribute) and node.func.attr == "join" and node.args:
            out.append((node.args[0], lambda value: "".join(value)))
        return out
    return []


def unpacked(value: Any, count: int) -> None:
    for item in value:
        if not isinstance(item, Dummy) and len(item) != count:
            raise TypeError


def called(value: Any) -> None:
    if not callable(value):
        raise TypeError


def text_wanted(value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError


def sides(
    operation: Callable[[Any, Any], Any], left: ast.AST, right: ast.AST
) -> list[tuple[ast.AST, str | Callable[[Any], Any]]]:
    """An operator with a constant on one side."""
    if isinstance(right, ast.Constant):
        known = tame(right.value)
        return [(left, lambda value: operation(value, known))]
    if isinstance(left, ast.Constant):
        known = tame(left.value)
        if isinstance(known, str | bytes) and re.search(r"\d{4}", str(known)):
            return []  # a format may ask for as many characters
        return [(right, lambda value: operation(known, value))]
    return []


MOST_CONSTANT = 1000
"""Larger numbers of a fragment stand as this one where uses are tried: `10 ** 10**9` would never end."""


def tame(constant: Any) -> Any:
    if isinstance(constant, int | float) and not isinstance(constant, bool) and abs(constant) > MOST_CONSTANT:
        return type(constant)(MOST_CONSTANT if constant > 0 else -MOST_CONSTANT)
    return constant


def allowed(uses: PicoUses | None, source: str) -> list[str]:
    """Words of values that the uses allow, types and others."""
    out = []
    for word in WORDS_OF_VALUES:
        if word in NEEDS:
            if (
                NEEDS[word] in source
                or (word == "Array" and "np." in source)
                or (word == "DataFrame" and "pd." in source)
            ):
                out.append(word)
        elif uses is None or uses.allow(SAMPLES[word]):
            out.append(word)
    return out


def guess_of(word: str) -> Mapping[str, Any]:
    """The value of a word, as the runtime takes it."""
    return {"code": "", "expression": EXTRA[word][0]} if word in EXTRA else {"type": word}
