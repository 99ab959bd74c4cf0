"""RL: repositories of several files."""

import random

from ..toolchains import CPP, PYTHON, Language
from .draft import Draft, Template, numbers


def inventory(draw: random.Random) -> Draft:
    """A package with a store, commands read from a file, and what is left at the end."""
    goods = draw.sample(["nails", "bolts", "rope", "paint", "glue"], 3)
    lines = [f"add {good} {draw.randint(5, 20)} {draw.randint(1, 9)}" for good in goods]
    for _ in range(3):
        lines.append(f"take {draw.choice(goods)} {draw.randint(1, 12)}")
    files = {
        "stock/__init__.py": "",
        "stock/store.py": """from dataclasses import dataclass


@dataclass
class Good:
    count: int
    price: int


class Store:
    def __init__(self):
        self.goods = {}

    def add(self, name, count, price):
        self.goods[name] = Good(int(count), int(price))

    def take(self, name, count):
        good = self.goods[name]
        if good.count < int(count):
            print(f"only {good.count} {name}")
            return
        good.count -= int(count)

    def worth(self):
        return sum(good.count * good.price for good in self.goods.values())
""",
        "orders.txt": "\n".join(lines) + "\n",
        "main.py": """from stock.store import Store

store = Store()
for line in open("orders.txt"):
    verb, *rest = line.split()
    getattr(store, verb)(*rest)
for name in sorted(store.goods):
    print(name, store.goods[name].count)
print("worth", store.worth())
""",
    }
    return Draft("Python", files, "python3 main.py", "exact", {"repo": "inventory"})


def herd(draw: random.Random) -> Draft:
    """Classes over a header and two sources, built by make."""
    calls = "\n".join(
        f"    herd.push_back(std::make_unique<{draw.choice(['Cow', 'Calf'])}>({value}));"
        for value in numbers(draw, 4, 1, 9)
    )
    files = {
        "animal.h": """#pragma once
#include <string>

class Animal {
public:
    explicit Animal(int age) : age(age) {}
    virtual ~Animal() = default;
    virtual int milk() const = 0;
    virtual std::string name() const { return "animal"; }
    int age;
};

class Cow : public Animal {
public:
    using Animal::Animal;
    int milk() const override;
    std::string name() const override { return "cow"; }
};

class Calf : public Cow {
public:
    using Cow::Cow;
    int milk() const override;
};
""",
        "animal.cpp": f"""#include "animal.h"

int Cow::milk() const {{ return age > 2 ? {draw.randint(6, 12)} + age : 0; }}
int Calf::milk() const {{ return Cow::milk() / {draw.randint(2, 3)}; }}
""",
        "main.cpp": f"""#include <iostream>
#include <memory>
#include <vector>
#include "animal.h"

int main() {{
    std::vector<std::unique_ptr<Animal>> herd;
{calls}
    int all = 0;
    for (auto &a : herd) {{
        all += a->milk();
        std::cout << a->name() << " " << a->milk() << "\\n";
    }}
    std::cout << "all " << all << "\\n";
}}
""",
        "Makefile": "farm: main.cpp animal.cpp animal.h\n\tg++ -std=c++17 main.cpp animal.cpp -o farm\n",
    }
    return Draft("C++", files, "make -s && ./farm", "exact", {"repo": "herd"})


def layers(draw: random.Random) -> Draft:
    """A network's description turned into a long drawing: right in parts counts."""
    widths = draw.sample([16, 32, 64, 128, 256], 3)
    blocks = "\n".join(
        f'    conv("c{i}", {width}, {draw.choice([3, 5])}),\n    pool("p{i}", after="c{i}"),'
        for i, width in enumerate(widths)
    )
    files = {
        "draw/__init__.py": "",
        "draw/parts.py": """def conv(name, width, kernel):
    return [
        "\\\\pic[shift={(1,0,0)}] at (0,0,0)",
        f"  {{Box={{name={name}, caption=conv{kernel}x{kernel},",
        f"  xlabel={{{width}}}, height={256 // width * 4}, depth={width // 8}}}}};",
    ]


def pool(name, after):
    return [f"\\\\pic at ({after}-east) {{Box={{name={name}, fill=red, opacity=0.5}}}};",
            f"\\\\draw [connection] ({after}-east) -- ({name}-west);"]


def end():
    return ["\\\\end{tikzpicture}"]
""",
        "net.py": f"""from draw.parts import conv, end, pool

blocks = [
{blocks}
    end(),
]
print("\\n".join(line for block in blocks for line in block))
""",
    }
    return Draft("Python", files, "python3 net.py", "similar", {"repo": "layers"})


def squares(draw: random.Random) -> Draft:
    """A solver of small Latin squares by search; a grid that is right in parts counts."""
    row = draw.sample([1, 2, 3, 4], 4)
    files = {
        "rules.py": """def free(grid, r, c, size):
    used = set(grid[r]) | {grid[i][c] for i in range(size)}
    return [d for d in range(1, size + 1) if d not in used]
""",
        "puzzle.py": f"""START = [
    {row},
    [0, 0, 0, {row[0]}],
    [0, {row[3]}, 0, 0],
    [0, 0, 0, 0],
]
""",
        "solve.py": """from puzzle import START
from rules import free


def solve(grid, size=4):
    for r in range(size):
        for c in range(size):
            if grid[r][c] == 0:
                for digit in free(grid, r, c, size):
                    grid[r][c] = digit
                    if solve(grid):
                        return True
                    grid[r][c] = 0
                return False
    return True


print("solved" if solve(START) else "impossible")
for row in START:
    print(*row)
""",
    }
    return Draft("Python", files, "python3 solve.py", "similar", {"repo": "squares"})


REPOSITORIES: list[tuple[Language, Template]] = [(PYTHON, inventory), (CPP, herd), (PYTHON, layers), (PYTHON, squares)]
