"""The rule of all loaders as a walk over one GGUF file: each key is given other values, or is added where none is;
each tensor is changed, taken out or joined by others. What changes the arithmetic is used or refused, never dropped.

The header is changed in memory, where the loader finds it; numbers are changed in the file.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import MODEL_ARCH_NAMES, Keys
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.engine.ids import check_defaults
from paceline.engine.text import Text
from paceline.model.gguf import load_header
from paceline.model.gguf.config import parsed_spec
from paceline.model.gguf.header import Header
from paceline.model.load import load_model
from paceline.model.spec import ModelSpec
from tests.oracle.cases import BLOCK, BLOCKS, text
from tests.oracle.rows import feed
from tests.tiny import CORPUS

LENGTH = 24
UNKNOWN_KEYS = ("a_key_of_tomorrow", "attention.a_key_of_tomorrow", "rope.scale_linear", "swiglu_limits")
STRANGERS = ("blk.0.attn_q.scale", "blk.0.ffn_norm.more", "blk.0.attn_rot_embd.weight", "rope_freqs.weight",
             "rope_factors_long.weight", "rope_factors_short.weight", "output.bias", "of_another.weight")  # fmt: skip
"""Tensors that are put into a file that has none of that name."""


@dataclass
class Seen:
    """What a walk saw."""

    keys: int = 0
    tensors: int = 0
    refused: int = 0
    dropped: list[str] = field(default_factory=list)


def known_keys(group: type = Keys) -> Iterator[str]:
    """Every key below an architecture's prefix that the `gguf` package knows, without it."""
    for name, value in vars(group).items():
        if isinstance(value, type) and not name.startswith("_"):
            yield from known_keys(value)
        elif isinstance(value, str) and value.startswith("{arch}.") and "{dense}" not in value:
            yield value.removeprefix("{arch}.")


