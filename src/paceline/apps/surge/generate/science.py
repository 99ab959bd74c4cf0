"""SC and TC: scientific computing and long computations, in plain Python."""

import random
from collections.abc import Callable

from ..toolchains import PYTHON, Language
from .draft import Template, numbers, single


def _python(rule: str, fid: str) -> Callable[[Callable[[random.Random], str]], Template]:
    """Makes a template of a function that draws a program's text."""

    def wrap(make: Callable[[random.Random], str]) -> Template:
        return lambda draw: single(PYTHON, make(draw).lstrip(), rule, fid=fid)

    return wrap


@_python("numbers", "gd_momentum")
def descent(draw: random.Random) -> str:
    return f"""
def gradient(x, y):
    return 2 * (x - {draw.randint(1, 5)}), 4 * (y + {draw.randint(1, 3)})

x, y, vx, vy = {float(draw.randint(-3, 3))}, {float(draw.randint(-3, 3))}, 0.0, 0.0
rate, momentum = 0.1, {draw.choice([0.0, 0.5, 0.9])}
for step in range({draw.randint(2, 6)}):
    gx, gy = gradient(x, y)
    vx, vy = momentum * vx - rate * gx, momentum * vy - rate * gy
    x, y = x + vx, y + vy
print([round(x, 4), round(y, 4)])
"""


@_python("numbers", "euler_decay")
def euler(draw: random.Random) -> str:
    return f"""
y, t, h = {float(draw.randint(1, 5))}, 0.0, {draw.choice([0.1, 0.2, 0.5])}
path = []
for _ in range({draw.randint(3, 5)}):
    y += h * (-{draw.choice([0.5, 1.0, 2.0])} * y + t)
    t += h
    path.append(round(y, 4))
print(path)
"""


@_python("numbers", "rk_4")
def runge_kutta(draw: random.Random) -> str:
    return f"""
def f(t, y):
    return {draw.randint(1, 3)} * t - y

y, t, h = {float(draw.randint(0, 3))}, 0.0, 0.5
for _ in range({draw.randint(1, 3)}):
    k1 = f(t, y)
    k2 = f(t + h / 2, y + h / 2 * k1)
    k3 = f(t + h / 2, y + h / 2 * k2)
    k4 = f(t + h, y + h * k3)
    y += h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    t += h
print(f"{{y:.5f}}")
"""


@_python("numbers", "heat_eq_1d")
def heat(draw: random.Random) -> str:
    return f"""
u = {[0.0, *map(float, numbers(draw, 4, 0, 10)), 0.0]}
r = {draw.choice([0.1, 0.25, 0.4])}
for _ in range({draw.randint(1, 4)}):
    u = [u[0]] + [u[i] + r * (u[i - 1] - 2 * u[i] + u[i + 1]) for i in range(1, len(u) - 1)] + [u[-1]]
print([round(x, 3) for x in u])
"""


@_python("numbers", "fft_radix2")
def fourier(draw: random.Random) -> str:
    return f"""
import cmath

def fft(a):
    n = len(a)
    if n == 1:
        return a
    even, odd = fft(a[0::2]), fft(a[1::2])
    out = [0] * n
    for k in range(n // 2):
        t = cmath.exp(-2j * cmath.pi * k / n) * odd[k]
        out[k], out[k + n // 2] = even[k] + t, even[k] - t
    return out

print([round(abs(x), 3) for x in fft({numbers(draw, draw.choice([4, 8]), 0, 5)})])
"""


@_python("numbers", "power_method_2")
def power(draw: random.Random) -> str:
    a, b, c = numbers(draw, 3, 1, 6)
    return f"""
a = [[{a}.0, {b}.0], [{b}.0, {c}.0]]
v = [1.0, 0.0]
for _ in range({draw.randint(2, 8)}):
    w = [sum(x * y for x, y in zip(row, v)) for row in a]
    size = max(map(abs, w))
    v = [x / size for x in w]
print(f"{{size:.4f}}, {{v[0]:.4f}}, {{v[1]:.4f}}")
"""


@_python("numbers", "lu_doolittle")
def decompose(draw: random.Random) -> str:
    rows = [[float(value + 8 * (r == c)) for c, value in enumerate(numbers(draw, 3, 1, 6))] for r in range(3)]
    return f"""
a = {rows}
n = len(a)
for k in range(n):
    for i in range(k + 1, n):
        a[i][k] /= a[k][k]
        for j in range(k + 1, n):
            a[i][j] -= a[i][k] * a[k][j]
print([[round(x, 3) for x in row] for row in a])
"""


