"""The `paceline` command, `python -m paceline`."""

import sys

from paceline.core.deferred import SHAPES, defer
from paceline.core.system import map_ahead

COMPUTES = ("chat", "demo", "generate", "serve")
"""Commands whose first token waits for torch."""
ANSWERS = ("chat", "generate")
"""Those that run no code but ours and that of plug-ins."""


def main() -> None:
    """Entry point of the `paceline` script."""
    if sys.argv[1:2] and sys.argv[1] in COMPUTES:
        map_ahead("torch", "lib/libtorch_global_deps.so", "lib/libtorch_cpu.so")
    if sys.argv[1:2] and sys.argv[1] in ANSWERS:
        defer(SHAPES)
    from paceline.cli import main as run

    run()


if __name__ == "__main__":
    main()
