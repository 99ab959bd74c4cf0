"""`paceline zoo`: fine-tunes on this machine, of which equal matrices are kept once."""

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.models import gigabytes
from paceline.cli.options import command, option
from paceline.core.errors import CheckpointError, InputError

app = typer.Typer(name="zoo", help="Fine-tunes that share on disk what is equal in them.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name in the zoo.")]


@app.command(
    name="add", epilog="Example: paceline zoo add ./my-finetune; paceline serve BASE --zoo mine=zoo:my-finetune"
)
@command
def zoo_add(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Directory, hub id, or an adapter in PEFT's layout.")],
    *,
    name: Annotated[str | None, option("Its name in the zoo. Default: that of its directory.", "Zoo")] = None,
) -> None:
    """Put a model into the zoo: matrices that it has from others there take no room.

    It is then called zoo:NAME wherever a model's directory can be given.
    """
    from paceline.model import blockzoo
    from paceline.model.checkpoint import resolve

    adapter = (Path(model).expanduser() / "adapter_config.json").is_file()
    path = Path(model).expanduser() if adapter else resolve(model)
    if path.is_file():
        raise InputError(f"{path} is one file; a zoo takes models in Hugging Face layout and PEFT's adapters.")
    before = blockzoo.disk_bytes()
    made = blockzoo.add(path, name or path.resolve().name)
    after = blockzoo.disk_bytes()
    typer.echo(
        f"zoo:{made.name}: {gigabytes(blockzoo.whole_bytes(made))}, of which {gigabytes(after - before)} are new."
    )


@app.command(name="list", epilog="Example: paceline zoo list")
@command
def zoo_list() -> None:
    """The models of the zoo: what each takes alone, and what no other has."""
    from paceline.model import blockzoo

    found = blockzoo.members()
    width = max((len(it.name) for it in found), default=4)
    typer.echo(f"{'name':{width}}  {'alone':>9}  {'its own':>9}  kind")
    blobs = blockzoo.zoo_root() / "blobs"
    for it in found:
        others = {blob for other in found if other is not it for blob in other.blobs}
        own = sum(size(blobs / blob) for blob in it.blobs - others)
        kind = "adapter" if it.adapter else "model"
        typer.echo(f"{it.name:{width}}  {gigabytes(blockzoo.whole_bytes(it)):>9}  {gigabytes(own):>9}  {kind}")


@app.command(name="du", epilog="Example: paceline zoo du")
@command
def zoo_du() -> None:
    """Bytes on disk, next to what the models would take one by one."""
    from paceline.model import blockzoo

    found = blockzoo.members()
    alone, here = sum(map(blockzoo.whole_bytes, found)), blockzoo.disk_bytes()
    share = f", {alone / here:.2f} times less than {gigabytes(alone)} one by one" if here else ""
    typer.echo(f"{blockzoo.zoo_root()}: {len(found)} models, {gigabytes(here)}{share}")


@app.command(name="rm", epilog="Example: paceline zoo rm my-finetune")
@command
def zoo_rm(name: Name) -> None:
    """Take a model out of the zoo, with what no other has."""
    from paceline.model import blockzoo

    typer.echo(f"Removed {name}: {gigabytes(blockzoo.remove(name))}.")


@app.command(
    name="compare", epilog="Example: paceline zoo compare BASE zoo:my-finetune --text notes.txt --out mine.json"
)
@command
def zoo_compare(
    base: Annotated[str, typer.Argument(metavar="BASE", help="The model that both come from.")],
    tuned: Annotated[str, typer.Argument(metavar="TUNED", help="A fine-tune of it.")],
    *,
    text: Annotated[Path, option("A UTF-8 text to read with both.", "Zoo")],
    out: Annotated[Path | None, option("Keep the report here, for serve --substitute.", "Zoo")] = None,
    bound: Annotated[
        float, option("Largest mean divergence of next tokens, in bits, 0 to 1.", "Zoo", show_default=True)
    ] = 0.01,
    least_cosine: Annotated[
        float, option("Least cosine of a layer's parameters, -1 to 1.", "Zoo", show_default=True)
    ] = 0.98,
    tokens: Annotated[int, option("Maximum tokens of the text.", "Zoo", show_default=True)] = 1024,
    dtype: Annotated[str, option("Data type, as for serve.", "Zoo", show_default=True)] = "bfloat16",
) -> None:
    """Measure which layers of a fine-tune its base's could take the place of.

    By the parameters (least cosine, relative length of the difference), and by the next tokens of a text with the
    base's layer in place of the fine-tune's.
    """
    if not 0 <= bound <= 1 or not -1 <= least_cosine <= 1:
        raise InputError("--bound must be 0 to 1 bits, and --least-cosine -1 to 1.")
    if tokens < 16:
        raise InputError(f"--tokens is {tokens}, but a comparison needs at least 16.")
    if out is not None and not out.absolute().parent.is_dir():
        raise InputError(f"There is no directory {out.absolute().parent} for {out.name}.")
    from paceline.cli.experts import read
    from paceline.engine.text import Text
    from paceline.model.checkpoint import open_tensors, read_config, resolve
    from paceline.model.equivalence import compare
    from paceline.model.families import FAMILIES
    from paceline.model.load import load_model

    paths = [resolve(base), resolve(tuned)]
    words, spec = read(text), read_config(paths[0])
    ids = Text(paths[0]).encode(words)[:tokens]
    if len(ids) < 16:
        raise InputError(f"{text} has {len(ids)} tokens, but a comparison needs at least 16.")
    decoders = [load_model(path, dtype=dtype) for path in paths]
    if any(path.suffix == ".gguf" for path in paths):
        raise InputError("GGUF files have no parameters to compare; give models in Hugging Face layout.")
    opened: list[Any] = [open_tensors(path) for path in paths]
    mine, its = ({name: it.stored(name, None) for name in it.place} for it in opened)
    names = [FAMILIES[spec.family].names.layer.format(i) for i in range(len(spec.layers))]
    try:
        report = compare(decoders[0], decoders[1], (mine, its), names, ids, bound, least_cosine)
    except IndexError as error:
        raise CheckpointError(f"The two models cannot be compared: {error}.") from None
    typer.echo("layer  cosine     delta    bits      agree")
    for it in report.layers:
        said = "equal" if it.same else f"{it.cosine:.6f}  {it.delta:7.4f}  {it.divergence:.6f}  {it.agree:5.1%}"
        typer.echo(f"{it.layer:5}  {said}")
    typer.echo(
        f"{len(report.substitutes)} layers may be the base's: {report.divergence:.6f} bits, {report.agree:.1%} of "
        f"{report.tokens:,} tokens keep their likeliest next one."
    )
    if out is not None:
        report.save(out)


def size(file: Path) -> int:
    return file.stat().st_size
