"""A file that is cut off, changed or of another kind meets one sentence, before anything is made of it."""

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader

from paceline.core.errors import CheckpointError
from paceline.engine.text import Text
from paceline.model.gguf.config import arch_of
from paceline.model.gguf.header import Header, read_header
from paceline.model.load import inspect, load_model
from tests.model.gguf.files import write_gguf
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("damage"), "llama", layers=1)


@pytest.fixture(scope="module")
def sound(checkpoint: Path) -> Path:
    return write_gguf(checkpoint / "model.gguf", checkpoint, Kind.Q8_0)


def everything(path: Path) -> None:
    Text(path)
    load_model(path, dtype="float32", fast=False)


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        everything(path)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message and str(path.parent) in message
    return message


def fields(path: Path) -> list[tuple[str, int, str]]:
    """Name, place and type of every number in the header: counts, lengths, types, dimensions, offsets and values."""
    found: list[tuple[str, int, str]] = [("version", 4, "I"), ("tensors", 8, "Q"), ("keys", 16, "Q")]
    reader = GGUFReader(path)
    base = reader.data.ctypes.data
    entries = [*reader.fields.values(), *(tensor.field for tensor in reader.tensors)]
    for entry in entries:
        if entry.name.startswith("GGUF."):
            continue
        for number, part in enumerate(entry.parts[:12]):
            code = {"uint8": "B", "int8": "b", "uint32": "I", "int32": "i", "uint64": "Q", "float32": "f", "bool": "B"}
            if part.dtype.name in code and len(part):
                found.append((f"{entry.name} {number}", part.ctypes.data - base, code[part.dtype.name]))
    return found


EXTREMES: dict[str, list[Any]] = {
    "B": [0, 1, 128, 255],
    "b": [-128, -1, 127],
    "I": [0, 1, 7, 2**31, 2**32 - 1],
    "i": [-(2**31), -1, 2**31 - 1],
    "Q": [0, 1, 3, 2**31, 2**63, 2**64 - 1],
    "f": [0.0, -1.0, 1e38, float("inf"), float("nan")],
}


def test_every_field_of_the_header(sound: Path, tmp_path: Path) -> None:
    """Whatever stands in a field, the file loads or is refused by one sentence; most of it is refused."""
    raw, refused, tried = sound.read_bytes(), 0, 0
    for name, at, code in fields(sound):
        for value in EXTREMES[code]:
            damaged = bytearray(raw)
            struct.pack_into("<" + code, damaged, at, value)
            if bytes(damaged) == raw:
                continue
            path, tried = tmp_path / f"{tried}.gguf", tried + 1
            path.write_bytes(damaged)
            try:
                everything(path)
            except CheckpointError as error:
                refused += 1
                assert "\n" not in str(error) and str(error).endswith("."), (name, value, str(error))
            path.unlink()
    assert tried > 500 and refused > tried / 2


@pytest.mark.parametrize("keep", [0, 3, 4, 8, 20, 24, 30, 1000, -1, -5000])
def test_cut_off(sound: Path, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(sound.read_bytes()[:keep])
    refusal(path)


def test_random_bytes(sound: Path, tmp_path: Path) -> None:
    """A hundred files with bytes changed at random in the header: no other error, no endless loop."""
    raw, rng = sound.read_bytes(), random.Random(1)
    end = min(entry.offset for entry in read_header(sound).tensors.values())
    for number in range(100):
        damaged = bytearray(raw)
        for _ in range(1 + number % 4):
            damaged[rng.randrange(end)] = rng.randrange(256)
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(damaged)
        try:
            everything(path)
        except CheckpointError as error:
            assert "\n" not in str(error)
        path.unlink()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokenizer.ggml.pre": "martian"}, ["'martian'", "not known", "qwen2"]),
        ({"tokenizer.ggml.pre": None}, ["tokenizer.ggml.pre", "missing"]),
        ({"tokenizer.ggml.model": "rwkv"}, ["'rwkv'", "gpt2, llama, gemma4"]),
        ({"tokenizer.ggml.eos_token_id": 9999}, ["eos_token_id", "9999"]),
        ({"tokenizer.ggml.token_type": [1, 2, 3]}, ["token_type", "each of the"]),
        ({"tokenizer.ggml.merges": ["a b", "zz qq"]}, ["merges"]),
        ({"tokenizer.chat_template": 5}, ["chat_template"]),
        ({"llama.attention.head_count": 0}, ["llama.attention.head_count", "is 0"]),
        ({"llama.attention.head_count": [4, 2]}, ["differs from layer to layer"]),
        ({"llama.attention.head_count_kv": 3}, ["4 heads, 3 for keys"]),
        ({"llama.block_count": None}, ["llama.block_count", "missing"]),
        ({"llama.block_count": 3}, ["blk.1.", "is missing"]),
        ({"llama.rope.freq_base": 0.5}, ["rope.freq_base"]),
        ({"llama.rope.scaling.type": "spiral"}, ["'spiral'"]),
        ({"llama.embedding_length": 64}, ["token_embd.weight", "shape"]),
        ({"llama.expert_count": 8}, ["llama.expert_used_count", "missing"]),
        ({"general.alignment": 3}, ["general.alignment"]),
        ({"split.count": 2}, ["a part of 2"]),
    ],
)
def test_what_is_wrong_is_named(checkpoint: Path, tmp_path: Path, changes: dict[str, Any], named: list[str]) -> None:
    message = refusal(write_gguf(tmp_path / "model.gguf", checkpoint, **changes))
    assert all(part in message for part in named), message


