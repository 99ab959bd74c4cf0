"""Values of a GGUF file's metadata by key, checked; what nothing has read is refused."""

import math
from functools import cache
from typing import Any

import numpy as np
from gguf import MODEL_ARCH_NAMES

from paceline.core.errors import CheckpointError
from paceline.model.gguf.header import Header

SILENT_KEYS = frozenset(("vocab_size", "tensor_data_layout", "rope.scaling.finetuned",
                         "rope.dimension_sections"))  # fmt: skip
"""Keys that say nothing of a model's arithmetic beyond what its tensors and other keys do."""
USUAL_VALUES: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
    "expert_used_count": (0,),
    "pooling_type": (0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scaling.original_context_length": (0,),
}
"""Values of keys that change nothing, because they describe what is computed anyway."""
LEARNED = ("alpha_p", "alpha_n", "beta", "eps")
"""What metadata hold of the activation `xielu`."""
MAX_NUMBER = 1e30
MAX_SIZE = 1 << 24
"""No size of a model is larger: what is, is damage, and would be taken as memory."""


class ConfigReader:
    """Numbers by key, checked."""

    def __init__(self, header: Header) -> None:
        self.header, self.prefix = header, f"{header.metadata['general.architecture']}."
        self.seen: set[str] = set()

    def wrong(self, key: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self.prefix}{key} in {self.header.path} {what}; convert the model again.")

    def raw(self, key: str, many: bool = False) -> Any:
        """Any value; of a list, unless `many` are wanted, the one number that all layers share."""
        self.seen.add(key)
        value = self.header.metadata.get(self.prefix + key)
        if many or not isinstance(value, np.ndarray | list):
            return value
        each = value.tolist() if isinstance(value, np.ndarray) else value
        if len({*map(str, each)}) != 1:
            raise self.wrong(key, "differs from layer to layer, which is not served")
        return each[0]

    def refuse_unread(self) -> None:
        """CheckpointError for a key that nothing has read and that may say something of the model."""
        if (kind := self.header.metadata.get("general.type", "model")) != "model":
            raise CheckpointError(
                f"{self.header.path} is no model: its general.type is {str(kind)[:40]!r}; give the model's file."
            )
        if name := next((it for it in self.header.metadata if it.partition(".")[0] in strangers(self.prefix)), None):
            raise CheckpointError(
                f"{name} in {self.header.path} is a key of other models, whose arithmetic is not that of "
                f"{self.prefix[:-1]}; convert the model again."
            )
        curves = (it for it in self.header.metadata if it.startswith("xielu."))
        if name := next((it for it in curves if it.removeprefix("xielu.") not in LEARNED), None):
            raise CheckpointError(f"{name} in {self.header.path} is a key that is not known here; convert it again.")
        for name, value in self.header.metadata.items():
            key = name.removeprefix(self.prefix)
            if key != name and key not in self.seen and key not in SILENT_KEYS and not says_nothing(key, value):
                raise self.wrong(key, f"is {str(value)[:40]}, a key that is not known here and may change the text")

    def whole(self, key: str, default: int | None = None) -> int:
        """A number above 0 that all layers share."""
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_SIZE:
            raise self.wrong(
                key, "is missing" if value is None else f"is {str(value)[:40]}, no size from 1 to {MAX_SIZE}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number that is not negative."""
        value = self.raw(key)
        if value is None and default is not None:
            return default
        sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER
        if not sound:
            raise self.wrong(key, "is missing" if value is None else f"is {str(value)[:40]}, no number from 0 on")
        return float(str(np.float32(value)))  # 1e-06, as a config has it, not the float32 nearest to it


@cache
def strangers(prefix: str) -> frozenset[str]:
    """First words of keys that llama.cpp reads, but not of models of the architecture."""
    own = {"xielu"} if prefix == "apertus." else set[str]()
    return frozenset(("xielu", "diffusion", "adapter", "clip", *MODEL_ARCH_NAMES.values())) - {prefix[:-1], *own}


def says_nothing(key: str, value: Any) -> bool:
    """Does a key have a value that describes what is computed anyway?"""
    usual = () if isinstance(value, np.ndarray | list) else USUAL_VALUES.get(key, ())
    return any(value == it and isinstance(value, bool) == isinstance(it, bool) for it in usual)


def whole_or_none(read: ConfigReader, key: str) -> int:
    """A whole number, or 0 where the key is missing or 0."""
    return 0 if read.raw(key) in (None, 0) else read.whole(key)


def floats(entry: Any) -> list[float]:
    """A small tensor of float32."""
    if entry.kind.name != "F32":
        raise CheckpointError(f"tensor {entry.name} in {entry.file} is {entry.kind.name}, but F32 is expected.")
    found: list[float] = np.fromfile(entry.file, "<f4", math.prod(entry.shape), offset=entry.offset).tolist()
    return found
