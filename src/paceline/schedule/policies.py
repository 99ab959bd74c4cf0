"""Schedules and orders by name."""

from collections.abc import Callable

from paceline.core.errors import InputError, RefusalError
from paceline.core.params import SamplingParams
from paceline.core.plan import Plan
from paceline.core.plugins import joined
from paceline.schedule import Order, SchedulePolicy
from paceline.schedule.chunked import Chunked, Forecast
from paceline.schedule.decode_first import DecodeFirst
from paceline.schedule.exspec import Expects, Grouped, none
from paceline.schedule.fair import Fair
from paceline.schedule.layered import Layered
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
CHUNKED, LAYERED = "chunked", "layered"
SCHEDULES = (CHUNKED, LAYERED, *BASELINES)
"""Our own; `baselines` knows those of installed packages, too."""


def orders() -> dict[str, Callable[[], Order]]:
    """Ours and those of installed packages (entry points `paceline.orders`)."""
    return joined("order", ORDERS)


def baselines() -> dict[str, Callable[[Order, int], SchedulePolicy]]:
    """Schedules other than chunked and layered: ours, and of installed packages (entry points `paceline.schedules`)."""
    return joined("schedule", BASELINES)


def check(
    schedule: str,
    order: str,
    tbt_target_ms: float | None = None,
    group_size: int | None = None,
    layer_groups: int | None = None,
) -> None:
    """InputError for an unknown name or a value out of range, RefusalError for a pair that cannot be."""
    for word, name, known in (("schedule", schedule, (CHUNKED, LAYERED, *baselines())), ("order", order, (*orders(),))):
        if name not in known:
            raise InputError(f"Unknown {word} {name!r}; known are {', '.join(known)}.")
    if tbt_target_ms is not None and not 0 <= tbt_target_ms < float("inf"):
        raise InputError(f"tbt_target_ms is {tbt_target_ms!r}, but it must be milliseconds, or 0 for no target.")
    if tbt_target_ms and schedule not in (CHUNKED, LAYERED):
        raise RefusalError(f"tbt_target_ms and schedule {schedule} cannot be combined: whole prompts keep no target.")
    if group_size is not None and group_size < 1:
        raise InputError(f"group_size is {group_size}, but it must be at least 1.")
    if layer_groups is not None and layer_groups < 1:
        raise InputError(f"layer_groups is {layer_groups}, but it must be at least 1.")
    if layer_groups is not None and schedule != LAYERED:
        raise RefusalError(f"layer_groups and schedule {schedule} cannot be combined: only layered has groups.")


def policy(
    schedule: str,
    order: str,
    row_budget: int,
    *,
    tbt_target_ms: float | None = None,
    forecast: Forecast | None = None,
    group_size: int | None = None,
    expects: Expects = none,
    layers: int = 0,
    layer_groups: int | None = None,
) -> SchedulePolicy:
    """The policy of these names; raises as `check`. `forecast` predicts for `tbt_target_ms`; `expects` says
    how many nodes a request is likely to get, for groups of `group_size`; `layers` are those of the target, 0 where no
    row can wait between two of them."""
    check(schedule, order, tbt_target_ms, group_size, layer_groups)
    if tbt_target_ms and forecast is None:
        raise RefusalError("tbt_target_ms needs step times, and this engine was given none; leave it out.")
    made: SchedulePolicy
    if schedule in (CHUNKED, LAYERED):
        target = None if tbt_target_ms is None else tbt_target_ms / 1e3
        made = chunked = Chunked(orders()[order](), row_budget, target, forecast)
        if schedule == LAYERED:
            if not layers:
                raise RefusalError(
                    "schedule layered needs a model whose rows can wait between two layers, but this one keeps a state "
                    "of each text; use chunked."
                )
            made = Layered(chunked, layers, layer_groups)
    else:
        made = baselines()[schedule](orders()[order](), row_budget)
    return made if group_size is None else Grouped(made, group_size, expects, forecast)


def finished(made: SchedulePolicy, plan: Plan) -> Plan:
    """The plan with equal rows for a group of one shape, where the policy makes groups, and with the layers that the
    rows of its prompts run through, where it divides layers."""
    if isinstance(made, Grouped):
        plan, made = made.level(plan), made.inner
    return made.staged(plan) if isinstance(made, Layered) else plan


def check_wishes(params: SamplingParams, order: str) -> None:
    """RefusalError for a wish that an engine with this order would ignore."""
    for name, wish in (("priority", params.priority != 0), ("deadline", params.deadline_ms is not None)):
        if wish and order != name:
            field = "deadline_ms" if name == "deadline" else name
            raise RefusalError(
                f"{field} and order {order} cannot be combined: start the engine with order={name}, or leave it out."
            )
