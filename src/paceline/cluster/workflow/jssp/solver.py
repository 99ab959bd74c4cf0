"""OR-tools' CP-SAT for job shops: completions of a partial schedule (extra `paceline[jssp]`)."""

from collections.abc import Mapping
from typing import Any

from paceline.cluster.workflow.jssp.problem import Problem, Schedule, shifted
from paceline.core.errors import InputError


def complete(
    problem: Problem, warm: Schedule, seconds: float, fixed: Mapping[tuple[int, int], int] | None = None,
    since: int = 0, *, seed: int = 0,
) -> tuple[Schedule, bool]:  # fmt: skip
    """The best schedule found from a warm start within `seconds` on one thread, moved as early as its orders
    allow; it keeps the starts in `fixed`, and starts all else no earlier than `since`. Never worse than `warm`, which
    must be feasible. The flag says whether the schedule is the optimum of that problem."""
    cp = _cp()
    model, fixed = cp.CpModel(), fixed or {}
    horizon = warm.makespan(problem)
    end = model.new_int_var(0, horizon, "end")
    starts: dict[tuple[int, int], Any] = {}
    machines: dict[int, list[Any]] = {}
    for job, (row, took) in enumerate(zip(problem.machines, problem.durations)):
        for place, (machine, spent) in enumerate(zip(row, took)):
            at = fixed.get((job, place))
            release = problem.releases[job] if problem.releases else 0
            low = max(since, release) if at is None else at
            start = model.new_int_var(low, horizon if at is None else at, "")
            model.add_hint(start, warm.starts[job][place])
            starts[job, place] = start
            machines.setdefault(machine, []).append(model.new_fixed_size_interval_var(start, spent, ""))
            if place:
                model.add(start >= starts[job, place - 1] + took[place - 1])
        model.add(end >= starts[job, len(row) - 1] + took[-1])
    for machine, hold in enumerate(problem.holds):
        if hold and machine in machines:
            machines[machine].append(model.new_fixed_size_interval_var(0, hold, ""))
    for intervals in machines.values():
        model.add_no_overlap(intervals)
    model.minimize(end)
    solver = cp.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        return warm, False
    lengths = [len(row) for row in problem.machines]
    found = Schedule(tuple(tuple(solver.value(starts[j, k]) for k in range(n)) for j, n in enumerate(lengths)))
    better = found if found.makespan(problem) < horizon else warm
    return shifted(problem, better, fixed, since), status == cp.OPTIMAL


def _cp() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise InputError("Solving job shops exactly needs OR-tools: pip install 'paceline[jssp]'.") from error
    return cp_model