def replaced(sound: Path, path: Path, before: bytes, after: bytes) -> Path:
    raw = sound.read_bytes()
    assert before in raw and len(before) == len(after)
    path.write_bytes(raw.replace(before, after))
    return path


def test_architecture_and_tensors(sound: Path, tmp_path: Path) -> None:
    path = replaced(
        sound, tmp_path / "a.gguf", b"\x05\x00\x00\x00\x00\x00\x00\x00llama", b"\x05\x00\x00\x00\x00\x00\x00\x00rwkv9"
    )
    assert "'rwkv9'" in refusal(path) and "qwen2" in refusal(path)
    path = replaced(sound, tmp_path / "b.gguf", b"blk.0.ffn_up.weight", b"blk.0.ffn_upp.eight")
    assert "blk.0.ffn_up.weight is missing" in refusal(path)


@pytest.mark.parametrize("name", ["llama4", "phimoe"])
def test_an_architecture_that_is_served_in_another_layout(name: str) -> None:
    header = Header(Path("it.gguf"), {"general.architecture": name})
    with pytest.raises(CheckpointError, match=f"the same model in Hugging Face's layout is \\({name}\\)"):
        arch_of(header)


def test_a_type_that_is_not_served(sound: Path, tmp_path: Path) -> None:
    data, reader = bytearray(sound.read_bytes()), GGUFReader(sound)
    entry = next(tensor.field for tensor in reader.tensors if tensor.tensor_type == Kind.Q8_0)
    at = entry.parts[4].ctypes.data - reader.data.ctypes.data
    for kind, named in ((int(Kind.I8), "I8"), (200, "type 200")):
        struct.pack_into("<I", data, at, kind)
        path = tmp_path / f"{kind}.gguf"
        path.write_bytes(data)
        assert named in refusal(path)


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "not.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    assert "is not a GGUF file" in refusal(path)
    big = tmp_path / "big.gguf"
    big.write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(100))
    assert "big-endian" in refusal(big)
    for name in ("missing.gguf", "no/such/place.gguf"):
        with pytest.raises(CheckpointError, match="there is no file"):
            inspect(tmp_path / name)


def split(sound: Path, folder: Path, count: int = 3) -> list[Path]:
    """The file in parts, as llama.cpp's splitter makes them: all keys in the first, tensors in turns."""
    from gguf import GGUFWriter

    reader, paths = GGUFReader(sound), []
    for number in range(count):
        path = folder / f"m-{number + 1:05}-of-{count:05}.gguf"
        writer = GGUFWriter(path, "llama")
        if number == 0:
            for key, field in reader.fields.items():
                if not key.startswith("GGUF.") and key != "general.architecture":
                    writer.add_key_value(key, field.contents(), field.types[0], *field.types[1:2])
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number::count]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


def test_split_files(sound: Path, tmp_path: Path) -> None:
    parts = split(sound, tmp_path)
    one, many = load_model(sound, dtype="float32"), load_model(parts[0], dtype="float32")
    assert np.array_equal(one.weights.embedding.numpy(), many.weights.embedding.numpy())
    assert inspect(parts[1]).path == parts[0] and inspect(parts[0]).tensors == inspect(sound).tensors
    assert Text(parts[0]).encode("Tom has") == Text(sound).encode("Tom has")
    whole = parts[1].read_bytes()
    parts[1].unlink()
    assert f"{parts[1].name} is not there" in refusal(parts[0])
    parts[1].write_bytes(parts[2].read_bytes())
    assert "is not part 2" in refusal(parts[0])
    parts[1].write_bytes(whole[: len(whole) // 2])
    refusal(parts[0])
