"""ML and CL: small programs in six languages, and competition tasks."""

import random

from ..toolchains import CPP, LANGUAGES, NODE, PYTHON, Language
from .draft import Draft, Template, numbers, single
from .tree import Maker, render


def in_language(language: Language) -> Template:
    """A random program of loops and branches, in this language."""

    def make(draw: random.Random) -> Draft:
        depth = draw.randint(1, 2)
        nodes = Maker(draw).program(names=draw.randint(2, 3), depth=depth)
        return single(language, render(nodes, language.name), "exact", depth=depth)

    return make


SURGE_MANY: list[tuple[Language, Template]] = [(language, in_language(language)) for language in LANGUAGES]


def _letters(draw: random.Random, count: int, alphabet: str) -> str:
    return "".join(draw.choice(alphabet) for _ in range(count))


def two_sum(draw: random.Random) -> Draft:
    values = numbers(draw, 8)
    i, j = sorted(draw.sample(range(8), 2))
    text = f"""
def two_sum(nums, target):
    seen = {{}}
    for i, n in enumerate(nums):
        if target - n in seen:
            return [seen[target - n], i]
        seen[n] = i
    return []

print(two_sum({values}, {values[i] + values[j]}))
"""
    return single(PYTHON, text.lstrip(), "exact", difficulty=1)


def longest_increasing(draw: random.Random) -> Draft:
    text = f"""
from bisect import bisect_left

def length(nums):
    tails = []
    for n in nums:
        at = bisect_left(tails, n)
        if at == len(tails):
            tails.append(n)
        else:
            tails[at] = n
    return len(tails), tails

print(*length({numbers(draw, 9)}))
"""
    return single(PYTHON, text.lstrip(), "exact", difficulty=3)


def brackets(draw: random.Random) -> Draft:
    text = f"""
def check(text):
    stack = []
    pairs = {{")": "(", "]": "[", "}}": "{{"}}
    for at, c in enumerate(text):
        if c in "([{{":
            stack.append(c)
        elif not stack or stack.pop() != pairs[c]:
            return f"bad at {{at}}"
    return f"open: {{len(stack)}}"

for text in {[_letters(draw, draw.randint(2, 8), "()[]") for _ in range(3)]}:
    print(check(text))
"""
    return single(PYTHON, text.lstrip(), "exact", difficulty=1)


def edit_distance(draw: random.Random) -> Draft:
    text = f"""
def distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row

print(distance("{_letters(draw, 5, "abc")}", "{_letters(draw, 6, "abc")}"))
"""
    return single(PYTHON, text.lstrip(), "exact", difficulty=4)


def coins(draw: random.Random) -> Draft:
    text = f"""
#include <algorithm>
#include <iostream>
#include <vector>

int main() {{
    std::vector<int> coins = {{1, {draw.randint(3, 5)}, {draw.randint(6, 9)}}};
    int amount = {draw.randint(11, 24)};
    std::vector<int> best(amount + 1, 1 << 20);
    best[0] = 0;
    for (int a = 1; a <= amount; a++)
        for (int c : coins)
            if (c <= a) best[a] = std::min(best[a], best[a - c] + 1);
    std::cout << best[amount] << " " << best[amount / 2] << "\\n";
}}
"""
    return single(CPP, text.lstrip(), "exact", difficulty=3)


def max_subarray(draw: random.Random) -> Draft:
    values = ", ".join(map(str, numbers(draw, 9, -9, 9)))
    text = f"""
#include <iostream>
#include <vector>

int main() {{
    std::vector<int> v = {{{values}}};
    int best = v[0], here = 0, from = 0, start = 0, stop = 0;
    for (int i = 0; i < (int)v.size(); i++) {{
        if (here <= 0) {{ here = 0; from = i; }}
        here += v[i];
        if (here > best) {{ best = here; start = from; stop = i; }}
    }}
    std::cout << best << " from " << start << " to " << stop << "\\n";
}}
"""
    return single(CPP, text.lstrip(), "exact", difficulty=2)


def runs(draw: random.Random) -> Draft:
    text = f"""
const encode = (text) => {{
  let out = "";
  for (let i = 0; i < text.length; ) {{
    let j = i;
    while (j < text.length && text[j] === text[i]) j++;
    out += text[i] + (j - i > 1 ? j - i : "");
    i = j;
  }}
  return out;
}};
console.log(encode("{_letters(draw, 12, "ab")}"));
console.log(encode("{_letters(draw, 8, "xyz")}").length);
"""
    return single(NODE, text.lstrip(), "exact", difficulty=1)


def rotate(draw: random.Random) -> Draft:
    rows = [numbers(draw, 3, 1, 9) for _ in range(3)]
    text = f"""
const turn = (m) => m[0].map((_, c) => m.map((row) => row[c]).reverse());
let m = {rows};
for (let i = 0; i < {draw.randint(1, 3)}; i++) m = turn(m);
console.log(m.map((row) => row.join(" ")).join("\\n"));
"""
    return single(NODE, text.lstrip(), "exact", difficulty=2)


COMPETITION: list[tuple[Language, Template]] = [
    (PYTHON, two_sum),
    (CPP, coins),
    (NODE, runs),
    (PYTHON, longest_increasing),
    (CPP, max_subarray),
    (NODE, rotate),
    (PYTHON, brackets),
    (PYTHON, edit_distance),
]
