"""The safetensors files of a checkpoint, and what its index says is in them."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from paceline.core.errors import CheckpointError
from paceline.model.json_files import read_json
from paceline.model.quantised import SIDE_MEMBER

SHARD_INDEX, SINGLE_FILE = "model.safetensors.index.json", "model.safetensors"
NOT_NEEDED = re.compile(rf"lm_head\.weight$|rotary_emb\.inv_freq$|^{SIDE_MEMBER.pattern}$")
"""Names of tensors without which a model is the same, or cannot be loaded."""


def shard_names(path: Path) -> list[str]:
    """The files of a checkpoint's directory that hold its weights. Raises CheckpointError."""
    if (path / "adapter_config.json").exists() and any(path.glob("adapter_model*")):
        raise CheckpointError(
            f"{path} holds an adapter (adapter_model) next to a model, and programs differ on whether it is "
            "applied; move it to a directory of its own, and give that as --lora NAME=DIRECTORY to use it."
        )
    single = (path / SINGLE_FILE).exists()
    if (path / SHARD_INDEX).exists():
        names = listed(path / SHARD_INDEX)
        if single and not any((path / name).exists() for name in names):
            return [SINGLE_FILE]  # the index is of the model that this one was made of
        if single and SINGLE_FILE not in names:
            raise CheckpointError(
                f"{path} holds {SINGLE_FILE} and a {SHARD_INDEX} of other files, so it has weights twice; remove the "
                "ones that are not meant."
            )
        return names
    if single:
        return [SINGLE_FILE]
    if files := sorted(path.glob("*.gguf")):
        raise CheckpointError(f"{path} holds no safetensors but {files[0].name}; give the path of that GGUF file.")
    raise CheckpointError(f"{path} has neither {SINGLE_FILE} nor {SHARD_INDEX}; convert the weights to safetensors.")


def listed(index: Path) -> list[str]:
    """The files of an index, all of them in its directory. Raises CheckpointError."""
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise CheckpointError(f"{index}: weight_map is missing or no object; download it again.")
    for name, file in table.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: weight_map has {str(file)[:80]!r} for {name[:80]!r}, but it must name a .safetensors file "
                "next to it; download it again."
            )
    return sorted(set(table.values()))


def check_complete(path: Path, files: Iterable[str], there: Iterable[str], used: Callable[[str], bool]) -> None:
    """Raise CheckpointError for a tensor of the index that is `used` and that none of its `files` holds: a shard was
    cut, or is of another model. A head may be missing, since one that is tied need not be stored, and so may
    frequencies and what says how others round activations."""
    if not (path / SHARD_INDEX).exists():
        return
    table: dict[str, Any] = read_json(path / SHARD_INDEX)["weight_map"]
    if not {*table.values()} & {*files}:
        return
    found = {*there}
    missing = sorted(it for it in table if it not in found and not NOT_NEEDED.search(it) and used(it))
    if missing:
        raise CheckpointError(
            f"{path / SHARD_INDEX} lists {len(missing)} tensors that its files do not hold, such as {missing[0][:80]} "
            f"in {table[missing[0]]}; download the checkpoint again."
        )
