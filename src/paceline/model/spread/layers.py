"""Layers of a model and of its fine-tunes in several processes (BlockLLM, arXiv 2404.18322): what is equal is in one of
them once, and a pass goes from process to process, as its text's chain has it.

    embedding ──▶ process 2: layers 0 to 9 ──▶ process 0: layers 10 to 29 of a ──▶ norm, head
                                          └──▶ process 1: layers 10 to 29 of b ──▶ norm, head

This process has the rows, embedding and head. The others are Ray actors; each has some blocks, which are runs of
layers that the same models share, and the keys and values of all texts there. Hidden states go from actor to actor.
Where texts of several models go apart, their processes work at the same time.
"""

import contextlib
import hashlib
import json
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import CapacityError, InputError, LostError, RefusalError
from paceline.core.program import Program
from paceline.core.rows import Out, Rows
from paceline.model.chained import check_alike
from paceline.model.decoder import Decoder, Weights, check_bytes
from paceline.model.load import load_model
from paceline.model.lora import LoraWeights
from paceline.model.native import NativeDecoder
from paceline.model.spec import ModelSpec
from paceline.model.spread.layer_host import Carried, LayerHost, PackedRows, Version, raw
from paceline.model.spread.place import BlockPlaces, Demand, ZooBlock, ZooDevice, best_fit, greedy
from paceline.model.spread.rays import begin_ray, end_ray

LAYER_RULES: "Mapping[str, Callable[..., BlockPlaces]]" = {"greedy": greedy, "best_fit": best_fit}
LAYER_SILENCE_S = 120.0
"""How long a pass waits for a process that is alive and does not answer."""
LAYER_START_S = 900.0
"""How long a process may load."""
LAYER_SLACK = 1.25
"""What a process may hold and do, as a multiple of its fair share, until nothing fits."""
COUNTS_LAYOUT = 1
log = logging.getLogger("paceline")
Layers = tuple[str, ...]
"""Digests of a chain's layers."""


@dataclass(frozen=True, slots=True)
class LayerBlock:
    """Layers `first` .. of a model that the same models have."""

    name: str
    first: int
    layers: Layers
    path: Path
    """Where they are read."""

    @property
    def versions(self) -> list[Version]:
        return [(self.first + i, digest) for i, digest in enumerate(self.layers)]


class NoAdapters:
    """In place of the table of a decoder's adapters."""

    def __init__(self, option: str) -> None:
        self.option = option
        self.bytes: dict[int, int] = {}

    def install(self, slot: int, weights: LoraWeights) -> int:
        raise RefusalError(f"Adapters and {self.option} cannot be combined; leave one of them out.")

    def remove(self, slot: int) -> None:
        pass


class LayeredDecoder(Decoder):
    """The decoder whose layers are elsewhere. Its fine-tunes and chains of them are such decoders, too."""

    group: "LayerGroup"
    ends: Decoder
    """Embedding, norm and head."""

    def alike(self, weights: Weights, identity: str) -> "LayeredDecoder":
        return layered(self.spec, weights, self.packing, identity, self.group)

    def adapt(self) -> Any:
        return self.group.none

    def take_adapters(self, other: Decoder) -> None:
        pass

    def allocate(self, blocks: int, block_size: int) -> None:
        self.block_size, self.pools = block_size, []
        self.allocate_states(block_size)
        self.group.allocate(blocks, block_size)

    def share_pool(self, other: Decoder) -> None:
        self._lent = other._lent

    def move(self, source: list[int], target: list[int]) -> None:
        if source:
            self.group.tell("move", source, target)

    def read(self, slots: list[int]) -> bytes:
        return self.group.read(slots)

    def write(self, slots: list[int], packed: bytes) -> None:
        self.group.write(slots, packed)

    def forward(self, rows: Rows) -> Out:
        self.group.count(self, rows)
        return super().forward(rows)

    def computed(self, rows: Rows) -> Out:
        return self.begun(rows)()

    def begun(self, rows: Rows) -> Callable[[], Out]:
        self.check(rows)
        program, layers = rows.program, len(self.spec.layers)
        last = layers if program.last is None else program.last
        x = self.entered(rows) if rows.hidden is None else rows.hidden
        coming = self.group.begin(x, rows, self.weights.sections, program.first, last)

        def finish() -> Out:
            left, taps = coming()
            if not program.head:
                return Out(self.no_logits(), taps, left)
            behind = tuple(tap for tap in rows.taps if self.place(tap) < 0)
            out = self.ends.computed(replace(rows, program=Program(narrow=program.narrow), hidden=left, taps=behind))
            return Out(out.logits, {**taps, **out.taps})

        return finish

    def entered(self, rows: Rows) -> Tensor:
        """Hidden states [T, H] as they enter the first layer."""
        if self._lent and max(rows.numbers[: rows.count]) >= self.spec.vocab:
            return self.embed(rows.token)
        found = self.ends.computed(replace(rows, program=Program(head=False), taps=())).leave
        assert found is not None
        return found

    @property
    def expert_loads(self) -> int:
        return 0

    def describe(self) -> str:
        return f"{super().describe()}, layers in {self.group.count_of} processes"


