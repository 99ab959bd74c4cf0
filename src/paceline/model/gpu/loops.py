"""Several passes of a decoder on a GPU without a stop between them: runs of plain decoding, chains of a draft model.

A token is drawn on the device, and the next pass takes it from there. The host reads what was drawn one pass late,
while the next one computes: a text that has ended costs one pass in vain. Where a proposer drafts on the host, each
round is one pass and one transfer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.forest import MAX_CANDIDATES
from paceline.core.proposer import Continuation, Draft, Proposer, Turn
from paceline.core.result import Round
from paceline.core.rows import Drawn, Out, Rows, RowsBuilder, Segment
from paceline.core.warp import Warp

Draw = Callable[[Tensor, Sequence[Warp], Sequence[int]], Tensor]
"""Logits [N, V], temperatures with filters, and keys -> tokens [N] on their device, -1 where none can be drawn."""


class Passes(Protocol):
    """The part of a decoder that is needed."""

    device: torch.device

    def forward(self, rows: Rows) -> Out:
        """A pass."""

    def move(self, source: list[int], target: list[int]) -> None:
        """Copy slots."""


def fetched(numbers: Tensor) -> "Callable[[], list[list[float]]]":
    """Bring numbers to the host without a stop; what waits for them alone."""
    if not numbers.is_cuda:
        return numbers.tolist
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def read() -> list[list[float]]:
        arrived.synchronize()
        found: list[list[float]] = host.tolist()
        return found

    return read


@dataclass(eq=False, slots=True)
class Going:
    """A text on its way: `at`, the place of its next row, and what it was given and has got."""

    number: int
    segment: Segment
    table: list[int]
    at: int
    tokens: list[int] = field(default_factory=list)
    ended: bool = False
    rounds: list[Round] = field(default_factory=list)
    states: dict[str, list[Tensor]] = field(default_factory=dict)

    def slots(self, first: int, count: int, size: int) -> list[int]:
        return [self.table[place // size] * size + place % size for place in range(first, first + count)]


def lines_of(rows: Rows) -> list[Going]:
    count, width = rows.count, rows.width
    tables = rows.numbers[4 * count : 4 * count + len(rows.segments) * width]
    return [
        Going(i, segment, tables[i * width : (i + 1) * width].tolist(), segment.base + segment.rows)
        for i, segment in enumerate(rows.segments)
    ]


def following(lines: Sequence[Going], tokens: Tensor, size: int, rows: Rows) -> Rows:
    """The pass over the token that each of these texts has just drawn, which the host does not know."""
    builder = RowsBuilder()
    for line in lines:
        shift, adapter = line.segment.shift, line.segment.adapter
        builder.add([0], line.slots(line.at, 1, size), line.table, line.at, shift=shift, adapter=adapter)
        line.at += 1
    return replace(builder.build(rows.device, rows.taps), tokens=tokens.clamp(min=0))


def run(
    model: Passes, draw: Draw, size: int, rows: Rows, passes: int, texts: Sequence[Continuation],
    proposer: Proposer | None,
) -> Out:  # fmt: skip
    """`core.component.Runs`, for a pool with blocks of `size`."""
    lines = lines_of(rows)
    error = None
    if proposer is None:
        run_plainly(model, draw, size, rows, passes, texts, lines)
    else:
        error = run_drafted(model, draw, size, rows, passes, texts, lines, proposer)
    taps = {tap: torch.stack([state for line in lines for state in line.states[tap]]) for tap in rows.taps}
    drawn = [Drawn(line.tokens, line.rounds) for line in lines]
    return Out(torch.empty(0), taps, drawn=drawn, error=error)


def run_plainly(
    model: Passes, draw: Draw, size: int, rows: Rows, passes: int, texts: Sequence[Continuation], lines: list[Going]
) -> None:
    """Each pass begins before the tokens of the one before are known to the host."""
    going, out = lines, model.forward(rows)
    for step in range(passes):
        now = going
        keys = [texts[line.number].keys[step] if texts[line.number].keys else 0 for line in now]
        tokens = draw(out.logits, [texts[line.number].warp for line in now], keys)
        read, states = fetched(tokens[:, None]), out.taps
        going = [line for line in now if not line.ended and texts[line.number].most > step + 1]
        if going and step + 1 < passes:
            some = tokens if len(going) == len(now) else tokens[[now.index(line) for line in going]]
            out = model.forward(following(going, some, size, rows))
        for place, (line, (token,)) in enumerate(zip(now, read())):
            if line.ended:
                continue
            line.tokens.append(int(token))
            line.rounds.append(Round.of([], 0))
            for tap in rows.taps:
                line.states.setdefault(tap, []).append(states[tap][place])
            text = texts[line.number]
            line.ended = token < 0 or token in text.ends or len(line.tokens) == text.most
        if all(line.ended for line in lines):
            return


def run_drafted(
    model: Passes, draw: Draw, size: int, rows: Rows, passes: int, texts: Sequence[Continuation], lines: list[Going],
    proposer: Proposer,
) -> Exception | None:  # fmt: skip
    """Rounds of a draft on the host, a pass, and one transfer. What the proposer raised, which ends its drafts."""
    places, error = {text: place for place, text in enumerate(proposer.texts)}, None
    first = {line.number: int(rows.numbers[line.segment.start]) for line in lines}
    for _ in range(passes):
        live = [line for line in lines if not line.ended]
        if not live:
            break
        turns, drafts = dict[int, Turn](), dict[int, Draft]()
        for line in live:
            room = texts[line.number].most - len(line.tokens) - 1
            if line.number in places and room > 0 and error is None:
                hidden = {tap: torch.stack(states) for tap, states in line.states.items()}
                text, most = texts[line.number], min(room, MAX_CANDIDATES)
                turns[line.number] = Turn(places[line.number], list(line.tokens), text, room, most, hidden)
        if turns:
            try:
                drafts = dict(zip(turns, proposer.propose([*turns.values()])))
            except Exception as raised:
                error = raised
        builder = RowsBuilder()
        for line in live:
            tokens, parents = drafts.get(line.number, ((), ()))
            root, start = line.tokens[-1] if line.tokens else first[line.number], line.at - 1
            depths, words = below(parents)
            builder.add(
                [root, *tokens], line.slots(start, 1 + len(tokens), size), line.table, start, depths=depths,
                words=words, want=[*range(1 + len(tokens))], shift=line.segment.shift, adapter=line.segment.adapter,
            )  # fmt: skip
        made = builder.build(rows.device, rows.taps)
        out = model.forward(made)
        warps, keys = list[Warp](), list[int]()
        for line in live:
            text, depths = texts[line.number], [0, *below(drafts.get(line.number, ((), ()))[1])[0]]
            warps += [text.warp] * len(depths)
            keys += [text.keys[len(line.tokens) + depth] if text.keys else 0 for depth in depths]
        drawn = [int(token) for (token,) in fetched(draw(out.logits, warps, keys)[:, None])()]
        sources, targets, paths = list[int](), list[int](), list[list[int]]()
        for line, segment in zip(live, made.segments):
            path = accept(line, texts[line.number], drafts.get(line.number, ((), ())), drawn, segment, out)
            slots = line.slots(line.at, segment.nodes, size)
            pairs = [(slots[node], slots[depth]) for depth, node in enumerate(path) if node != depth]
            sources += [source for source, _ in pairs]
            targets += [target for _, target in pairs]
            line.at += 1 + len(path)
            if line.number in turns:
                paths.append(path)
        model.move(sources, targets)
        if turns and error is None:
            proposer.kept([*turns.values()], paths)
    return error


def accept(line: Going, text: Continuation, draft: Draft, drawn: list[int], segment: Segment, out: Out) -> list[int]:
    """Take what was drawn along the nodes that carry it; these nodes."""
    tokens, parents = draft
    node, path = -1, list[int]()
    while True:
        row = segment.start + 1 + node
        token = drawn[row]
        line.tokens.append(token)
        for tap, states in out.taps.items():
            line.states.setdefault(tap, []).append(states[row])
        line.ended = token < 0 or token in text.ends or len(line.tokens) == text.most
        hit = next((j for j, parent in enumerate(parents) if parent == node and tokens[j] == token), None)
        if hit is not None:
            path.append(hit)
            node = hit
        if line.ended or hit is None:
            break
    depths = below(parents)[0]
    line.rounds.append(Round.of([depths.count(depth + 1) for depth in range(max(depths, default=0))], len(path)))
    return path


def below(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Depths and tree words of nodes with these parents."""
    depths, words = list[int](), list[int]()
    for node, parent in enumerate(parents):
        depths.append(1 if parent < 0 else depths[parent] + 1)
        words.append((0 if parent < 0 else words[parent]) | 1 << node)
    return depths, words


