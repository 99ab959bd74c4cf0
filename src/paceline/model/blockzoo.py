"""A zoo of models on disk, matrix by matrix: equal ones are one file (BlockLLM, arXiv 2404.18322, section 4).

    ROOT/blobs/DIGEST            a matrix (safetensors, one tensor named `it`), or a file that models may share
    ROOT/models/NAME/zoo.json    {tensor: digest}; also config.json, the tokenizer, small tensors in rest.safetensors

A model is served from there as `zoo:NAME`, an adapter too. Each matrix is checked against its digest when it is read.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError, InputError
from paceline.core.files import json_of
from paceline.model import parts

MANIFEST, SMALL_TENSORS, ADAPTER_FILE = "zoo.json", "rest.safetensors", "adapter_model.safetensors"
ZOO_PREFIX = "zoo:"
ZOO_LAYOUT = 1
MIN_BLOB_BYTES = 64 << 10
"""Bytes of a tensor, or of another file, from which on it has a place of its own."""
ZOO_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
BLOB_NAME = re.compile(r"[0-9a-f]{64}")
TOO_MUCH_BYTES = 64 << 20
"""Other files of a model that are larger are left out."""
LEFT_OUT = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


def zoo_root() -> Path:
    return parts.home() / "zoo"


def located(path: str | Path) -> Path:
    """The directory of `zoo:NAME`, or the path itself. InputError for a name that is not there."""
    text = str(path)
    if not text.startswith(ZOO_PREFIX):
        return Path(path).expanduser()
    name = text.removeprefix(ZOO_PREFIX)
    found = zoo_root() / "models" / name
    if not ZOO_NAME.fullmatch(name) or not (found / MANIFEST).is_file():
        known = ", ".join(it.name for it in members()) or "nothing"
        raise InputError(f"There is no model {name[:100]!r} in the zoo; it holds {known}.")
    return found


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 of type, shape and bytes."""
    found = hashlib.sha256(f"{tensor.dtype}{list(tensor.shape)}".encode())
    flat = tensor.detach().contiguous().view(-1)
    found.update(flat.view(torch.uint8).numpy().data if len(flat) else b"")
    return found.hexdigest()


@dataclass(frozen=True, slots=True)
class ZooMember:
    """A model of the zoo."""

    name: str
    path: Path
    tensors: dict[str, str]
    """{tensor: digest} of the large ones."""
    files: dict[str, str]
    """{file: digest} of those that others may share."""
    adapter: bool

    @property
    def blobs(self) -> set[str]:
        return {*self.tensors.values(), *self.files.values()}


def members() -> list[ZooMember]:
    """All models of the zoo."""
    return [member_at(path.parent) for path in sorted(zoo_root().glob(f"models/*/{MANIFEST}"))]


