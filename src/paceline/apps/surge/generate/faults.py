"""BG: programs with one fault each; the truth is what compiler or runtime says, or the wrong output."""

import random

from ..toolchains import CPP, JAVA, PYTHON, Language
from .draft import Draft, Template, numbers, single


def _python(bug: str, lines: str) -> Draft:
    return single(PYTHON, lines.lstrip(), "tokens", bug=bug)


def index(draw: random.Random) -> Draft:
    values = numbers(draw, draw.randint(3, 6))
    return _python(
        "index out of range",
        f"""
def adjacent(values):
    total = 0
    for i in range(len(values)):
        total += abs(values[i] - values[i + 1])
    return total


print(adjacent({values}))
""",
    )


def undefined(draw: random.Random) -> Draft:
    name = draw.choice(["total", "result", "answer", "amount"])
    return _python(
        "undefined name",
        f"""
def add(values):
    {name} = 0
    for value in values:
        {name} += value
    return {name[:-1]}


print(add({numbers(draw, 4)}))
""",
    )


def wrong_type(draw: random.Random) -> Draft:
    return _python(
        "wrong type",
        f"""
def label(name, count):
    return name + ": " + count


print(label("{draw.choice(["apples", "pears", "plums"])}", {draw.randint(2, 99)}))
""",
    )


def shared_default(draw: random.Random) -> Draft:
    a, b, c = numbers(draw, 3)
    return _python(
        "shared default argument",
        f"""
def collect(value, into=[]):
    into.append(value)
    return into


print(collect({a}))
print(collect({b}), len(collect({c})))
""",
    )


def missing_colon(draw: random.Random) -> Draft:
    return _python(
        "missing colon",
        f"""
def largest(values):
    best = values[0]
    for value in values
        if value > best:
            best = value
    return best


print(largest({numbers(draw, 5)}))
""",
    )


def off_by_one(draw: random.Random) -> Draft:
    return _python(
        "off by one",
        f"""
# The sum of the whole numbers from 1 to n.
def add_up(n):
    total = 0
    for i in range(1, n):
        total += i
    return total


print(add_up({draw.randint(5, 30)}))
""",
    )


def _cpp(bug: str, body: str, head: str = "#include <iostream>") -> Draft:
    return single(CPP, f"{head}\n\nint main() {{\n{body.strip(chr(10))}\n}}\n", "tokens", bug=bug)


def semicolon(draw: random.Random) -> Draft:
    a, b = numbers(draw, 2)
    return _cpp("missing semicolon", f"    int a = {a}\n    int b = {b};\n    std::cout << a + b << std::endl;")


def undeclared(draw: random.Random) -> Draft:
    name = draw.choice(["count", "width", "score"])
    return _cpp(
        "undeclared name", f"    int {name} = {draw.randint(1, 9)};\n    std::cout << {name}s * 2 << std::endl;"
    )


def assigns(draw: random.Random) -> Draft:
    value = draw.randint(2, 9)
    return _cpp(
        "= for ==",
        f"    int hits = 0;\n    for (int i = 0; i < {draw.randint(3, 7)}; i++) {{\n        int x = i * {value};\n"
        f"        if (x = {value}) hits++;\n    }}\n    std::cout << hits << std::endl;",
    )


def truncates(draw: random.Random) -> Draft:
    values = ", ".join(map(str, numbers(draw, 4)))
    return _cpp(
        "integer division",
        f"    int v[] = {{{values}}};\n    int sum = 0;\n    for (int x : v) sum += x;\n    double mean = sum / 4;\n"
        '    std::cout << "mean " << mean << std::endl;',
    )


def constant(draw: random.Random) -> Draft:
    return _cpp(
        "assignment to a constant",
        f"    const int limit = {draw.randint(10, 99)};\n    limit += 1;\n    std::cout << limit << std::endl;",
    )


def out_of_vector(draw: random.Random) -> Draft:
    count = draw.randint(3, 8)
    return _cpp(
        "index out of range",
        f"    std::vector<int> v({count}, 1);\n    try {{\n        std::cout << v.at({count}) << std::endl;\n"
        '    } catch (const std::exception &e) {\n        std::cout << "failed: " << e.what() << std::endl;\n    }',
        "#include <iostream>\n#include <stdexcept>\n#include <vector>",
    )


def _java(bug: str, body: str) -> Draft:
    text = f"public class Main {{\n    public static void main(String[] args) {{\n{body.strip(chr(10))}\n    }}\n}}\n"
    return single(JAVA, text, "tokens", bug=bug)


def null(draw: random.Random) -> Draft:
    return _java(
        "null",
        f'        String[] names = new String[{draw.randint(2, 9)}];\n        names[0] = "ada";\n'
        "        System.out.println(names[0].length());\n        System.out.println(names[1].length());",
    )


def array(draw: random.Random) -> Draft:
    values = numbers(draw, draw.randint(3, 6))
    return _java(
        "index out of range",
        f"        int[] v = {{{', '.join(map(str, values))}}};\n        int sum = 0;\n"
        "        for (int i = 0; i <= v.length; i++) sum += v[i];\n        System.out.println(sum);",
    )


def divide(draw: random.Random) -> Draft:
    start = draw.randint(2, 5)
    return _java(
        "division by zero",
        f"        int left = {draw.randint(10, 99)};\n        for (int i = {start}; i >= 0; i--)\n"
        "            System.out.println(left / i);",
    )


def untyped(draw: random.Random) -> Draft:
    return _java("wrong type", f'        int count = "{draw.randint(1, 99)}";\n        System.out.println(count + 1);')


def identity(draw: random.Random) -> Draft:
    word = draw.choice(["pace", "line", "draft"])
    return _java(
        "== for equals",
        f'        String a = "{word}";\n        String b = new String("{word}");\n'
        '        System.out.println(a == b ? "same" : "different");\n        System.out.println(a.equals(b));',
    )


SURGE_FAULTS: list[tuple[Language, Template]] = [
    *((PYTHON, make) for make in (index, undefined, wrong_type, shared_default, missing_colon, off_by_one)),
    *((CPP, make) for make in (semicolon, undeclared, assigns, truncates, constant, out_of_vector)),
    *((JAVA, make) for make in (null, array, divide, untyped, identity)),
]
