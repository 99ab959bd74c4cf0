"""Schedules and orders by name."""

from collections.abc import Callable

from paceline.core.errors import InputError, RefusalError
from paceline.core.params import SamplingParams
from paceline.core.plugins import joined
from paceline.schedule import Order, SchedulePolicy
from paceline.schedule.chunked import Chunked, Forecast
from paceline.schedule.decode_first import DecodeFirst
from paceline.schedule.exspec import Grouped, Shape
from paceline.schedule.fair import Fair
from paceline.schedule.orders import deadline, fcfs, priority
from paceline.schedule.prefill_first import PrefillFirst

ORDERS: dict[str, Callable[[], Order]] = {
    "fcfs": lambda: fcfs,
    "priority": lambda: priority,
    "deadline": lambda: deadline,
    "fair": Fair,
}
BASELINES: dict[str, Callable[[Order, int], SchedulePolicy]] = {
    "prefill_first": PrefillFirst,
    "decode_first": DecodeFirst,
}
CHUNKED = "chunked"
SCHEDULES = (CHUNKED, *BASELINES)
"""Our own; `baselines` knows those of installed packages, too."""


def orders() -> dict[str, Callable[[], Order]]:
    """Ours and those of installed packages (entry points `paceline.orders`)."""
    return joined("order", ORDERS)


def baselines() -> dict[str, Callable[[Order, int], SchedulePolicy]]:
    """Schedules other than chunked: ours and those of installed packages (entry points `paceline.schedules`)."""
    return joined("schedule", BASELINES)


def check(schedule: str, order: str, tbt_target_ms: float | None = None, group_size: int | None = None) -> None:
    """InputError for an unknown name or a value out of range, RefusalError for a pair that cannot be."""
    for word, name, known in (("schedule", schedule, (CHUNKED, *baselines())), ("order", order, (*orders(),))):
        if name not in known:
            raise InputError(f"Unknown {word} {name!r}; known are {', '.join(known)}.")
    if tbt_target_ms is not None and not 0 <= tbt_target_ms < float("inf"):
        raise InputError(f"tbt_target_ms is {tbt_target_ms!r}, but it must be milliseconds, or 0 for no target.")
    if tbt_target_ms and schedule != "chunked":
        raise RefusalError(f"tbt_target_ms and schedule {schedule} cannot be combined: whole prompts keep no target.")
    if group_size is not None and group_size < 1:
        raise InputError(f"group_size is {group_size}, but it must be at least 1.")


def policy(
    schedule: str,
    order: str,
    row_budget: int,
    *,
    tbt_target_ms: float | None = None,
    forecast: Forecast | None = None,
    group_size: int | None = None,
    shape: Shape = lambda request: (),
) -> SchedulePolicy:
    """The policy of these names; raises as `check`. `forecast` predicts for `tbt_target_ms`; `shape` is what the
    `group_size` requests of a step should have in common."""
    check(schedule, order, tbt_target_ms, group_size)
    if tbt_target_ms and forecast is None:
        raise RefusalError("tbt_target_ms needs step times, and this engine was given none; leave it out.")
    made: SchedulePolicy
    if schedule == CHUNKED:
        made = Chunked(orders()[order](), row_budget, None if tbt_target_ms is None else tbt_target_ms / 1e3, forecast)
    else:
        made = baselines()[schedule](orders()[order](), row_budget)
    return made if group_size is None else Grouped(made, group_size, shape)


def check_wishes(params: SamplingParams, order: str) -> None:
    """RefusalError for a wish that an engine with this order would ignore."""
    for name, wish in (("priority", params.priority != 0), ("deadline", params.deadline_ms is not None)):
        if wish and order != name:
            field = "deadline_ms" if name == "deadline" else name
            raise RefusalError(
                f"{field} and order {order} cannot be combined: start the engine with order={name}, or leave it out."
            )
