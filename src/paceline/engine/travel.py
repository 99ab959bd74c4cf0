"""Samples that leave an engine as bytes and enter another one, all of them or none. For the engine's thread."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.core.operations import Park, Resume
from paceline.core.request import Request

if TYPE_CHECKING:
    from paceline.engine.loop import Engine


def leave(engine: "Engine", requests: Sequence[Request]) -> list[bytes | None]:
    """Park the requests that have not ended; None for each that has. InputError or RefusalError, and all go on."""
    going_on = {r.id for r in requests if r.finish is None and r.id in engine.session.requests}
    for number in sorted(going_on):
        engine.operations.check_parkable(number)
    return [engine.apply(Park(r.id)) if r.id in going_on else None for r in requests]


def enter(engine: "Engine", packed: Sequence[bytes | None], clients: Sequence[str] = ()) -> list[Request]:
    """Resume what is not None. `clients`: whose each is, where that is known. InputError, RefusalError or
    CapacityError, and none of them is there then."""
    requests = list[Request]()
    try:
        for one, client in zip(packed, clients or [""] * len(packed), strict=True):
            requests += [] if one is None else engine.apply(Resume(one, client))
    except BaseException:
        for request in requests:
            engine.abort(request)
        raise
    return requests
