"""Fine-tunes of a decoder, and chains of their layers, computed together.

Rows of a pass may belong to different chains. Where chains have the same layers, their rows go through them in one
batch; where they differ, each goes through its own. So a pass is a sequence of stages, of layers over which the chains
part in the same way, and each stage has a call for each group of chains. The layers are those of ordinary decoders,
one a chain, which share every matrix that is equal (parts.py) and one pool of keys and values; native ones and those in
PyTorch are joined in the same way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from torch import Tensor

from paceline.core.errors import InputError, RefusalError
from paceline.core.rows import Out, Rows, Segment
from paceline.model.chain import Chain, check_chain, shown
from paceline.model.lora import LoraPair, LoraWeights
from paceline.model.lora_config import layer_of
from paceline.model.spans import select

if TYPE_CHECKING:
    from paceline.model.decoder import Decoder


@dataclass(frozen=True, slots=True)
class ChainWeights:
    """A chain that can be installed, and what adapters of the base add to its layers."""

    decoder: "Decoder"
    """Decoder of this chain alone."""
    digest: str
    """Digest of the layers: chains with equal digests compute the same."""
    delta: LoraWeights | None = None

    @property
    def rank(self) -> int:
        return 0 if self.delta is None else self.delta.rank


@dataclass(slots=True)
class ChainStage:
    """Layers through which groups of texts go apart from one another: [(decoder, its texts)]."""

    first: int
    last: int
    groups: "list[tuple[Decoder, list[int]]]"


class ChainTable:
    """The chains of a decoder by slot. Slots are those of adapters, too (`Segment.adapter`)."""

    def __init__(self, base: "Decoder") -> None:
        self.base = base
        self.decoders: dict[int, Decoder] = {}
        self.passes = self.parted = 0
        """Calls of decoders for stages of mixed passes, and those of them that were for a part of the rows."""

    def install(self, slot: int, chain: ChainWeights) -> None:
        chain.decoder.share_pool(self.base)
        self.decoders[slot] = chain.decoder

    def remove(self, slot: int) -> None:
        self.decoders.pop(slot, None)

    def of(self, segment: Segment) -> "Decoder":
        return self.decoders.get(segment.adapter, self.base)

    def alone(self, rows: Rows) -> "Decoder | None":
        """The decoder of all these rows, if they have one."""
        found = {id(it): it for it in map(self.of, rows.segments)}
        return next(iter(found.values())) if len(found) == 1 else None

    def forward(self, rows: Rows) -> Out:
        """As `Decoder.forward`, each text by its own chain."""
        if (one := self.alone(rows)) is not None:
            return self.ready(one).computed(rows)
        walk = StageWalk(rows)
        for stage in self.stages(rows):
            coming = []
            for decoder, texts in stage.groups:
                self.passes += 1
                self.parted += len(texts) < len(rows.segments)
                coming.append(walk.begin(self.ready(decoder), stage, texts))
            for finish in coming:
                finish()
            walk.settle()
        return walk.out(self.base)

    def ready(self, decoder: "Decoder") -> "Decoder":
        """The decoder with the base's adapters as they are now."""
        if decoder is not self.base:
            decoder.take_adapters(self.base)
        return decoder

    def stages(self, rows: Rows) -> list[ChainStage]:
        """Where the texts of a pass go together."""
        program, layers = rows.program, len(self.base.spec.layers)
        last = layers if program.last is None else program.last
        whose = [self.of(segment) for segment in rows.segments]
        if program.skip or program.groups or last <= program.first:
            return [ChainStage(program.first, last, parted(self.base, whose, [id(it) for it in whose]))]
        found = list[ChainStage]()
        for layer in range(program.first, last):
            names = [it.weights.sections[layer + 1] for it in whose]
            if layer == program.first and rows.hidden is None:
                names = [name + it.weights.sections[0] for name, it in zip(names, whose)]
            if layer == last - 1 and program.head:
                names = [name + it.weights.sections[-1] for name, it in zip(names, whose)]
            groups = parted(self.base, whose, names)
            if found and [texts for _, texts in found[-1].groups] == [texts for _, texts in groups]:
                found[-1].last = layer + 1
                continue
            found.append(ChainStage(layer, layer + 1, groups))
        return found


