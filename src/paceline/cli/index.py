"""`paceline index`: a folder of texts to an index that answers can retrieve from."""

from pathlib import Path

import typer

from paceline.core.errors import InputError


def index(folder: Path, out: Path, encoder: Path | None, words: int, narrow: bool, static: bool,
          model: str | None) -> None:  # fmt: skip
    """Build it, with a progress bar on a terminal; says on standard output what was built."""
    if model is not None:
        given = {"--encoder": encoder is not None, "--narrow": narrow, "--static": static}
        if extra := [flag for flag, is_given in given.items() if is_given]:
            raise InputError(f"{extra[0]} is for an index, and --model makes a datastore; leave one of them out.")
        datastore(folder, out, model, words)
        return
    from rich.console import Console
    from rich.progress import Progress

    from paceline.retrieve import build

    screen = Console(stderr=True)
    with Progress(console=screen, disable=not screen.is_terminal, transient=True) as bar:
        task = bar.add_task("vectors", total=None)
        made = build(folder, out, encoder, words, lambda done, of: bar.update(task, completed=done, total=of),
                     narrow=narrow, static=static)  # fmt: skip
    typer.echo(f"{out}: {len(made.passages)} passages of {words} words; retrievers: {', '.join(made.kinds)}.")


def datastore(folder: Path, out: Path, model: str, words: int) -> None:
    """Record what the model met in the passages of a folder, for neighbours of each token (KNN-LM)."""
    from paceline.engine.llm import LLM
    from paceline.retrieve import Datastore, passages

    if out.suffix != ".npz" or not out.resolve().parent.is_dir():
        raise InputError(f"{out} cannot be a datastore; give a file NAME.npz in a folder that exists.")
    texts = [passage.text for passage in passages.read(folder, words)]
    with LLM(model) as llm:
        made = Datastore.build(llm, texts)
    made.save(out)
    typer.echo(f"{out}: {made.size} tokens of {len(texts)} passages; serve it with --datastore.")
