"""The environment of `cp.Model`, for many copies at once: arrays instead of propagation (its slow twin is `cp`).

While operations are started in the order of time, the fixed point has a closed form: the next operation of a job can
start when the job's last one ends, its machine is free and no No-Op forbids it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.cluster.workflow.jssp.problem import Ints, Problem, Schedule
from paceline.core.errors import InputError

NEVER_TIME = np.int64(1 << 40)
JOB_FEATURES = 6
WINDOW_OPERATIONS = 5
"""Operations of a job that a policy sees: the last started one and the next four."""
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]


class Env:
    """Copies of problems of one shape. An action is a job, or `jobs` for No-Op."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = problems
        self.copies, self.jobs, self.places = len(problems), problems[0].jobs, problems[0].places
        if any((each.jobs, each.places) != (self.jobs, self.places) for each in problems):
            raise InputError("An environment holds problems of one shape; give each shape its own.")
        count = max(each.count for each in problems)
        ahead = (self.copies, self.jobs, self.places + WINDOW_OPERATIONS)
        self.machine, self.took = np.full(ahead, count), np.zeros(ahead, np.int64)
        self.length, self.next, self.ended, self.hold = np.zeros((4, self.copies, self.jobs), np.int64)
        self.free = np.zeros((self.copies, count + 1), np.int64)
        """When each machine is free; the last stands for no machine."""
        for copy, each in enumerate(problems):
            self.free[copy, : len(each.holds)] = each.holds
            self.ended[copy, : len(each.releases)] = each.releases
            for job, (machines, took) in enumerate(zip(each.machines, each.durations)):
                self.length[copy, job] = len(machines)
                self.machine[copy, job, : len(machines)] = machines
                self.took[copy, job, : len(machines)] = took
        self.scale = np.array([np.mean([t for row in each.durations for t in row]) for each in problems], np.float32)
        self.started = np.full((self.copies, self.jobs, self.places), -1)
        self._rows = np.arange(self.copies)
        self._refresh(self._rows)

    @property
    def done(self) -> Bools:
        """[copies]"""
        return np.asarray(self.now >= NEVER_TIME)

    def legal(self) -> Bools:
        """[copies, jobs + 1]: jobs that can start now, and No-Op where another start time exists."""
        ready = (self.bound == self.now[:, None]) & ~self.done[:, None]
        later = np.where(self.bound > self.now[:, None], self.bound, NEVER_TIME).min(1) < NEVER_TIME
        out: Bools = np.concatenate((ready, (later & ~self.done)[:, None]), 1)
        return out

    def act(self, rows: Ints, actions: Ints) -> None:
        """One legal action for each copy in `rows`, which are different."""
        idle = actions == self.jobs
        self._start(rows[~idle], actions[~idle])
        waits = rows[idle]
        if len(waits):
            now = self.now[waits, None]
            self.hold[waits] = np.where(self.bound[waits] > now, self.bound[waits], NEVER_TIME).min(1)[:, None]
        self._refresh(rows)

    def _start(self, rows: Ints, jobs: Ints) -> None:
        place, now = self.next[rows, jobs], self.now[rows]
        self.started[rows, jobs, place] = now
        end = now + self.took[rows, jobs, place]
        self.ended[rows, jobs] = end
        self.free[rows, self.machine[rows, jobs, place]] = end
        self.next[rows, jobs] += 1

    def _refresh(self, rows: Ints) -> None:
        if not hasattr(self, "bound"):
            self.bound, self.now = np.zeros_like(self.next), np.zeros(self.copies, np.int64)
        machine = np.take_along_axis(self.machine[rows], self.next[rows][:, :, None], 2)[:, :, 0]
        free = np.take_along_axis(self.free[rows], machine, 1)
        bound = np.maximum(np.maximum(self.ended[rows], free), self.hold[rows])
        self.bound[rows] = np.where(self.next[rows] < self.length[rows], bound, NEVER_TIME)
        self.now[rows] = self.bound[rows].min(1)

    def schedules(self) -> list[Schedule]:
        """Schedules of the copies, all of which are done."""
        return [
            Schedule(tuple(tuple(int(s) for s in row[:n]) for row, n in zip(rows, lengths)))
            for rows, lengths in zip(self.started, self.length)
        ]

    def makespans(self) -> Ints:
        """[copies]: end of the last operation so far."""
        return np.asarray(self.ended.max(1))

    def observe(self, rows: Ints) -> tuple[Floats, Ints, Ints]:
        """For copies, with W = WINDOW_OPERATIONS: features float32 [R, jobs, W, JOB_FEATURES], place numbers int64
        [R, jobs, W] (-1 before the first operation, -2 behind the last), and each job's next machine int64 [R, jobs].

        Features: started?, seconds from now to its earliest start, duration (both over the problem's mean duration),
        legal?, the job's work from it on over the most of any job, its machine's open work over the most of any
        machine. Numbers are relative to the job that is furthest behind.
        """
        first, now = self.next[rows] - 1, self.now[rows]
        at = first[:, :, None] + np.arange(WINDOW_OPERATIONS)
        inside = np.maximum(at, 0)
        machine = np.take_along_axis(self.machine[rows], inside, 2)
        took = np.take_along_axis(self.took[rows], inside, 2)
        real = (at >= 0) & (at < self.length[rows][:, :, None])
        out = np.zeros((*at.shape, JOB_FEATURES), np.float32)
        bound = np.minimum(self.bound[rows], NEVER_TIME)
        start = bound.copy()
        scale = self.scale[rows][:, None]
        for w in range(1, WINDOW_OPERATIONS):
            out[:, :, w, 1] = np.where(real[:, :, w], start - now[:, None], 0) / scale
            if w + 1 < WINDOW_OPERATIONS:
                free = np.take_along_axis(self.free[rows], machine[:, :, w + 1], 1)
                start = np.maximum(start + took[:, :, w], free)
        out[:, :, 0, 0] = real[:, :, 0]
        began = np.take_along_axis(self.started[rows], np.minimum(inside[:, :, :1], self.places - 1), 2)[:, :, 0]
        out[:, :, 0, 1] = np.where(real[:, :, 0], began - now[:, None], 0) / scale
        out[..., 2] = np.where(real, took, 0) / scale[:, :, None]
        out[:, :, 1, 3] = bound == now[:, None]
        left, load = self._open(rows)
        out[..., 4] = np.where(real, np.take_along_axis(left, inside, 2), 0)
        out[..., 5] = np.where(real, np.take_along_axis(load[:, None], machine, 2), 0)
        behind = np.where(self.next[rows] < self.length[rows], self.next[rows], NEVER_TIME).min(1)
        number = np.where(real, np.maximum(at - behind[:, None, None] + 1, 0), np.where(at < 0, -1, -2))
        return out, number, machine[:, :, 1]

    def _open(self, rows: Ints) -> tuple[Floats, Floats]:
        """Work of a job from each operation on [R, jobs, places], over the most that any job has left; and what each
        machine has before it [R, machines + 1], over the most."""
        took = self.took[rows]
        left = took[:, :, ::-1].cumsum(2)[:, :, ::-1]
        most = np.take_along_axis(left, self.next[rows][:, :, None], 2).max((1, 2))
        waits = np.where(np.arange(took.shape[2]) < self.next[rows][:, :, None], 0, took)
        load = np.zeros((len(rows), self.free.shape[1]))
        np.add.at(load, (np.arange(len(rows))[:, None, None], self.machine[rows]), waits)
        return (
            np.asarray(left / np.maximum(1, most)[:, None, None], np.float32),
            np.asarray(load / np.maximum(1.0, load.max(1, keepdims=True)), np.float32),
        )