def parted(base: "Decoder", whose: "Sequence[Decoder]", names: Sequence[object]) -> "list[tuple[Decoder, list[int]]]":
    """Texts with equal names together, and who computes them: the base, where it is one of them."""
    groups = dict[object, list[int]]()
    for text, name in enumerate(names):
        groups.setdefault(name, []).append(text)
    return [(next((base for i in t if whose[i] is base), whose[t[0]]), t) for t in groups.values()]


class StageWalk:
    """One pass on its way up, of texts that part and meet."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.state = rows.hidden
        self.next: Tensor | None = None
        self.logits: Tensor | None = None
        self.taps: dict[str, Tensor] = {}
        want = rows.numbers[len(rows.numbers) - rows.wanted :]
        self.line = {row: line for line, row in enumerate(want)}

    def begin(self, decoder: "Decoder", stage: ChainStage, texts: Sequence[int]) -> Callable[[], None]:
        """Start some texts through a stage; what it gives ends it."""
        rows, program, mine = self.rows, self.rows.program, {*texts}
        kept = [0 if i in mine else segment.rows for i, segment in enumerate(rows.segments)]
        spans = [range(rows.segments[i].start, rows.segments[i].start + rows.segments[i].rows) for i in texts]
        whose = [row for span in spans for row in span]
        layers = len(decoder.spec.layers)
        ends = stage.last == (layers if program.last is None else program.last)
        head = program.head and ends
        want = [place for place, row in enumerate(whose) if head and row in self.line]
        taps = tuple(tap for tap in rows.taps if self.runs(decoder.place(tap), stage, head))
        part = replace(
            select(rows, kept, want),
            program=replace(program, first=stage.first, last=stage.last, head=head),
            taps=taps,
            hidden=None if self.state is None else self.state[whose],
        )
        coming = decoder.begun(part)
        return lambda: self.take(coming(), whose, want)

    def take(self, out: Out, whose: Sequence[int], want: Sequence[int]) -> None:
        """What a stage gives for these rows."""
        rows = self.rows
        for tap, states in out.taps.items():
            if tap not in self.taps:
                self.taps[tap] = states.new_zeros(rows.count, states.shape[1])
            self.taps[tap][whose] = states
        if out.leave is not None:
            if self.next is None:
                self.next = out.leave.new_zeros(rows.count, out.leave.shape[1])
            self.next[whose] = out.leave
        if want:
            if self.logits is None:
                self.logits = out.logits.new_zeros(len(self.line), out.logits.shape[1])
            self.logits[[self.line[whose[place]] for place in want]] = out.logits

    def settle(self) -> None:
        """All texts have passed a stage."""
        if self.next is not None:
            self.state, self.next = self.next, None

    def out(self, base: "Decoder") -> Out:
        logits = base.no_logits() if self.logits is None else self.logits
        return Out(logits, self.taps, None if self.rows.program.head else self.state)

    @staticmethod
    def runs(place: int, stage: ChainStage, head: bool) -> bool:
        """Is a hidden state one of this stage?"""
        return head if place < 0 else stage.first <= place < stage.last


SHAPE_WORDS = {
    "hidden": "width", "vocab": "vocabulary", "heads": "number of heads", "kv_heads": "number of K/V heads",
    "head_dim": "size of a head", "family": "family", "ffn": "feed-forward width",
}  # fmt: skip


def check_alike(name: str, one: "Decoder", base: "Decoder") -> None:
    """Raise RefusalError unless a model has the shape of the base, so that their layers can stand in one chain."""
    mine, its = one.spec, base.spec
    for field, word in SHAPE_WORDS.items():
        if getattr(mine, field) != getattr(its, field):
            raise RefusalError(
                f"{name} has another {word} ({getattr(mine, field)}) than the model ({getattr(its, field)}), so their "
                "layers cannot stand in one chain; serve it by --models."
            )
    if len(mine.layers) != len(its.layers):
        raise RefusalError(
            f"{name} has {len(mine.layers)} layers, but the model has {len(its.layers)}: they are no fine-tunes of one "
            "base; serve it by --models."
        )
    if [it.rope for it in mine.attentions] != [it.rope for it in its.attentions]:
        raise RefusalError(f"{name} has another position scheme than the model; serve it by --models.")
    if replace(mine, max_len=0, eos=()) != replace(its, max_len=0, eos=()):
        raise RefusalError(f"{name} differs from the model in its config; serve it by --models.")
    if one.packing.describe() != base.packing.describe():
        raise RefusalError(
            f"{name} lies in memory as {one.packing.describe()}, the model as {base.packing.describe()}."
        )


def check_base(base: "Decoder") -> None:
    """Raise RefusalError where the layers of this model cannot be parted."""
    spec, apart = base.spec, base.spread is not None and not base.spread.chains
    if spec.recurrent or spec.sinks or spec.token_width or apart or spec.multipliers is not None:
        raise RefusalError(f"A {spec.family} model of this kind serves no zoo yet; serve its fine-tunes by --models.")
    if not base.weights.sections:
        raise RefusalError("This model's weights have no digests; remove its packed weights (paceline rm packed).")


def composed(
    base: "Decoder", models: "Mapping[str, Decoder]", chain: Chain, deltas: Mapping[str, LoraWeights] | None = None
) -> ChainWeights:
    """A chain of these models' layers; a name in `deltas` stands for the base with this adapter."""
    check_chain(chain, len(base.spec.layers))
    whose, given = list["Decoder"](), deltas or {}
    for link in chain:
        if link.model not in models and link.model not in given:
            known = ", ".join(sorted({*models, *given}))
            raise InputError(f"There is no model {link.model[:100]!r} for a chain here; known: {known}.")
        whose += [models.get(link.model, base)] * (link.last - link.first)
    delta = merged_delta(chain, given)
    blocks = [
        (base if base.weights.sections[i + 1] == it.weights.sections[i + 1] else it).weights.blocks[i]
        for i, it in enumerate(whose)
    ]
    bottom, top = whose[0], whose[-1]
    sections = (bottom.weights.sections[0], *(it.weights.sections[i + 1] for i, it in enumerate(whose)),
                top.weights.sections[-1])  # fmt: skip
    digest = sha256(repr((sections, None if delta is None else delta.digest)).encode()).hexdigest()[:32]
    weights = replace(
        top.weights, embedding=bottom.weights.embedding, blocks=blocks, sections=sections, bytes=base.weights.bytes
    )
    return ChainWeights(base.alike(weights, digest), digest, delta)


def merged_delta(chain: Chain, deltas: Mapping[str, LoraWeights]) -> LoraWeights | None:
    """Delta of the adapters, for the layers for which the chain names them."""
    modules, names, most, paired = dict[str, LoraPair](), list[str](), 0, set[bool]()
    for link in chain:
        if (found := deltas.get(link.model)) is None:
            continue
        mine = {name: pair for name, pair in found.modules.items() if link.first <= layer_of(name) < link.last}
        modules.update(mine)
        names.append(f"{found.digest}{shown((link._replace(model=''),))}")
        most = max(most, found.rank)
        paired.add(found.interleaved)
    if not modules:
        return None
    if len(paired) > 1:
        raise RefusalError("A chain cannot have adapters of GGUF files next to those of PEFT's layout.")
    return LoraWeights(modules, sha256(repr(names).encode()).hexdigest()[:32], most, *paired)
