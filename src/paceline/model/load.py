"""From a checkpoint to a decoder."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from paceline.attend import quickest
from paceline.attend.device import Device, tensors_on
from paceline.attend.fused import Fused
from paceline.attend.reference import Reference
from paceline.core.errors import CapacityError, CheckpointError, RefusalError
from paceline.model import store
from paceline.model.checkpoint import DTYPES, open_tensors, read_config, resolve
from paceline.model.decoder import Decoder, Weights, kv_bytes
from paceline.model.families import FAMILIES
from paceline.model.footprint import Footprint, footprint
from paceline.model.linear import Packing, alone, as_stored, available, choose, plain, quantised, unfused
from paceline.model.loader import Loader
from paceline.model.malloc import exact
from paceline.model.native import NativeDecoder
from paceline.model.opened import let_go
from paceline.model.parts import Damaged
from paceline.model.spec import ModelSpec
from paceline.model.stored import stored_bits

log = logging.getLogger("paceline")


def load_model(
    model: str | Path,
    *,
    dtype: str = "bfloat16",
    device: str = "cpu",
    revision: str | None = None,
    token: str | None = None,
    max_len: int | None = None,
    quantize: str | None = None,
    kv_dtype: str | None = None,
    fast: bool = True,
    vocabulary: tuple[int, int] | None = None,
    cache: bool = True,
    late: bool = False,
) -> Decoder:
    """Load a directory, a GGUF file or a hub id for serving texts of up to `max_len` tokens (default: the config's).

    dtype: of weights and K/V cache: float32, bfloat16, float16 (float64 for tests). quantize:
    "int8" and "int4" round the weights of all linear layers as they are loaded; of a checkpoint that is quantised
    already each keeps its own bits unless that is "none", which widens them to dtype. kv_dtype: "int8" keeps keys and
    values in 8 bits. With `fast` false every part is its slow twin in plain PyTorch. vocabulary: of a draft, how many
    logits its target has and how many ids their tokenizer knows; where the draft is padded differently, it gets as
    many, and what lies beyond the tokenizer is never drawn. cache: packed weights of a large model are kept on disk for
    the next time (store.py). late: where they are kept, they move into memory behind the first pass (settle.py). Raises
    CheckpointError for whatever cannot be served, RefusalError for what this machine
    cannot do.
    """
    form(dtype, quantize, device, fast, kv_dtype)  # what cannot be is refused before anything is downloaded
    path, target = resolve(model, revision, token), tensors_on(device)
    spec = read_config(path, max_len)
    packing = packing_of(path, spec, dtype, quantize, device, fast, kv_dtype)
    with exact():
        weights, spec, mapped, name = read(path, spec, packing, target, vocabulary, cache, late)
    let_go(path)
    if packing.native:
        return NativeDecoder(spec, weights, packing, late=mapped, identity=name)
    make = Fused if spec.sinks or not spec.uniform else quickest(device, packing.dtype)
    return equipped(Decoder(spec, weights, packing, make if fast else Reference, identity=name))


DecoderT = TypeVar("DecoderT", bound=Decoder)


def equipped(decoder: DecoderT) -> DecoderT:
    """The decoder, which computes with a GPU's kernels where its weights are packed for them."""
    if decoder.packing.kernels:
        from paceline.model.gpu.furnish import furnish

        furnish(decoder)
    return decoder


def load_whole(
    path: Path, kind: type[DecoderT], *, dtype: str, device: str, max_len: int | None, quantize: str | None
) -> DecoderT:
    """Load a checkpoint into matrices of which parts can be taken. Raises as `load_model`."""
    spec, target = read_config(path, max_len), tensors_on(device)
    if quantize in (None, "none"):
        packing = next(it for it in available(DTYPES[dtype], device) if it.kernels or it.name == "plain")
    else:
        packing = quantised(str(quantize), DTYPES[dtype], device)
    with exact():
        weights, fitted, name = fresh(path, spec, packing, target, None, store.Straight())
    let_go(path)
    make = Fused if spec.sinks or not spec.uniform else quickest(device, packing.dtype)
    return equipped(kind(fitted, weights, packing, make, identity=name))


def load_share(
    path: Path, dtype: str, max_len: int | None, held: Callable[[int], list[int]], join: Callable[[], str]
) -> Decoder:
    """Load a checkpoint with those experts of each layer that `held` names; `join` waits for those who hold the others
    and gives the digest of their weights. Raises as `load_model`."""
    spec = read_config(path, max_len)
    packing = unfused(DTYPES[dtype])
    with exact():
        weights, fitted, name = fresh(path, spec, packing, torch.device("cpu"), None, store.Straight(), held, join)
    let_go(path)
    make = Fused if spec.sinks else quickest("cpu", packing.dtype)
    return Decoder(fitted, weights, packing, make, identity=name)


def read(
    path: Path,
    spec: ModelSpec,
    packing: Packing,
    device: torch.device,
    vocabulary: tuple[int, int] | None,
    cache: bool,
    late: bool = False,
) -> tuple[Weights, ModelSpec, bool, str]:
    """The weights as they lie in memory, from the cache where they are in it, the spec that fits them, whether they
    are late, and the model's identity."""
    tensors = open_tensors(path)
    whole = footprint(spec, packing, packing.dtype.itemsize, 2, 1).weights
    where = None
    if cache and packing.native and whole >= store.MIN_STORED_BYTES:
        where = store.place(tensors.paths(), spec, packing, vocabulary)
        if (kept := store.opened(where, late)) is not None:
            try:
                loader = Loader(
                    spec, tensors.renamed or FAMILIES[spec.family].names, tensors, packing, device, vocabulary, kept
                )
                return loader.weights(), loader.fitted, late, loader.identity(kept.digest)
            except Damaged as error:
                store.discard(where, error)
    with writing(where, whole) as keep:
        weights, fitted, name = fresh(path, spec, packing, device, vocabulary, keep)
        return weights, fitted, False, name


def fresh(
    path: Path,
    spec: ModelSpec,
    packing: Packing,
    device: torch.device,
    vocabulary: tuple[int, int] | None,
    keep: store.Straight,
    held: Callable[[int], list[int]] | None = None,
    join: Callable[[], str] | None = None,
) -> tuple[Weights, ModelSpec, str]:
    """The weights from the checkpoint, which must hold nothing else, the spec that fits them, and the model's
    identity."""
    tensors = open_tensors(path)
    if tensors.word:
        log.info("%s: %s", path, tensors.word)
    names = tensors.renamed or FAMILIES[spec.family].names
    loader = Loader(spec, names, tensors, packing, device, vocabulary, keep, held)
    weights = loader.weights()
    left = (name for name in tensors.leftover() if not tensors.says_nothing(name))
    if unknown := sorted(
        name for name in left if not (loader.elsewhere(name) or loader.unread(name) or loader.turns_so(name))
    ):
        if unknown[0].endswith("rotary_emb.inv_freq"):
            raise CheckpointError(
                f"{path} holds {unknown[0]}, frequencies of another rotation than config.json describes, and programs "
                "differ on which they use; correct rope_theta or the rope scaling, or take the tensor out."
            )
        raise CheckpointError(
            f"{path} holds {len(unknown)} tensors that a {spec.family} model has no place for, such as {unknown[0]}; "
            "the weights and the config are of different models."
        )
    keep.digest = loader.fingerprint.digest() + ("" if join is None else join())
    keep.sections = weights.sections
    return weights, loader.fitted, loader.identity(keep.digest)


def pack_to(path: Path, spec: ModelSpec, packing: Packing, where: Path) -> None:
    """Pack a checkpoint into a file. Raises CapacityError or OSError where it cannot be written."""
    size = footprint(spec, packing, packing.dtype.itemsize, 2, 1).weights
    with exact(), store.StoreWriter(where, size, strict=True) as keep:
        fresh(path, spec, packing, torch.device("cpu"), None, keep)


@contextmanager
def writing(where: Path | None, size: int) -> Iterator[store.Straight]:
    """Store that keeps the parts of a model at `where`, or nothing if it cannot; a line in the log then says why."""
    try:
        keep = None if where is None else store.StoreWriter(where, size)
    except (OSError, CapacityError) as error:
        log.warning("Packed weights are not kept: %s", error)
        keep = None
    if keep is None:
        yield store.Straight()
        return
    with keep:
        yield keep


def packing_of(
    path: Path,
    spec: ModelSpec,
    dtype: str,
    quantize: str | None,
    device: str,
    fast: bool = True,
    kv_dtype: str | None = None,
) -> Packing:
    """How weights, keys and values of this checkpoint will lie in memory: what is quantised already keeps its own bits
    where nothing else is asked for and the native decoder can run."""
    native = fast and quantize is None and dtype == "bfloat16"
    bits = stored_bits(open_tensors(path), spec) if native else None
    return suited(form(dtype, quantize, device, fast, kv_dtype, bits), spec, device)


def form(
    dtype: str,
    quantize: str | None,
    device: str,
    fast: bool = True,
    kv_dtype: str | None = None,
    bits: float | None = None,
) -> Packing:
    """How weights, keys and values lie in memory; `bits`: those of a weight in a checkpoint that keeps its own."""
    if dtype not in DTYPES:
        raise CheckpointError(f"dtype {dtype!r} is not known; use one of {', '.join(DTYPES)}.")
    own = None if bits is None else as_stored(bits, DTYPES[dtype], device)
    if own is not None:
        packing = own
    elif quantize not in (None, "none"):
        packing = quantised(quantize, DTYPES[dtype], device)
    else:
        packing = choose(DTYPES[dtype], device) if fast else plain(DTYPES[dtype], device)
    if kv_dtype in (None, "auto", dtype):
        return packing
    if kv_dtype != "int8":
        raise RefusalError(f"kv_dtype is {kv_dtype!r}, but keys and values lie as dtype, {dtype}, or in int8.")
    if not packing.native:
        raise RefusalError(
            "kv_dtype int8 needs the native decoder: dtype bfloat16, Linux, a CPU with AVX2 and FMA (or NEON with its "
            "dot product) and a C++ compiler; leave kv_dtype out."
        )
    return replace(packing, kv="int8")


def suited(packing: Packing, spec: ModelSpec, device: Device) -> Packing:
    """`packing`, or the next best for layers that the native decoder does not compute: in 8 bits and less each product
    is still the library's, and PyTorch does what lies between them."""
    if packing.kv == "int8" and not spec.attentions:
        raise RefusalError(f"kv_dtype int8 is of keys and values, of which {spec.family} keeps none; leave it out.")
    if spec.common or not packing.native:
        return packing
    if packing.kv == "int8":
        raise RefusalError(
            f"kv_dtype int8 is the native decoder's, which does not compute the layers of {spec.family} yet; leave "
            "kv_dtype out."
        )
    if packing.name != "native":
        return alone(packing)
    return next(other for other in available(packing.dtype, device) if not other.native)


def measure(path: Path, spec: ModelSpec, packing: Packing) -> Footprint:
    """What a checkpoint's model will take of memory, from config and headers alone."""
    stored = open_tensors(path).widest()
    return footprint(spec, packing, packing.dtype.itemsize, stored, torch.get_num_threads())


@dataclass(frozen=True, slots=True)
class Facts:
    """What can be said of a checkpoint without reading its weights. `path` is where it lies."""

    path: Path
    spec: ModelSpec
    tensors: int
    bytes: int
    kv_bytes_per_token: int


def inspect(
    model: str | Path,
    *,
    dtype: str = "bfloat16",
    kv_dtype: str | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> Facts:
    """Facts of a checkpoint from its config and headers; `dtype`, or `kv_dtype`, is that of the K/V cache."""
    path = resolve(model, revision, token)
    spec, tensors = read_config(path), open_tensors(path)
    kv = kv_bytes(spec, replace(plain(DTYPES[dtype], "cpu"), kv="int8" if kv_dtype == "int8" else None))
    return Facts(path, spec, len(tensors.place), tensors.bytes(), kv)
