"""A decoder whose experts are held by several processes of this machine, and these processes."""

import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
from paceline.model.spread.exchange import SILENCE_S, TRAFFIC_KINDS, Exchange
from paceline.model.spread.mixture import ExpertShare, MixturePart
from paceline.model.spread.table import RouteTable
from paceline.model.spread.worker import MESSAGE, REPORT, part_of

END_S = 5.0
"""How long a process may take to end by itself."""


class ExpertGroup:
    """The processes of a model's mixtures; this one is rank 0. Not thread-safe, as a decoder is not."""

    def __init__(self, path: Path, table: RouteTable, dtype: str) -> None:
        """Start the others, which load their experts meanwhile."""
        self.table = table
        self.share = ExpertShare(0, dict(table.places))
        self.folder = tempfile.TemporaryDirectory(prefix="paceline-experts-")
        about = {
            "path": str(path.absolute()), "dtype": dtype, "devices": table.devices, "threads": torch.get_num_threads(),
            "meeting": str(Path(self.folder.name) / "meeting"),
            "places": {layer: place.tolist() for layer, place in table.places.items()},
        }  # fmt: skip
        self.meeting = Path(str(about["meeting"]))
        command = [sys.executable, "-m", "paceline.model.spread.worker"]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(1, table.devices)
        ]
        self.close = weakref.finalize(self, end, self.processes, self.folder)
        for rank, process in enumerate(self.processes, 1):
            self._tell(process, json.dumps({**about, "rank": rank}).encode() + b"\n")
        self.exchange: Exchange | None = None
        self.broken = ""
        """Why it cannot go on."""
        self.tokens = torch.empty(0, dtype=torch.int64)
        self.earlier: list[Tensor] = []
        """[T] each: where most experts of the rows of this pass were, by mixture so far."""

    def join(self) -> str:
        """Wait until the others have their experts, and meet them. Digest of all their weights."""
        digests = hashlib.sha256()
        for rank, process in enumerate(self.processes, 1):
            assert process.stdout is not None
            word, _, rest = process.stdout.readline().decode().strip().partition(" ")
            if word == "error":
                self.close()
                raise RefusalError(f"Process {rank} of the experts could not start: {rest}")
            if word != "ready":
                raise self.lost()
            digests.update(rest.encode())
        for process in self.processes:
            self._tell(process, b"\n")
        with self.guarded():
            self.exchange = Exchange(self.meeting, 0, self.table.devices)
        return digests.hexdigest()

    def begin(self, rows: Rows) -> None:
        """Take the rows of a pass."""
        self.tokens, self.earlier = rows.token, []

    def run(self, layer: int, part: MixturePart, x: Tensor) -> tuple[Tensor, int]:
        """One mixture of the pass, by all processes, and how many experts' weights were read. LostError where a process
        has ended."""
        if self.exchange is None or self.broken:
            raise LostError(self.broken or "The processes of the experts have ended; start again.")
        earlier = (self.earlier[-1], self.earlier[-2]) if len(self.earlier) > 1 else None
        home = self.table.homes(layer, self.tokens, earlier)
        message = MESSAGE.pack(layer, len(home)) + bytes(home.tolist())
        with self.guarded():
            for process in self.processes:
                self._tell(process, message)
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

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """What all processes do together: where one of them fails, or this one is interrupted, none can go on."""
        try:
            yield
        except (RuntimeError, OSError, ValueError) as error:
            raise self.lost() from error
        except BaseException:
            self.broken = "A pass over the processes of the experts was interrupted; start again."
            self.close()
            raise

    def lost(self) -> LostError:
        """The error that says which process is gone; the others are ended."""
        gone = ""
        for rank, process in enumerate(self.processes, 1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(1.0 / len(self.processes))
                if not gone or code != 1:  # 1: it ended because of another
                    gone = f"Process {rank} of {self.table.devices} of the experts has ended (exit code {code})"
        self.broken = f"{gone or f'A process of the experts was silent for {SILENCE_S:g} s'}; start again."
        self.close()
        return LostError(self.broken)

    def _tell(self, process: "subprocess.Popen[bytes]", message: bytes) -> None:
        assert process.stdin is not None
        process.stdin.write(message)
        process.stdin.flush()


def end(processes: "Iterable[subprocess.Popen[bytes]]", folder: "tempfile.TemporaryDirectory[str]") -> None:
    """End the processes, by force where they do not see that their input has ended."""
    for process in processes:
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
    for process in processes:
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
    folder.cleanup()


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
    experts, or with a dense part next to them, InputError for a table that is not its own, LostError where a process
    ends."""
    if any(it.beside for it in read_config(path, max_len).mixtures):
        raise RefusalError("expert_parallel takes no mixtures with a dense part beside them; leave it out.")
    group = None
    try:
        group = ExpertGroup(path, table, dtype)
        decoder = load_share(path, dtype, max_len, group.share.held, group.join)
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
