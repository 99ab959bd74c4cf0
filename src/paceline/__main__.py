"""The `paceline` command, `python -m paceline`."""

import sys

from paceline.core.system import map_ahead

COMPUTES = ("chat", "demo", "generate", "serve")
"""Commands whose first token waits for torch."""


def main() -> None:
    """Entry point of the `paceline` script."""
    if sys.argv[1:2] and sys.argv[1] in COMPUTES:
        map_ahead("torch", "lib/libtorch_global_deps.so", "lib/libtorch_cpu.so")
    from paceline.cli import main as run

    run()


if __name__ == "__main__":
    main()
