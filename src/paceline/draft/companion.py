"""Companions of a draft model, each in a folder of its name next to it: small parts that say how far to draft, or which
tokens may stand.

A *companion* is a component without K/V. The directory of a draft model holds a folder for each, with `config.json` and
(where it has weights) `model.safetensors`; `LLM(draft=DIR)` loads them with the draft model. `COMPANIONS` has one class
a kind, under the folder's name, which is also that of the component and of the `Need` for it:

- `acceptance` (draft/acceptance.py): will a drafted token be kept? For the drafter `specdec`.
- `exits` (draft/exits.py): layers at which the draft model may stop. For the drafter `s2d`.
- `judge` (draft/correctness.py): is a drafted token as good as the target's own? For the verifier `judge`.
"""

import json
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from paceline.core.component import Ability, Component, Rowless
from paceline.core.errors import CheckpointError
from paceline.core.registry import Need, Registry

CONFIG, WEIGHTS = "config.json", "model.safetensors"
KIND = "companion"
"""The key of config.json that names the kind."""


class Companion(Rowless, nn.Module):
    """A kind gives `kind`, a constructor of config.json's other keys, and `check`."""

    kind: ClassVar[str]
    abilities: frozenset[Ability] = frozenset()
    taps: tuple[str, ...] = ()
    vocab_size: int
    width: int
    max_len = 1 << 30

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.weight_bytes, self.vocab_size = width, 0, 0

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, as config.json has them."""
        return {"width": self.width}

    def misfit(self, target: Any, draft: Any) -> str | None:
        """Why it does not belong to this pair of models, as the rest of a sentence; None: it does."""
        raise NotImplementedError

    @classmethod
    def sketch(cls, width: int, seed: int) -> Self:
        """Small and random, for a draft model and a target of this width."""
        raise NotImplementedError

    def settle(self) -> Self:
        """Prepare for serving: no gradients."""
        self.weight_bytes = sum(part.nbytes for part in self.parameters())
        return self.eval().requires_grad_(False)

    def describe(self) -> str:
        return f"{self.kind} of {self.weight_bytes:,} bytes"

    def save(self, beside: Path) -> None:
        """Write its folder into the directory of a draft model."""
        from safetensors.torch import save_file

        path = beside / self.kind
        path.mkdir(parents=True, exist_ok=True)
        (path / CONFIG).write_text(json.dumps({KIND: self.kind, **self.config()}, indent=2) + "\n", encoding="utf-8")
        if weights := {name: part.contiguous() for name, part in self.state_dict().items()}:
            save_file(weights, path / WEIGHTS)


COMPANIONS: Registry[type[Companion]] = Registry("companion", "paceline.draft")


def kinds(beside: Path) -> list[str]:
    """The companions that lie in a draft model's directory."""
    return [kind for kind in COMPANIONS.names() if (beside / kind / CONFIG).is_file()]


def weight_bytes(path: Path) -> int:
    """Bytes that one of them takes in memory, in float32, from the header of its weights."""
    from math import prod

    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path / WEIGHTS, "pt") as file:
            return sum(4 * prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (OSError, SafetensorError):
        return 0  # it has none; what cannot be read is refused where it is loaded


def need(kind: str, text: str) -> Need:
    return Need(kind, f"{text} next to the draft model (give draft=DIR that `paceline train` made)")


def companions(beside: Path, target: Any, draft: Any) -> dict[str, Component]:
    """Companions in a draft model's directory, by name. Raises CheckpointError for one that cannot be read or belongs
    to another pair of models."""
    found: dict[str, Component] = {}
    for kind in kinds(beside):
        made = restored(beside / kind, COMPANIONS.get(kind)).settle()
        if reason := made.misfit(target, draft):
            raise CheckpointError(f"{beside / kind} {reason}; train it for this pair, or delete the folder.")
        made.vocab_size = target.vocab_size
        found[kind] = made
    return found


def restored(path: Path, kind: type[Companion]) -> Companion:
    """From its folder. Raises CheckpointError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        made = kind(**{key: value for key, value in config.items() if key != KIND})
        weights: dict[str, Tensor] = load_file(path / WEIGHTS) if made.state_dict() else {}
        made.load_state_dict({name: part.to(torch.float32) for name, part in weights.items()})
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); train it again or delete the folder.") from None
    return made
