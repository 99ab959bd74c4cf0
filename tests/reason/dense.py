"""The slow twin of joins: one dense forward of transformers' own model under the training mask and positions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Text:
    """A text with one block of branches in it, or none: `before`, then branches that do not see one another, then
    `behind`, a text in its turn."""

    before: list[int]
    branches: list["Text"] = field(default_factory=list)
    behind: "Text | None" = None


def lines(text: Text, position: int = 0, seen: Sequence[int] = (), start: int = 0) -> list[tuple[int, int, list[int]]]:
    """(token, position, places that it sees) of each place, by the definition."""
    out = list[tuple[int, int, list[int]]]()
    known = [*seen]

    def put(tokens: Sequence[int], position: int) -> int:
        for token in tokens:
            known.append(start + len(out))
            out.append((token, position, [*known]))
            position += 1
        return position

    position = put(text.before, position)
    ends, sight = [position], [*known]
    for branch in text.branches:
        part = lines(branch, position, sight, start + len(out))
        known += range(start + len(out), start + len(out) + len(part))
        ends.append(1 + part[-1][1])  # a text ends at its largest position
        out += part
    if text.behind is not None:
        out += lines(text.behind, max(ends), known, start + len(out))
    return out


def tokens(text: Text) -> list[int]:
    return [token for token, _, _ in lines(text)]


@torch.no_grad()
def logits(model: Any, text: Text) -> Tensor:
    """[T, V] of every place, in float32."""
    found = lines(text)
    mask = torch.full((len(found), len(found)), torch.finfo(torch.float32).min)
    for row, (_, _, seen) in enumerate(found):
        mask[row, seen] = 0.0
    ids, positions = torch.tensor([[t for t, _, _ in found]]), torch.tensor([[p for _, p, _ in found]])
    out: Tensor = model(input_ids=ids, position_ids=positions, attention_mask=mask[None, None]).logits[0]
    return out
