"""States of recurrent layers as the native library reads and writes them (recurrence.h)."""

from array import array
from typing import Any

from torch import Tensor

from paceline.model.packed import address
from paceline.model.recurrent import DeltaSteps, GatedConv, MambaSteps, Recurrence
from paceline.model.spec import Mamba
from paceline.model.state import Scan, States
from paceline.native.structs import CRecurrence, CScan

KIND_CONVOLVED, KIND_DECAYED, KIND_DELTA_RULE = range(3)
"""Kinds, in the order of base.h."""


def recurrence_of(it: GatedConv | Recurrence, hidden: int) -> tuple[CRecurrence, Any]:
    """A mixer as the library takes it, and what must outlive it."""
    held: list[Tensor] = []

    def wide(part: Tensor | None) -> int | None:
        if part is None:
            return None
        held.append(part.float().contiguous())
        return address(held[-1])

    form = it.form
    if isinstance(it, GatedConv):
        c = CRecurrence(
            kind=KIND_CONVOLVED, length=form.length, channels=hidden, record=hidden, width=hidden,
            kernel=wide(it.weight), conv_bias=wide(it.bias),
        )  # fmt: skip
        return c, held
    form, norm, steps = it.form, it.norm, it.steps
    assert isinstance(steps, MambaSteps | DeltaSteps)
    scanned = isinstance(form, Mamba)
    groups, _, head_dim, key_dim = form.matrix
    each = form.width if norm is None else form.width // norm.groups
    low, high = form.limits if isinstance(form, Mamba) else (0.0, 0.0)
    c = CRecurrence(
        kind=KIND_DECAYED if scanned else KIND_DELTA_RULE, length=form.length, channels=form.channels,
        record=form.record, width=form.width, heads=form.heads, head_dim=head_dim, groups=groups, key_dim=key_dim,
        tiled=not isinstance(form, Mamba) and form.tiled, norm_groups=1 if norm is None else norm.groups,
        norm_rows=1 if norm is None else norm.weight.numel() // each, gate_first=norm is not None and norm.first,
        low=low, high=high, kernel=wide(it.kernel), conv_bias=wide(it.bias), rate=wide(steps.rate),
        offset=wide(steps.offset), through=wide(it.through), norm=wide(None if norm is None else norm.weight),
    )  # fmt: skip
    return c, held


class NativeStates:
    """The recurrent layers of a native decoder, in order, with where their states lie."""

    def __init__(self, layers: list[CRecurrence]) -> None:
        self.layers = layers

    def scan(self, scan: Scan) -> tuple[CScan, Any]:
        """A pass for the library, with room for what it will leave; and what must outlive it."""
        states, count, own = scan.states, 0, 0
        texts, parents, anchors, places = (array("q") for _ in range(4))
        for part in scan.parts:
            begin = -1 if part.begin is None else part.begin
            texts.extend((begin, part.first, part.known, part.given, len(part.parents), own, count, len(parents)))
            texts.extend((len(anchors), len(part.anchors)))
            parents.extend(part.parents)
            anchors.extend(row for row, _ in part.anchors)
            places.extend(place for _, place in part.anchors)
            own, count = own + part.given + len(part.parents), count + part.known
        self.reach(states, scan)
        lists = [texts, array("q", scan.replayed), parents, anchors, places, array("q", scan.kept)]
        lists.append(array("q", scan.places))
        where = [each.buffer_info()[0] for each in lists]
        return CScan(len(scan.parts), scan.count, len(scan.kept), *where), lists

    def reach(self, states: States, scan: Scan) -> None:
        """Make room, and tell the library where all lies."""
        most = max((place for part in scan.parts for _, place in part.anchors), default=-1)
        for index, (c, pool) in enumerate(zip(self.layers, states.pools)):
            pool.reach(most)
            records = states.reach(index, scan.places)
            at = [each.buffer_info()[0] for each in pool.addresses]
            c.records, c.tails = address(records), at[0]
            if len(at) > 1:
                c.matrices = at[1]
