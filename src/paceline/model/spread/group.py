"""A decoder whose experts are held by several processes of this machine, and these processes."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from paceline.core.errors import LostError, RefusalError
from paceline.core.rows import Rows
from paceline.model.blocks import Mixture
from paceline.model.checkpoint import read_config
from paceline.model.decoder import Decoder
from paceline.model.load import load_share
from paceline.model.spread.exchange import TRAFFIC_KINDS
from paceline.model.spread.mixture import ExpertShare, MixturePart
from paceline.model.spread.ranks import SpreadRanks
from paceline.model.spread.table import RouteTable
from paceline.model.spread.worker import MESSAGE, REPORT, part_of


class ExpertGroup(SpreadRanks):
    """The processes of a model's mixtures."""

    option = "expert_parallel"

    def __init__(self, path: Path, table: RouteTable, dtype: str) -> None:
        self.table = table
        self.share = ExpertShare(0, dict(table.places))
        about = {
            "kind": "experts", "path": str(path.absolute()), "dtype": dtype,
            "places": {layer: place.tolist() for layer, place in table.places.items()},
        }  # fmt: skip
        super().__init__(table.devices, about, "experts")
        self.tokens = torch.empty(0, dtype=torch.int64)
        self.earlier: list[Tensor] = []
        """[T] each: where most experts of the rows of this pass were, by mixture so far."""

    def digest(self) -> str:
        """Digest of all ranks' weights. Waits until the other ranks have their experts."""
        return hashlib.sha256("".join(self.join()).encode()).hexdigest()

    def begin(self, rows: Rows) -> None:
        """Take the rows of a pass."""
        self.tokens, self.earlier = rows.token, []

    def run(self, layer: int, part: MixturePart, x: Tensor) -> tuple[Tensor, int]:
        """One mixture of the pass, by all processes, and how many experts' weights were read. LostError where a process
        has ended."""
        earlier = (self.earlier[-1], self.earlier[-2]) if len(self.earlier) > 1 else None
        home = self.table.homes(layer, self.tokens, earlier)
        with self.guarded():
            self.tell(MESSAGE.pack(layer, len(home)) + bytes(home.tolist()))
            assert self.exchange is not None
            y, chosen = part.run(self.exchange, home, x)
        at = torch.nn.functional.one_hot(part.place[chosen], self.table.devices)
        self.earlier.append(at.sum(1).argmax(1))
        assert y is not None
        return y, len({*chosen.flatten().tolist()})

    def traffic(self) -> dict[str, int]:
        """Bytes that went between processes since they started, by kind (`TRAFFIC_KINDS`)."""
        sent = Counter[str]() if self.exchange is None else Counter(self.exchange.sent)
        with self.guarded():
            for process in self.processes:
                self._tell(process, MESSAGE.pack(REPORT, 0))
                assert process.stdout is not None
                sent.update(json.loads(process.stdout.readline()))
        return {kind: sent[kind] for kind in TRAFFIC_KINDS}


@dataclass(slots=True)
class SpreadMixture(Mixture):
    """A mixture whose experts are held by several processes; router and shared expert are here."""

    run: Callable[[Tensor], tuple[Tensor, int]] | None = None

    def __call__(self, x: Tensor, told: Tensor | None = None) -> Tensor:
        assert self.run is not None and told is None
        y, count = self.run(x)
        self.loads += count
        return self.add_shared(x, y)


def spread_model(path: Path, table: RouteTable, dtype: str, max_len: int | None = None) -> Decoder:
    """Load a checkpoint whose experts are held by `table.devices` processes. Raises RefusalError for a model without
    experts, or with a dense part next to them or weighed inputs, InputError for a table that is not its own, LostError
    where a process ends."""
    if any(it.beside or it.weighs_inputs for it in read_config(path, max_len).mixtures):
        raise RefusalError(
            "expert_parallel takes no mixtures with a dense part, or whose weights multiply inputs; leave it out."
        )
    group = None
    try:
        group = ExpertGroup(path, table, dtype)
        decoder = load_share(path, dtype, max_len, group.share.held, group.digest)
    except BaseException as error:
        if group is not None:
            group.close()
        if isinstance(error, BrokenPipeError):
            raise (group.lost() if group else LostError("A process of the experts has ended; start again.")) from None
        raise
    for layer in table.places:
        mixture = decoder.weights.blocks[layer].ffn
        assert isinstance(mixture, Mixture)
        part = part_of(mixture, layer, group.share, decoder.spec.hidden, decoder.compute)
        decoder.weights.blocks[layer].ffn = SpreadMixture(
            mixture.form, mixture.router, [], mixture.shared, mixture.shared_gate, mixture.correction,
            run=runner(group, layer, part),
        )  # fmt: skip
    decoder.before.append(group.begin)
    decoder.spread = group
    return decoder


def runner(group: ExpertGroup, layer: int, part: MixturePart) -> Callable[[Tensor], tuple[Tensor, int]]:
    """The part of a layer, run by all processes."""
    return lambda x: group.run(layer, part, x)
