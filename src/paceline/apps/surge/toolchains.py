"""Languages: the file that a program lives in, how it is run, and whether this machine can."""

import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Language:
    """`file` holds the program; `command` is a shell line in its folder; `needs` are programs on the path."""

    name: str
    file: str
    command: str
    needs: tuple[str, ...]

    @property
    def present(self) -> bool:
        return all(found(program) for program in self.needs)


@cache
def found(program: str) -> bool:
    return shutil.which(program) is not None


PYTHON = Language("Python", "main.py", "python3 main.py", ("python3",))
C = Language("C", "main.c", "gcc -std=c11 main.c -o main && ./main", ("gcc",))
CPP = Language("C++", "main.cpp", "g++ -std=c++17 main.cpp -o main && ./main", ("g++",))
JAVA = Language("Java", "Main.java", "javac Main.java && java Main", ("javac", "java"))
RUST = Language("Rust", "main.rs", "rustc -A warnings main.rs && ./main", ("rustc",))
NODE = Language("JavaScript", "main.js", "node main.js", ("node",))
LANGUAGES = (PYTHON, C, CPP, JAVA, RUST, NODE)


def present() -> list[Language]:
    """The languages that this machine can run, Python first."""
    return [language for language in LANGUAGES if language.present]


@cache
def checker() -> bool:
    """Whether this Python has mypy."""
    return find_spec("mypy") is not None


@cache
def rust() -> tuple[str, tuple[Path, ...]]:
    """Where the real rustc is (a shim on the path may need its home), and what a sandbox must show of it."""
    if not found("rustc"):
        return "rustc", ()
    home = Path(subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True).stdout.strip())
    return (str(home / "bin/rustc"), (home,)) if (home / "bin/rustc").is_file() else ("rustc", ())
