"""Table of routes: which process holds each expert, and where a token's experts are expected to be.

A table decides where rows are computed, never what comes out: any table, also one that is wrong about every token,
gives the same bits (`spread.mixture`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.errors import InputError, memory_ended, no_room_for
from paceline.model.spec import Experts, ModelSpec

TABLE_FORMAT = "paceline routes 1"
MAX_DEVICES = 64
"""Most processes of one mixture."""


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Placement and prediction for the mixtures of one model, by layer."""

    devices: int
    capacity: float = 1.0
    """Most rows of one process in a pass, as a multiple of its fair share; at least 1."""
    places: Mapping[int, Tensor] = field(default_factory=dict)
    """{layer: [count] int64, the process that holds each expert}"""
    tokens: Mapping[int, Tensor] = field(default_factory=dict)
    """{layer: [vocab, devices], share of a token's routes that go to each process; zeros: the token was not seen}"""
    follows: Mapping[int, Tensor] = field(default_factory=dict)
    """{layer: [devices, devices, devices], the same by the processes that most experts of the two mixtures before were
    at, the nearer one first}"""

    @classmethod
    def plain(cls, spec: ModelSpec, devices: int) -> "RouteTable":
        """Experts in turn, and no prediction: rows are cut into slices."""
        return cls(devices, 1.0, {layer: torch.arange(it.count) % devices for layer, it in mixtures_of(spec).items()})

    def check(self, spec: ModelSpec, devices: int, name: str = "The table of routes") -> None:
        """InputError unless it is a table for the mixtures of this model over this number of processes."""
        mixtures = mixtures_of(spec)
        if self.devices != devices:
            raise InputError(f"{name} is for {self.devices} processes, but expert_parallel is {devices}.")
        if not self.capacity >= 1:
            raise InputError(f"{name} has capacity {self.capacity:g}, but rows fit only where it is at least 1.")
        if self.places.keys() != mixtures.keys():
            raise InputError(
                f"{name} has experts in the layers {listed(self.places)}, but the model's mixtures are in "
                f"{listed(mixtures)}: it was made for another model."
            )
        for layer, form in mixtures.items():
            place = self.places[layer]
            if place.shape != (form.count,) or place.dtype != torch.int64:
                raise InputError(
                    f"{name} places {place.numel()} experts in layer {layer}, but the model has {form.count}: it was "
                    "made for another model."
                )
            if not bool(((place >= 0) & (place < devices)).all()):
                raise InputError(f"{name} places an expert of layer {layer} outside of the {devices} processes.")
        shapes = {"tokens": (spec.vocab, devices), "follows": (devices,) * 3}
        for part, shape in shapes.items():
            for layer, shares in getattr(self, part).items():
                if layer not in mixtures or shares.shape != shape or not shares.is_floating_point():
                    raise InputError(
                        f"{name} has {part} of shape {tuple(shares.shape)} in layer {layer}, but {shape} is expected: "
                        "it was made for another model."
                    )

    def homes(self, layer: int, tokens: Tensor, earlier: tuple[Tensor, Tensor] | None) -> Tensor:
        """[T] int64, the process that each row is sent to; `tokens` [T]; `earlier`: where most experts of each row
        were in the mixture before and in the one before that."""
        rows = len(tokens)
        if rows < self.devices:  # nothing to share out
            return torch.zeros(rows, dtype=torch.int64)
        if layer not in self.tokens:
            return torch.arange(rows) * self.devices // rows
        shares = self.tokens[layer].index_select(0, tokens.clamp(0, len(self.tokens[layer]) - 1)).float()
        if earlier is not None and layer in self.follows:
            by_route = self.follows[layer][earlier].float()
            surer = by_route.max(1).values > shares.max(1).values
            shares = torch.where(surer[:, None], by_route, shares)
        return assign(shares.nan_to_num(0, 0, 0), most_rows(rows, self.devices, self.capacity))

    def save(self, path: Path) -> None:
        """Write a file that `read_table` reads."""
        tensors = {
            f"{part}.{layer}": tensor.contiguous()
            for part in ("places", "tokens", "follows")
            for layer, tensor in getattr(self, part).items()
        }
        about = {"format": TABLE_FORMAT, "devices": json.dumps(self.devices), "capacity": json.dumps(self.capacity)}
        save_file(tensors, path, about)


def mixtures_of(spec: ModelSpec) -> dict[int, Experts]:
    """The mixtures of a model by layer."""
    return {i: layer.feed for i, layer in enumerate(spec.layers) if isinstance(layer.feed, Experts)}


def listed(layers: Mapping[int, object]) -> str:
    """Numbers of layers, the first few."""
    names = [str(layer) for layer in sorted(layers)]
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") if names else "none"


def read_table(path: Path) -> RouteTable:
    """The table that `RouteTable.save` wrote. Raises InputError for a file that is none."""
    parts: dict[str, dict[int, Tensor]] = {"places": {}, "tokens": {}, "follows": {}}
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            if about.get("format") != TABLE_FORMAT:
                raise InputError(f"{path} is not a table of routes; make one with `paceline experts`.")
            for name in file.keys():  # noqa: SIM118  # it is no dictionary
                part, _, layer = name.partition(".")
                parts[part][int(layer)] = file.get_tensor(name)
            return RouteTable(int(about["devices"]), float(about["capacity"]), **parts)
    except (OSError, SafetensorError, KeyError, ValueError, MemoryError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        if memory_ended(error):
            raise no_room_for(path) from error
        raise InputError(f"{path} cannot be read as a table of routes: {error}.") from None


def most_rows(rows: int, devices: int, capacity: float) -> int:
    """Rows that one process may get in a pass."""
    fair = -(-rows // devices)
    return fair if not capacity < rows else max(fair, int(fair * capacity))


def assign(shares: Tensor, most: int) -> Tensor:
    """[T] int64, a process for each row, none with more than `most` rows; `shares` [T, devices]. Rows go where their
    share is largest; of a process that is full, the surest rows stay and the others go to their next best. A row of
    which nothing is known goes to the process with the fewest rows."""
    rows, devices = shares.shape
    if devices == 1:
        return torch.zeros(rows, dtype=torch.int64)
    best = shares.topk(2, 1)
    home = best.indices[:, 0].clone()
    known = best.values[:, 0] > 0
    counts = torch.bincount(home[known], minlength=devices)
    if bool(known.all()) and int(counts.max()) <= most:
        return home
    surest = (best.values[:, 0] - best.values[:, 1]).argsort(descending=True, stable=True)
    room, later = [most] * devices, []
    where, sure = home.tolist(), known.tolist()
    for row in surest.tolist():
        if sure[row] and room[where[row]] > 0:
            room[where[row]] -= 1
        else:
            later.append(row)
    wishes = shares[later].tolist()
    for row, wish in sorted(zip(later, wishes), key=lambda it: -max(it[1])):
        where[row] = max((d for d in range(devices) if room[d] > 0), key=lambda d: (wish[d], room[d]))
        room[where[row]] -= 1
    return torch.tensor(where, dtype=torch.int64)