def others(value: Any) -> list[Any]:
    """Other values of the kind of this one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [it for it in dict.fromkeys((value + 1, value // 2, 2 * value, 0)) if it != value]
    if isinstance(value, float):
        return [1.5 * value + 0.1, 0.0] if value else [0.1]
    if isinstance(value, str):
        return [value + "x"]
    each = value.tolist() if isinstance(value, np.ndarray) else value
    return [np.array([other, *each[1:]], np.int32) for other in others(each[0])]


@contextmanager
def changed(place: dict[str, Any], key: str, value: Any) -> Iterator[None]:
    """`key` set to a value, or taken out where that is None."""
    before = dict(place)
    if value is None:
        del place[key]
    else:
        place[key] = value
    try:
        yield
    finally:
        place.clear()
        place.update(before)


def spec_or_none(header: Header) -> ModelSpec | None:
    """None: refused, by a sentence that names the file."""
    try:
        return parsed_spec(header, None)
    except CheckpointError as error:
        assert str(error).endswith(".") and "\n" not in str(error), str(error)
        return None


def logits(path: Path) -> Tensor | None:
    """None: refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.model.gguf.config.remembered", lambda kind, facts, make: make())
        try:
            decoder = load_model(path, dtype="float32", cache=False)
        except CheckpointError as error:
            assert "\n" not in str(error), str(error)
            return None
    decoder.allocate(BLOCKS, BLOCK)
    return feed(decoder, text(1, LENGTH), range(LENGTH // BLOCK), BLOCK, [])


def same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and bool(torch.allclose(a, b, rtol=1e-4, atol=1e-4))


SILENT = ("vocab_size", "tensor_data_layout", "rope.dimension_sections", "rope.scaling.finetuned",
          "attention.causal = True", "attention.sliding_window_pattern")  # fmt: skip
"""Keys without a meaning beyond that of others, with a value where only that one says nothing: the table's rows say how
many ids there are; nobody reads how tensors lay elsewhere; the sections of a rotation share a text's positions; what
was trained further is there; nothing slides without a window."""


def walk(path: Path, share: float = 1.0, silent: tuple[str, ...] = SILENT) -> Seen:
    """`share` of a file's changes, drawn at random; keys of `silent` may say nothing."""
    stream, header, seen = random.Random(share), load_header(path), Seen()
    prefix = f"{header.metadata['general.architecture']}."
    spec, before = spec_or_none(header), logits(path)
    assert spec is not None and before is not None, "the file itself is refused"
    for key, value in tries(header, prefix):
        if stream.random() >= share:
            continue
        seen.keys += 1
        with changed(header.metadata, key, value):
            found = spec_or_none(header)
            held = found == spec and value is not None and same(logits(path), before)
            seen.refused += found is None
        what = f"{key.removeprefix(prefix)} = {value}"
        if held and not any(what == it or what.startswith(f"{it} = ") for it in silent):
            seen.dropped.append(what)
    some = next(entry for entry in header.tensors.values() if len(entry.shape) == 1)
    for name in STRANGERS:
        if name not in header.tensors:
            seen.tensors += 1
            with changed(header.tensors, name, replace(some, name=name)):
                if same(logits(path), before):
                    seen.dropped.append(f"{name} added")
    chosen = [name for name in header.tensors if stream.random() < share]
    for name in chosen:
        with changed(header.tensors, name, None):
            if name != "output.weight" and same(logits(path), before):
                seen.dropped.append(f"{name} taken out")
    for name in chosen:
        seen.tensors += 1
        if name not in silent and not moves(path, name, before):
            seen.dropped.append(f"{name} with other numbers")
    return seen


WORDS = "tokenizer.ggml."
SILENT_WORDS = ("scores", "token_type_count", "mask_token_id", "seperator_token_id", "padding_token_id",
                "eot_token_id = 1", "fim_", "prefix_token_id", "suffix_token_id", "middle_token_id", "unknown_token_id",
                "add_sep_token = False", "cls_token_id")  # fmt: skip
"""Names of tokens that no text begins or ends with, which are special by their type; scores, where merges have an
order."""


def walk_words(path: Path) -> Seen:
    """All keys of a byte-level tokenizer: what it makes of texts, what ends them, and its template."""
    header, seen = load_header(path), Seen()

    def said() -> Any:
        try:
            made = Text(path)
        except CheckpointError as error:
            assert "\n" not in str(error), str(error)
            return None
        words = made.tokenizer
        check_defaults(made.defaults, path, 320)
        return [
            words.encode(CORPUS + " <eos>"),
            made.defaults,
            made.eos(),
            made.chat([{"role": "user", "content": "Hi"}]),
        ]

    before = said()
    assert before is not None
    known = [name for name in vars(Keys.Tokenizer).values() if isinstance(name, str) and name.startswith(WORDS)]
    new = [(name, value) for name in known if name not in header.metadata for value in (3, True, [5, 6])]
    present = [
        (key, other) for key, value in header.metadata.items() if "tokenizer" in key for other in variants(value)
    ]
    for key, value in [*present, *new, (WORDS + "a_key_of_tomorrow", 1), (WORDS + "eos_token_ids", np.array([5, 6]))]:
        seen.keys += 1
        with changed(header.metadata, key, value):
            found = said()
        seen.refused += found is None
        what = f"{key.removeprefix(WORDS)} = {str(value)[:40]}"
        if found == before and not what.startswith(SILENT_WORDS):
            seen.dropped.append(what)
    return seen


def variants(value: Any) -> list[Any]:
    """Other values of what a tokenizer says."""
    if isinstance(value, list):
        return [value[::-1], value[:-1]]
    return [value[::-1]] if isinstance(value, np.ndarray) else others(value)


def tries(header: Header, prefix: str) -> Iterator[tuple[str, Any]]:
    """Keys, and values that they are given."""
    for key, value in [*header.metadata.items()]:
        if key.startswith(prefix):
            yield from ((key, other) for other in others(value))
            yield key, None
    for key in dict.fromkeys((*known_keys(), *UNKNOWN_KEYS)):
        if prefix + key not in header.metadata:
            yield from ((prefix + key, value) for value in (3, 0.37, True))
    other = next(name for name in MODEL_ARCH_NAMES.values() if f"{name}." != prefix)
    for key in (f"{other}.block_count", "xielu.beta", "diffusion.shift_logits", "adapter.lora.alpha"):
        yield key, 3
    yield "general.type", "adapter"


def moves(path: Path, name: str, before: Tensor) -> bool:
    """Do the logits move where a tensor has other numbers?"""
    entry = load_header(path).tensors[name]
    numbers = np.memmap(path, np.float32, "r+", entry.offset, entry.shape)
    kept = numbers.copy()
    numbers[:] = kept + np.random.default_rng(0).standard_normal(entry.shape).astype(np.float32) * 2
    numbers.flush()
    try:
        return not same(logits(path), before)
    finally:
        numbers[:] = kept
        numbers.flush()
