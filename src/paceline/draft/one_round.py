"""A step of a drafter as a run of one round: its native proposer, called once."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from paceline.core.proposer import Draft, ProposerTable
from paceline.core.warp import Warp
from paceline.native.build import library
from paceline.native.structs import CDraft, CTurn, warped


class Opening(NamedTuple):
    """One text before the round."""

    known: int
    """Tokens of the text."""
    room: int
    """Deepest node."""
    most: int
    """Most nodes."""
    last: int
    """The text's last token."""
    warp: Warp


def one_round(table: ProposerTable, openings: Sequence[Opening]) -> list[Draft]:
    """Draft for all texts of the proposer, in their order."""
    found = library()
    assert found is not None, "a table is made only where the library is"
    turns = (CTurn * len(openings))(
        *(
            CTurn(place, 0, it.room, it.most, it.known - 1, it.last, warped(it.warp))
            for place, it in enumerate(openings)
        )
    )
    drafts = (CDraft * len(openings))()
    state = ctypes.byref(table.state)
    getattr(found, f"{table.name}_propose")(state, ctypes.c_int64(len(openings)), turns, drafts)
    if table.done is not None:
        table.done()
    getattr(found, f"{table.name}_done")(state)
    return [(draft.token[: draft.count], draft.parent[: draft.count]) for draft in drafts]