class LayerGroup:
    """The processes. Not thread-safe, as a decoder is not."""

    option = "layer_processes"
    chains = True
    """Can fine-tunes and chains of them be served?"""

    def __init__(self, count: int) -> None:
        self.count_of, self.broken = count, ""
        self.none = NoAdapters(self.option)
        self.models: dict[Path, LayeredDecoder] = {}
        self.where: dict[Version, int] = {}
        self.blocks: list[LayerBlock] = []
        self.passed: Counter[Layers] = Counter()
        """Rows by the chain that they went through, since the start."""
        self.hops = self.calls = 0
        """Passes from process to process, and calls of them."""
        self.sizes: list[int] = []
        """Bytes of a slot's keys and values in each process."""
        self.ray = begin_ray("layer_processes")
        threads = max(1, torch.get_num_threads())
        remote = self.ray.remote(LayerHost).options(num_cpus=0, max_restarts=0, max_task_retries=0)
        self.actors = [remote.remote(threads) for _ in range(count)]
        self.kept: dict[Layers, int] = {}
        self.counts_at: Path | None = None
        """File to which counts are added in the end, and what it has."""
        self.close = weakref.finalize(self, end_hosts, self.ray, self.actors)

    def place(self, blocks: Sequence[LayerBlock], places: BlockPlaces) -> None:
        """Remember where each block is to be."""
        self.blocks = [*blocks]
        for block in blocks:
            self.where.update(dict.fromkeys(block.versions, places.at[block.name][0]))

    def load(self, form: Mapping[str, Any]) -> None:
        """Let each process load its blocks. LostError where one ends, RefusalError where files have changed."""
        wanted = dict[tuple[int, Path], list[int]]()
        for block in self.blocks:
            wanted.setdefault((self.where[block.versions[0]], block.path), []).extend(i for i, _ in block.versions)
        refs = [
            (at, self.actors[at].load.remote(str(path), dict(form), layers)) for (at, path), layers in wanted.items()
        ]
        for at, ref in refs:
            for version in self.got(ref, LAYER_START_S):
                if self.where.get(version) != at:
                    raise RefusalError(
                        f"Layer {version[0]} has not the weights that its digest says: a file has changed since it was "
                        "read; start again."
                    )

    def allocate(self, blocks: int, block_size: int) -> None:
        for ref in [actor.allocate.remote(blocks, block_size) for actor in self.busy]:
            self.got(ref, LAYER_START_S)
        self.sizes = [len(self.got(actor.read.remote([0]))) for actor in self.busy]

    @property
    def busy(self) -> list[Any]:
        """Processes that hold something."""
        return [self.actors[at] for at in sorted({*self.where.values()})]

    def begin(
        self, x: Tensor, rows: Rows, sections: Sequence[str], first: int, last: int
    ) -> "Callable[[], tuple[Tensor, dict[str, Tensor]]]":
        """Start rows on their way through layers `first` .. `last`; what it gives waits for what comes back."""
        self.check()
        stretches = list[tuple[int, list[Version]]]()
        for index in range(first, last):
            version = index, sections[index + 1]
            at = self.where[version]
            if not stretches or stretches[-1][0] != at:
                stretches.append((at, []))
            stretches[-1][1].append(version)
        if not stretches:
            return lambda: (x, {})
        carried: Any = raw(x), {}
        told: PackedRows = rows.numbers.tobytes(), rows.width, [tuple(it) for it in rows.segments]
        taps = tuple(tap for tap in rows.taps if tap.startswith("input:"))
        with self.guarded():
            packed = self.ray.put(told) if len(stretches) > 1 else told
            for at, versions in stretches:
                carried = self.actors[at].run.remote(carried, packed, tuple(versions), taps)
        self.calls += len(stretches)
        self.hops += len(stretches) + 1

        def come() -> tuple[Tensor, dict[str, Tensor]]:
            found: Carried = self.got(carried)
            return hidden_of(found[0], x), {tap: hidden_of(it, x) for tap, it in found[1].items()}

        return come

    def count(self, decoder: LayeredDecoder, rows: Rows) -> None:
        """Count rows by their chains."""
        if rows.program.first:
            return
        for segment in rows.segments:
            its = decoder if decoder.chains is None else decoder.chains.of(segment)
            self.passed[its.weights.sections[1:-1]] += segment.rows

    def tell(self, what: str, *args: Any) -> None:
        """Tell all that hold something; nobody waits, for calls of one process are done in order."""
        self.check()
        with self.guarded():
            for actor in self.busy:
                getattr(actor, what).remote(*args)

    def read(self, slots: list[int]) -> bytes:
        self.check()
        return b"".join(self.got(ref) for ref in [actor.read.remote(slots) for actor in self.busy])

    def write(self, slots: list[int], packed: bytes) -> None:
        self.check()
        check_bytes(packed, sum(self.sizes) * len(slots))
        begun = 0
        for actor, size in zip(self.busy, self.sizes, strict=True):
            end = begun + size * len(slots)
            self.got(actor.write.remote(slots, packed[begun:end]))
            begun = end

    def check(self) -> None:
        if self.broken:
            raise LostError(self.broken)

    def got(self, ref: Any, most: float | None = None) -> Any:
        """What a process answers."""
        with self.guarded():
            return self.ray.get(ref, timeout=LAYER_SILENCE_S if most is None else most)

    @contextlib.contextmanager
    def guarded(self) -> Any:
        """Where a process fails, or this one is interrupted, none can go on."""
        try:
            yield
        except LostError:
            raise
        except self.ray.exceptions.GetTimeoutError:
            raise self.lost(f"A process of the layers did not answer for {LAYER_SILENCE_S:g} s") from None
        except self.ray.exceptions.RayTaskError as error:
            cause = " ".join(str(error.cause).split()) or type(error.cause).__name__
            raise self.lost(f"A process of the layers failed ({cause.rstrip('.')})") from error
        except (self.ray.exceptions.RayError, ValueError, OSError) as error:
            raise self.lost(self.gone(error)) from error
        except BaseException:
            self.lost("A pass over the processes of the layers was interrupted")
            raise

    def gone(self, error: Exception) -> str:
        """Which process has ended."""
        which = next((i for i, it in enumerate(self.actors) if it._actor_id.hex() in str(error)), None)
        return f"{'A process' if which is None else f'Process {which} of {self.count_of}'} of the layers has ended"

    def lost(self, why: str) -> LostError:
        """All are ended."""
        self.broken = f"{why}; start again."
        self.close()
        return LostError(self.broken)

    def placed(self) -> list[str]:
        """A line for each process: its blocks."""
        found = []
        for at in range(self.count_of):
            mine = [it for it in self.blocks if self.where[it.versions[0]] == at]
            words = ", ".join(it.name for it in sorted(mine, key=lambda it: (it.first, it.name)))
            found.append(f"process {at}: {words or 'nothing'}")
        return found