def member_at(path: Path) -> ZooMember:
    """CheckpointError where its manifest is none."""
    try:
        found = json_of(path / MANIFEST, "manifest")
        tensors, files = dict(found["tensors"]), dict(found["files"])
        names = [*tensors.values(), *files.values()]
        if found["layout"] != ZOO_LAYOUT or not all(BLOB_NAME.fullmatch(name) for name in names):
            raise ValueError("its layout is another")
        return ZooMember(path.name, path, tensors, files, bool(found["adapter"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path / MANIFEST} cannot be read ({error}); add the model again.") from None


def add(source: Path, name: str) -> ZooMember:
    """Put a model or an adapter into the zoo under this name. InputError or CheckpointError for what cannot be."""
    if not ZOO_NAME.fullmatch(name):
        raise InputError(f"{name[:60]!r} cannot be a name in the zoo; use letters, digits, dots, - and _.")
    target = zoo_root() / "models" / name
    if target.exists():
        raise InputError(f"The zoo has a model {name!r}; remove it first, or give another name.")
    if not source.is_dir():
        raise InputError(f"{source} is no directory; a zoo takes models in Hugging Face layout and PEFT's adapters.")
    adapter = (source / "adapter_config.json").is_file()
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    (zoo_root() / "blobs").mkdir(exist_ok=True, mode=0o700)
    made = Path(tempfile.mkdtemp(dir=target.parent, prefix="."))
    try:
        tensors = {} if adapter else _weights(source, made)
        files = dict[str, str]()
        for file in sorted(source.iterdir()):
            kept = file.name == ADAPTER_FILE if adapter else False
            if not file.is_file() or not (kept or _belongs(file)):
                continue
            if file.stat().st_size >= MIN_BLOB_BYTES:
                files[file.name] = _linked(file, made / file.name)
            else:
                shutil.copyfile(file, made / file.name)
        if adapter and not (made / ADAPTER_FILE).exists():
            raise CheckpointError(f"{source} has no {ADAPTER_FILE}; save the adapter as safetensors.")
        manifest = {"layout": ZOO_LAYOUT, "adapter": adapter, "tensors": tensors, "files": files}
        (made / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        os.replace(made, target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return member_at(target)


def _belongs(file: Path) -> bool:
    """Is this file a part of a model other than its weights?"""
    name = file.name
    weights = file.suffix in LEFT_OUT or name.endswith(".index.json") or name.startswith(".") or name == MANIFEST
    return not weights and file.stat().st_size <= TOO_MUCH_BYTES


def _weights(source: Path, made: Path) -> dict[str, str]:
    """Large tensors go to blobs, small ones to one file; {large tensor: digest}."""
    from safetensors.torch import save_file

    from paceline.model.checkpoint import open_tensors, read_config

    read_config(source)  # what cannot be served is not kept
    opened: Any = open_tensors(source)
    found, small = dict[str, str](), dict[str, Tensor]()
    for stored in sorted(opened.place):
        tensor = opened.stored(stored, None)
        if tensor.nbytes < MIN_BLOB_BYTES:
            small[stored] = tensor.clone()
        else:
            found[stored] = _kept(tensor)
        opened.let_go()
    save_file(small, made / SMALL_TENSORS, {"format": "pt"})
    return found


def _kept(tensor: Tensor) -> str:
    """The blob of a tensor, written where it is not there yet."""
    from safetensors.torch import save_file

    name = tensor_digest(tensor)
    target = zoo_root() / "blobs" / name
    if not target.exists():
        with _Whole(target) as part:
            save_file({"it": tensor.contiguous()}, part)
    return name


def _linked(file: Path, at: Path) -> str:
    """A file's blob, which `at` is another name of."""
    with file.open("rb") as opened:
        name = hashlib.file_digest(opened, "sha256").hexdigest()
    target = zoo_root() / "blobs" / name
    if not target.exists():
        with _Whole(target) as part:
            shutil.copyfile(file, part)
    try:
        os.link(target, at)
    except OSError:
        shutil.copyfile(file, at)
    return name


class _Whole:
    """A file that is there whole or not at all."""

    def __init__(self, target: Path) -> None:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".")
        os.close(handle)
        self.target, self.part = target, Path(name)

    def __enter__(self) -> Path:
        return self.part

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            os.replace(self.part, self.target)
        self.part.unlink(missing_ok=True)


def remove(name: str) -> int:
    """Take a model out; bytes that its blobs alone took. InputError for one that is not there."""
    path = located(f"{ZOO_PREFIX}{name}")
    before = disk_bytes()
    shutil.rmtree(path)
    named = {blob for it in members() for blob in it.blobs}
    for blob in (zoo_root() / "blobs").iterdir():
        if blob.name not in named:
            with suppress(OSError):
                blob.unlink()
    return before - disk_bytes()


def files_of(root: Path) -> Iterator[os.stat_result]:
    """Each file below a directory once, however many names it has."""
    seen = set[tuple[int, int]]()
    for file in root.rglob("*"):
        state = file.lstat()
        if file.is_file() and (state.st_dev, state.st_ino) not in seen:
            seen.add((state.st_dev, state.st_ino))
            yield state


def disk_bytes() -> int:
    """Bytes of the zoo on disk."""
    return sum(state.st_blocks * 512 for state in files_of(zoo_root()))


def whole_bytes(it: ZooMember) -> int:
    """What a model would take alone."""
    blobs = zoo_root() / "blobs"
    own = sum(state.st_size for state in files_of(it.path) if state.st_nlink == 1)
    return own + sum((blobs / name).stat().st_size for name in [*it.tensors.values(), *it.files.values()])


def digests_of(path: Path) -> dict[str, tuple[str, int]]:
    """{tensor: (digest, numbers)} of a checkpoint, large tensors alone."""
    from paceline.model.checkpoint import open_tensors

    opened: Any = open_tensors(path)
    known = member_at(path).tensors if (path / MANIFEST).is_file() else {}
    found = dict[str, tuple[str, int]]()
    for name in opened.place:
        count = torch.Size(opened.shape(name)).numel()
        if name in known:
            found[name] = known[name], count
        elif (tensor := opened.stored(name, None)).nbytes >= MIN_BLOB_BYTES:
            found[name] = tensor_digest(tensor), count
            opened.let_go()
    return found


def delta_bytes(base: Path, other: Path, itemsize: int) -> int:
    """Bytes that a fine-tune takes in addition to its base, `itemsize` for each number, with what packing adds."""
    if ".gguf" in (base.suffix, other.suffix):
        return other.stat().st_size if other.is_file() else 0  # it is not looked into: all may differ
    mine, its = digests_of(base), digests_of(other)
    more = sum(count for name, (digest, count) in its.items() if mine.get(name, ("", 0))[0] != digest)
    return more * itemsize * 33 // 32
