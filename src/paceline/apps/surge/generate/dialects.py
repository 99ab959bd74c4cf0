"""DR: one C++ program under compilers, standards and levels, which change what it says or whether it builds.

No program here has undefined behaviour: what differs is what the standards say.
"""

import random

from ..toolchains import Language, found
from .draft import Draft, Template, numbers

STANDARDS = ("c++03", "c++11", "c++14", "c++17")
SURGE_LEVELS = ("O0", "O1", "O2", "O3", "Os")
COMPILERS = {name: Language(f"C++ ({name})", "main.cpp", "", (name,)) for name in ("g++", "clang++")}
SURGE_QUIET = {"g++": "-fno-diagnostics-show-caret", "clang++": "-fno-caret-diagnostics"}


def under(compiler: str, draw: random.Random, text: str, matters: str) -> Draft:
    standard, level = draw.choice(STANDARDS), draw.choice(SURGE_LEVELS)
    command = f"{compiler} -std={standard} -{level} {SURGE_QUIET[compiler]} -fmax-errors=3 main.cpp -o main && ./main"
    if compiler == "clang++":
        command = command.replace("-fmax-errors=3", "-ferror-limit=3")
    features = {"compiler": compiler, "standard": standard, "level": level, "matters": matters}
    return Draft("C++", {"main.cpp": text.lstrip()}, command, "tokens", features)


def nested(draw: random.Random) -> tuple[str, str]:
    """>> closes two templates from C++11 on."""
    values = ", ".join(map(str, numbers(draw, 3)))
    return (
        "standard",
        f"""
#include <iostream>
#include <vector>

int main() {{
    int v[] = {{{values}}};
    std::vector<std::vector<int>> rows(2, std::vector<int>(v, v + 3));
    std::cout << rows.size() * rows[1][{draw.randint(0, 2)}] << std::endl;
}}
""",
    )


def deduced(draw: random.Random) -> tuple[str, str]:
    """auto deduces from C++11 on, return types from C++14 on."""
    return (
        "standard",
        f"""
#include <iostream>

auto twice(int x) {{ return x * {draw.randint(2, 5)}; }}

int main() {{
    std::cout << twice({draw.randint(3, 30)}) << std::endl;
}}
""",
    )


def binding(draw: random.Random) -> tuple[str, str]:
    """Structured bindings are of C++17; compilers warn before."""
    a, b = numbers(draw, 2)
    return (
        "standard",
        f"""
#include <iostream>
#include <utility>

int main() {{
    auto [x, y] = std::make_pair({a}, {b});
    std::cout << x - y << std::endl;
}}
""",
    )


def version(draw: random.Random) -> tuple[str, str]:
    return (
        "standard",
        f"""
#include <iostream>

int main() {{
    std::cout << __cplusplus / {draw.choice([1, 100])} << std::endl;
}}
""",
    )


def optimised(draw: random.Random) -> tuple[str, str]:
    """__OPTIMIZE__ is set from O1 on, __OPTIMIZE_SIZE__ by Os."""
    a, b, c = numbers(draw, 3)
    return (
        "level",
        f"""
#include <iostream>

int main() {{
#ifdef __OPTIMIZE_SIZE__
    std::cout << {a} << std::endl;
#elif defined(__OPTIMIZE__)
    std::cout << {b} << std::endl;
#else
    std::cout << {c} << std::endl;
#endif
}}
""",
    )


def who(draw: random.Random) -> tuple[str, str]:
    a, b = numbers(draw, 2)
    return (
        "compiler",
        f"""
#include <iostream>

int main() {{
#ifdef __clang__
    std::cout << "clang " << {a} * {b} << std::endl;
#else
    std::cout << "gcc " << {a} + {b} << std::endl;
#endif
}}
""",
    )


def looped(draw: random.Random) -> tuple[str, str]:
    """Loops in constexpr functions are of C++14."""
    return (
        "standard",
        f"""
#include <iostream>

constexpr int power(int base, int n) {{
    int out = 1;
    for (int i = 0; i < n; i++) out *= base;
    return out;
}}

int main() {{
    static_assert(power(2, {draw.randint(3, 6)}) > 4, "small");
    std::cout << power({draw.randint(2, 4)}, 3) << std::endl;
}}
""",
    )


def folded(draw: random.Random) -> tuple[str, str]:
    """Fold expressions are of C++17; compilers warn before."""
    values = ", ".join(map(str, numbers(draw, 4)))
    return (
        "standard",
        f"""
#include <iostream>

template <typename... T>
int add(T... values) {{
    return (values + ...);
}}

int main() {{
    std::cout << add({values}) << std::endl;
}}
""",
    )


def registered(draw: random.Random) -> tuple[str, str]:
    """register is gone in C++17."""
    return (
        "standard",
        f"""
#include <iostream>

int main() {{
    register int count = {draw.randint(2, 60)};
    std::cout << count * count << std::endl;
}}
""",
    )


PROGRAMS = (nested, deduced, binding, version, optimised, who, looped, folded, registered)


def _template(compiler: str, index: int) -> Template:
    def make(draw: random.Random) -> Draft:
        matters, text = PROGRAMS[index](draw)
        return under(compiler, draw, text, matters)

    return make


def dialects() -> list[tuple[Language, Template]]:
    """Every program under every compiler that is here, compilers in turn."""
    here = [name for name in COMPILERS if found(name)]
    return [(COMPILERS[name], _template(name, index)) for index in range(len(PROGRAMS)) for name in here]