def end_hosts(ray: Any, actors: list[Any]) -> None:
    for actor in actors:
        with contextlib.suppress(Exception):
            ray.kill(actor)
    end_ray(ray)


def hidden_of(packed: bytes, like: Tensor) -> Tensor:
    return torch.frombuffer(bytearray(packed), dtype=like.dtype).view(-1, like.shape[1])


def layered(spec: ModelSpec, weights: Weights, packing: Any, identity: str, group: LayerGroup) -> LayeredDecoder:
    """A decoder whose layers are the group's."""
    made = LayeredDecoder(spec, weights, packing, identity=identity)
    made.group = made.spread = group
    made.abilities = made.abilities & {"embed", "lend", "join"}
    bare, alone = replace(spec, layers=()), replace(weights, blocks=[], sections=())
    made.ends = NativeDecoder(bare, alone, packing) if packing.native else Decoder(bare, alone, packing)
    return made


def check_layers(spec: ModelSpec, where: Path) -> None:
    """RefusalError unless the layers of this model can be in several processes."""
    shares = any(it.shares is not None for it in spec.attentions)
    if spec.recurrent or spec.sinks or spec.token_width or spec.layer_scale or shares or spec.multipliers is not None:
        raise RefusalError(
            f"layer_processes takes models whose layers keep keys and values alone, and {where} ({spec.family}) is "
            "none; leave it out."
        )