def chain(
    model: Passes, draw: Draw, size: int, rows: Rows, most: Sequence[int], warp: Sequence[Warp],
    keys: Sequence[Sequence[int]], worth: Sequence[float], share: float, sharp: float,
) -> list[list[int]]:  # fmt: skip
    """`draft.model.Chains.chain`."""
    lines = lines_of(rows)
    chances = torch.ones(len(lines), dtype=torch.float64, device=model.device)
    going, out = lines, model.forward(rows)
    for step in range(max(most)):
        now = going
        warps = [warp[line.number] for line in now]
        tokens = draw(out.logits, warps, [keys[line.number][step] if keys[line.number] else 0 for line in now])
        greedy = torch.tensor([it.greedy for it in warps], device=model.device)
        chances = chances * torch.where(greedy, sureness(out.logits, sharp), share)
        read = fetched(torch.stack((tokens.to(torch.float64), chances), 1))
        going = [line for line in now if not line.ended and most[line.number] > step + 1]
        if going:
            if len(going) < len(now):
                kept = torch.tensor([now.index(line) for line in going], device=model.device)
                tokens, chances = tokens[kept], chances[kept]
            out = model.forward(following(going, tokens, size, rows))
        for line, (token, chance) in zip(now, read()):
            if not line.ended:
                line.tokens += [int(token)] if token >= 0 else []
                line.ended = token < 0 or len(line.tokens) == most[line.number] or chance < worth[line.number]
        if all(line.ended for line in lines):
            break
    return [line.tokens for line in lines]


def sureness(logits: Tensor, sharp: float) -> Tensor:
    """Probability of each row's likeliest token at temperature `sharp`, float64 [N]."""
    return 1 / ((logits - logits.amax(-1, keepdim=True)) / sharp).exp().sum(-1, dtype=torch.float64)