SCIENCE: list[tuple[Language, Template]] = [
    (PYTHON, template) for template in (descent, euler, runge_kutta, heat, fourier, power, decompose)
]


@_python("exact", "tsp_brute")
def travel(draw: random.Random) -> str:
    n = 6
    far = [[0] * n for _ in range(n)]
    for i in range(n):
        for j in range(i):
            far[i][j] = far[j][i] = draw.randint(1, 30)
    return f"""
from itertools import permutations

far = {far}
best = min(((sum(far[a][b] for a, b in zip((0, *p), (*p, 0))), p) for p in permutations(range(1, {n}))))
print(best[0], (0, *best[1], 0))
"""


@_python("ranking", "quick_sort")
def sort(draw: random.Random) -> str:
    return f"""
def quick(v):
    if len(v) < 2:
        return v
    pivot = v[len(v) // 2]
    return quick([x for x in v if x < pivot]) + [x for x in v if x == pivot] + quick([x for x in v if x > pivot])

print(quick({numbers(draw, 10, 1, 99)}))
"""


@_python("exact", "string_match")
def search(draw: random.Random) -> str:
    text = "".join(draw.choice("ab") for _ in range(18))
    at = draw.randint(0, 14)
    return f"""
def failure(p):
    f, k = [0] * len(p), 0
    for i in range(1, len(p)):
        while k and p[i] != p[k]:
            k = f[k - 1]
        k += p[i] == p[k]
        f[i] = k
    return f

text, pattern = "{text}", "{text[at : at + 4]}"
f, k, found = failure(pattern), 0, []
for i, c in enumerate(text):
    while k and c != pattern[k]:
        k = f[k - 1]
    k += c == pattern[k]
    if k == len(pattern):
        found.append(i - k + 1)
        k = f[k - 1]
print(f, found)
"""


@_python("exact", "hamiltonian")
def cycle(draw: random.Random) -> str:
    n = 6
    order = draw.sample(range(n), n)
    edges = {tuple(sorted((order[i], order[(i + 1) % n]))) for i in range(n)}
    while len(edges) < 8:
        edges.add(tuple(sorted(draw.sample(range(n), 2))))
    return f"""
edges = {sorted(edges)}
near = {{i: sorted({{b for a, b in edges if a == i}} | {{a for a, b in edges if b == i}}) for i in range({n})}}

def walk(path):
    if len(path) == {n}:
        return path if path[0] in near[path[-1]] else None
    for city in near[path[-1]]:
        if city not in path:
            found = walk([*path, city])
            if found:
                return found

print(walk([0]))
"""


@_python("numbers", "mc_pi")
def estimate(draw: random.Random) -> str:
    return f"""
state, inside, count = {draw.randint(1, 10**6)}, 0, {draw.choice([1000, 5000, 20000])}

def uniform():
    global state
    state = (state * 1664525 + 1013904223) % 2**32
    return state / 2**32

for _ in range(count):
    inside += uniform() ** 2 + uniform() ** 2 < 1
print(f"Estimate of pi: {{4 * inside / count}}")
"""


@_python("numbers", "matrix_inv_3")
def invert(draw: random.Random) -> str:
    rows = [[float(value + 9 * (r == c)) for c, value in enumerate(numbers(draw, 3, 0, 5))] for r in range(3)]
    return f"""
m = {rows}
n = 3
a = [row + [float(i == j) for j in range(n)] for i, row in enumerate(m)]
for k in range(n):
    a[k] = [x / a[k][k] for x in a[k]]
    for i in range(n):
        if i != k:
            a[i] = [x - a[i][k] * y for x, y in zip(a[i], a[k])]
print([[round(x, 3) for x in row[n:]] for row in a])
"""


@_python("exact", "sieve")
def primes(draw: random.Random) -> str:
    return f"""
n = {draw.randint(2000, 9000)}
flags = bytearray([1]) * (n + 1)
for i in range(2, int(n**0.5) + 1):
    if flags[i]:
        flags[i * i :: i] = bytes(len(range(i * i, n + 1, i)))
found = [i for i in range(2, n + 1) if flags[i]]
print(len(found), found[-1], sum(found) % 1000)
"""


SURGE_LONG: list[tuple[Language, Template]] = [
    (PYTHON, template) for template in (sort, travel, search, cycle, estimate, invert, primes)
]