def place_model(
    path: Path, tunes: Mapping[str, Path], count: int, form: Mapping[str, Any], rule: str, counts: Path | None
) -> LayeredDecoder:
    """Load a checkpoint and its fine-tunes, their layers over `count` processes. `form`: keyword arguments of
    `load_model`. Raises RefusalError, InputError, CapacityError, or LostError where a process ends."""
    known = {} if counts is None else read_counts(counts)
    whole = {name: load_model(at, **form) for name, at in {"base": path, **tunes}.items()}
    base = whole["base"]
    check_layers(base.spec, path)
    if not base.weights.sections:
        raise RefusalError("This model's weights have no digests; remove its packed weights (paceline rm packed).")
    for name, one in whole.items():
        if one is not base:
            check_alike(f"The fine-tune {name!r}", one, base)
    chains = {name: one.weights.sections[1:-1] for name, one in whole.items()}
    blocks = blocks_of(chains, {"base": path, **tunes}, count)
    each = base.weights.bytes // len(base.spec.layers)
    places = placed_blocks(blocks, demands_of(chains, blocks, known), count, each, rule)
    facts = sorted((block.name, places.at[block.name]) for block in blocks)
    identity = hashlib.sha256(f"{base.identity}{facts}".encode()).hexdigest()[:32]
    group = LayerGroup(count)
    try:
        group.place(blocks, places)
        for name, one in whole.items():
            nobody: Any = [None] * len(base.spec.layers)
            weights = replace(one.weights, blocks=nobody)
            at = {"base": path, **tunes}[name]
            group.models[at] = layered(base.spec, weights, base.packing, identity if one is base else "", group)
        whole.clear()
        del base, one
        group.load(form)
    except BaseException:
        group.close()
        raise
    group.kept, group.counts_at = known, counts
    for line in group.placed():
        log.info("%s", line)
    return group.models[path]


def blocks_of(chains: Mapping[str, Layers], paths: Mapping[str, Path], count: int) -> list[LayerBlock]:
    """Runs of layers that the same models have, each of at most a `count`-th of all layers, so that each process can
    have some."""
    total = len(next(iter(chains.values())))
    most = max(1, -(-total // count))
    found, done = list[LayerBlock](), set[Version]()
    for name, layers in chains.items():
        who = [frozenset(other for other, its in chains.items() if its[i] == layers[i]) for i in range(total)]
        first = 0
        for index in range(1, total + 1):
            if index < total and who[index] == who[first] and index - first < most:
                continue
            block = LayerBlock(f"{name}[{first}:{index}]", first, layers[first:index], paths[name])
            if block.versions[0] not in done:
                done.update(block.versions)
                found.append(block)
            first = index
    return found


def demands_of(chains: Mapping[str, Layers], blocks: Sequence[LayerBlock], known: Mapping[Layers, int]) -> list[Demand]:
    """How often each chain is asked for: as counted, or all alike. Shares, which add up to 1."""
    at = {version: block.name for block in blocks for version in block.versions}
    asked = {layers: rows for layers, rows in known.items() if all((i, it) in at for i, it in enumerate(layers))}
    asked = asked or dict.fromkeys(chains.values(), 1)
    total = sum(asked.values())
    return [
        Demand(tuple(dict.fromkeys(at[i, it] for i, it in enumerate(layers))), rows / total)
        for layers, rows in asked.items()
        if rows
    ]


def placed_blocks(
    blocks: Sequence[LayerBlock], demands: Sequence[Demand], count: int, each: int, rule: str
) -> BlockPlaces:
    """Places of the blocks: each process gets no more than its share of bytes and of work, and a quarter, or as little
    more as is needed. `each`: bytes of a layer."""
    total = sum(len(block.layers) for block in blocks)
    longest = max(sum(len(it.layers) for it in blocks if it.name in demand.chain) for demand in demands)
    zoo = {it.name: ZooBlock(it.name, each * len(it.layers), len(it.layers) / longest) for it in blocks}
    slack = LAYER_SLACK
    while True:
        room = [ZooDevice(0, int(each * total / count * slack)) for _ in range(count)]
        scaled = [replace(it, rate=it.rate * count / slack) for it in demands]
        try:
            return LAYER_RULES[rule](zoo, scaled, room, 1.0, 1)
        except CapacityError:
            slack *= 1.1


def read_counts(path: Path) -> dict[Layers, int]:
    """Rows by chain, of a file that `write_counts` wrote; none where there is no file yet."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no regular file")
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["layout"] != COUNTS_LAYOUT:
            raise ValueError("its layout is another")
        made = {tuple(map(str, it["layers"])): int(it["rows"]) for it in found["chains"]}
        if any(rows < 0 for rows in made.values()):
            raise ValueError("a count is below 0")
        return made
    except FileNotFoundError:
        if not path.absolute().parent.is_dir():
            raise InputError(f"There is no directory {path.absolute().parent} for {path.name}.") from None
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is no file of layer counts ({error}); give another name.") from None


def write_counts(group: LayerGroup) -> None:
    """Add what was counted to the file."""
    if (path := group.counts_at) is None:
        return
    both = Counter(group.kept) + group.passed
    chains = [{"layers": layers, "rows": rows} for layers, rows in sorted(both.items())]
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps({"layout": COUNTS_LAYOUT, "chains": chains}), encoding="utf-8")
    part.replace(path)
