"""`paceline index`: a folder of texts to an index that answers can retrieve from."""

from pathlib import Path

import typer


def index(folder: Path, out: Path, encoder: Path | None, words: int) -> None:
    """Build it, with a progress bar on a terminal; says on standard output what was built."""
    from rich.console import Console
    from rich.progress import Progress

    from paceline.retrieve import build

    screen = Console(stderr=True)
    with Progress(console=screen, disable=not screen.is_terminal, transient=True) as bar:
        task = bar.add_task("vectors", total=None)
        made = build(folder, out, encoder, words, lambda done, of: bar.update(task, completed=done, total=of))
    typer.echo(f"{out}: {len(made.passages)} passages of {words} words; retrievers: {', '.join(made.kinds)}.")
