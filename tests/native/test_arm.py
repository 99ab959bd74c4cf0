"""Native sources on ARM: cross-compiled, and run by qemu, on passes that were written to files here."""

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.model import packed
from paceline.model.rounding import pack_bytes, pack_int4
from paceline.native.build import NEON, Unit, library
from paceline.native.structs import CModel
from tests.model.units import compiled
from tests.oracle.cases import CASES, text, write
from tests.oracle.rows import Chunk, lay_out

CROSS, QEMU = "aarch64-linux-gnu-g++", "qemu-aarch64"
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not shutil.which(CROSS) or not shutil.which(QEMU), reason=f"there is no {CROSS} or no {QEMU}"),
    pytest.mark.skipif(library() is None, reason="this machine has no native library to compare with"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("arm") / "replay"
    source = Path(__file__).with_name("replay.cpp")
    command = [CROSS, "-O2", "-std=c++17", "-static", "-fopenmp", *NEON, str(source), "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    return made


def replay(
    program: Path, structs: list[tuple[int, int]], regions: list[tuple[int, int]], out: Tensor, linear: int
) -> Tensor:
    """What ARM writes to `out`. structs, regions: addresses and sizes, `structs` with pointers in them."""
    every = [*structs, *regions, (out.data_ptr(), out.nbytes)]
    given, made = program.with_suffix(".in"), program.with_suffix(".out")
    with given.open("wb") as file:
        file.write(struct.pack("<3q", len(every), len(structs), linear))
        for address, size in every:
            file.write(struct.pack("<2q", address, size) + ctypes.string_at(address, size))
    subprocess.run([QEMU, str(program), str(given), str(made)], check=True, timeout=900)
    return torch.frombuffer(bytearray(made.read_bytes()), dtype=out.dtype).view(out.shape)


def tensors(part: Any) -> Iterator[tuple[int, int]]:
    """Where the tensors in an object of the decoder lie."""
    if isinstance(part, Tensor):
        yield part.data_ptr(), part.nbytes
    elif isinstance(part, list):
        for each in part:
            yield from tensors(each)
    elif hasattr(part, "__slots__") or hasattr(part, "__dict__"):
        for name in (*getattr(part, "__slots__", ()), *getattr(part, "__dict__", ())):
            if name not in ("spec", "c"):
                yield from tensors(getattr(part, name, None))


@pytest.mark.parametrize("pack", [packed.pack_bfloat16, packed.pack_int8, pack_int4, pack_bytes])
def test_layers_have_the_bits_of_avx2(monkeypatch: pytest.MonkeyPatch, program: Path, pack: Any) -> None:
    stream = torch.Generator().manual_seed(6)
    it = pack(torch.randn(70, 130, generator=stream), torch.randn(70, generator=stream))
    x = torch.randn(11, 130, generator=stream)
    monkeypatch.setattr(packed, "unit", lambda: Unit.SHORT)
    monkeypatch.setattr(packed, "library", lambda: compiled(Unit.SHORT))
    expected = it(x)
    kind = 2 if it.c.form else int(it.scale is not None)
    model = CModel(int8=kind, threads=1, unit=Unit.SHORT, head=it.c)
    places = [(ctypes.addressof(model), ctypes.sizeof(model)), (x.data_ptr(), x.nbytes)]
    assert torch.equal(replay(program, places, list(tensors(it)), torch.zeros(11, 70), 11), expected)


@pytest.mark.parametrize(("quantize", "kv"), [(None, None), ("int8", None), ("int4", "int8")])
def test_a_pass(program: Path, tmp_path: Path, quantize: str | None, kv: str | None) -> None:
    """A prompt and a tree below it, close to AVX2's: only reciprocals and powers of two are computed in other ways."""
    from tests.model.test_native import native

    decoder = native(write(tmp_path, CASES["llama-biases"]), Unit.SHORT, quantize, kv)
    rows = lay_out([Chunk(range(16), 0, text(5, 90), text(6, 20), [n - 1 - n % 3 for n in range(20)])], 16)
    decoder.allocate(16, 16)
    expected = decoder.forward(rows).logits
    decoder.allocate(16, 16)
    call, _, logits, (segments, *_held) = decoder.call(rows, {})
    decoder.model.threads = 1
    structs = [(ctypes.addressof(it), ctypes.sizeof(it)) for it in (decoder.model, call, decoder.layers)]
    regions = list(tensors([decoder.weights, decoder.rotaries, decoder.keys, decoder.values]))
    regions += tensors(decoder.scales)
    for buffer in rows.numbers, segments:
        address, count = buffer.buffer_info()
        regions.append((address, count * buffer.itemsize))
    ours = replay(program, structs, regions, logits, 0)
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3 if quantize is None else 0.1)
