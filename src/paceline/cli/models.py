"""`paceline pull`, `list`, `rm` and `pack`: the models on this machine."""

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import typer

from paceline.cli.options import EngineArgs
from paceline.core.errors import CheckpointError
from paceline.model.catalogue import CATALOGUE


def pull(name: str, *, draft: bool, token: str | None) -> None:
    """Fetch a model, with its draft; says where each lies, on standard output."""
    from paceline.model.checkpoint import resolve

    names = [name]
    if draft and name in CATALOGUE and (own := CATALOGUE[name].draft):
        names.append(own)
    for each in names:
        typer.echo(str(resolve(each, None, token)))


def listed() -> None:
    """What can be pulled by a name, and what is here."""
    from rich.console import Console
    from rich.table import Table

    from paceline.model.pull import have

    here = {repo.repo_id: repo.size_on_disk for repo in hub_models()}
    table = Table(box=None, title="By name (paceline pull NAME)", title_justify="left")
    for column in ("name", "model", "draft", "licence", "download", "memory", "for", "here"):
        table.add_column(column)
    for name, entry in CATALOGUE.items():
        present = have(name) is not None or entry.model in here
        table.add_row(
            name, entry.model, entry.draft or "", entry.licence, gigabytes(entry.bytes), gigabytes(entry.memory),
            entry.about, "yes" if present else "",
        )  # fmt: skip
    console = Console()
    console.print(table)
    found = Table(box=None, title="\nOn this machine", title_justify="left")
    for column in ("what", "size", "where"):
        found.add_column(column)
    for what, size, where in present_files():
        found.add_row(what, gigabytes(size), where)
    if found.row_count:
        console.print(found)


def present_files() -> Iterator[tuple[str, int, str]]:
    """Name, bytes and place of pulled files, of models from the hub, and of packed weights."""
    from paceline.model.pull import models
    from paceline.model.store import kept, parts_of

    for file in sorted(models().glob("*.gguf")):
        yield file.stem, file.stat().st_size, str(file)
    for repo in hub_models():
        yield repo.repo_id, repo.size_on_disk, str(repo.repo_path)
    for file in kept():
        whole = file.stat().st_size + sum(parts_of(file).values())
        yield f"{file.stem.rpartition('-')[0]} (packed)", whole, str(file)


def hub_models() -> list[Any]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return sorted((repo for repo in scan_cache_dir().repos if repo.repo_type == "model"), key=lambda it: it.repo_id)
    except CacheNotFound:
        return []


def remove(name: str) -> None:
    """A pulled model and its packed weights, or packed weights alone ("packed": all of them)."""
    from huggingface_hub import scan_cache_dir

    from paceline.model import store
    from paceline.model.pull import have
    from paceline.model.store import kept

    wanted = {name, CATALOGUE[name].model} if name in CATALOGUE else {name}
    files = [file for file in kept() if name == "packed" or packed_from(file, name)]
    own = have(name) if "/" not in name else None
    files += [own] if own is not None else []
    repos = [repo for repo in hub_models() if repo.repo_id in wanted]
    if not files and not repos:
        raise CheckpointError(f"there is no model {name} to remove; paceline list shows what is here.")
    freed = sum(repo.size_on_disk for repo in repos)
    packed = {*kept()}
    for file in files:
        if file in packed:
            freed += store.remove(file)
            continue
        freed += file.stat().st_size
        file.unlink()
    revisions = [revision.commit_hash for repo in repos for revision in repo.revisions]
    if revisions:
        scan_cache_dir().delete_revisions(*revisions).execute()
    typer.echo(f"Removed {name}: {gigabytes(freed)}.")


def packed_from(file: Path, name: str) -> bool:
    """Whether these are packed weights of the file of that name in the catalogue."""
    return file.name.startswith(f"{name}-native-")


def pack(engine: EngineArgs) -> None:
    """Pack model and draft now, so that the next start only reads them."""
    from paceline.engine.gpu import check_device
    from paceline.engine.pair import paths
    from paceline.model import store
    from paceline.model.checkpoint import open_tensors, read_config, resolve
    from paceline.model.load import pack_to, packing_of

    check_device(engine.device, engine.dtype)
    model, _ = paths(engine.options())
    path = resolve(model, engine.revision, engine.token)
    spec = read_config(path, engine.max_model_len)
    packing = packing_of(path, spec, engine.dtype, engine.quantize, engine.device)
    if not packing.native:
        raise CheckpointError(
            f"{packing.describe()} is not kept on disk: only the native decoder's weights are; use dtype bfloat16 or "
            "quantize on a CPU that has it."
        )
    tensors = open_tensors(path)
    where = store.place(tensors.paths(), spec, packing, None)
    started = perf_counter()
    if store.opened(where) is None:
        pack_to(path, spec, packing, where)
    size = where.stat().st_size + sum(store.parts_of(where).values())
    typer.echo(f"{where}: {gigabytes(size)}, {perf_counter() - started:.1f} s, {peak()}")


def peak() -> str:
    """Most memory that this process had."""
    import resource

    return f"peak memory {gigabytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)}"


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 10**8 else f"{size / 1e6:.1f} MB"
