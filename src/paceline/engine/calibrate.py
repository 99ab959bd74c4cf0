"""Fills the table of step times at start-up, in seconds: passes of the target at every size, and real steps of the
engine on made-up prompts with every drafter that the planner may choose. Kept on disk per model, machine and settings.
"""

import hashlib
import json
import logging
import math
import os
import platform
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time, time
from typing import Any

from paceline import __version__
from paceline.core.component import TARGET
from paceline.core.params import SamplingParams
from paceline.core.plan import MinChance, Work
from paceline.core.request import Request
from paceline.core.rows import RowsBuilder
from paceline.draft import DRAFTERS
from paceline.engine.components import stateful
from paceline.engine.drafters import AUTO, PLAIN_DRAFTER
from paceline.engine.loop import Engine
from paceline.engine.totals import Totals
from paceline.model.native import NativeDecoder
from paceline.native.build import library
from paceline.native.store import home, trusted, write
from paceline.plan import LengthPolicy, Share, StepDecision
from paceline.plan.cost import KNOTS, SCORED_KNOT, Drafting, StepTimes, Times

log = logging.getLogger("paceline")
VERSION = 17
"""Version of the meaning of the table's terms."""
BUDGET_S = 8.0
"""Seconds of a calibration, half of them for the target alone: what would take longer is left to the first steps of
service, but for one short draft of each drafter."""
SWEEPS, REPEATS = 3, 2
"""Times that all kinds of passes are run through, and passes of each; the fastest counts, for what others do to the
machine only adds."""
SHORT_TEXT, LONG_TEXT = 32, 1024
"""Committed tokens of a request: of most, and of the one that tells what reading K/V costs."""
BATCHES, NODES, STEPS = (1, 4, 16), (3, 14), 6
MIN_TIMED_STEPS, SLICE_S = 3, 0.25
"""Minimum number of steps per kind, and the seconds after which no more are run: every drafter is measured on a slow
model, too."""

LEAST_CPU_SHARE, MOST_WAIT_SHARE = 0.7, 0.3
"""Shares of the time of a calibration whose table is not doubted: CPU seconds of this process, at least (one thread is
always busy), and seconds that its threads, all together, were ready to run and had no CPU, at most. Threads that wait
for each other spin, so CPU seconds alone do not show that other programs run."""
TABLE_AGE_S = 30 * 86_400.0
"""Seconds after which a kept table is measured again: machines change."""
DOUBTED_TABLE_AGE_S = 600.0
"""Seconds after which a doubted one is, and at once where the machine is no longer busy."""

Sample = tuple[Work, Sequence[Drafting], Times]


class AsTold(LengthPolicy):
    """Policy that shares as instructed, and keeps the samples that it observes."""

    def __init__(self) -> None:
        self.drafter, self.nodes, self.several = PLAIN_DRAFTER, 0, 1
        self.samples: list[Sample] = []

    def decide(self, requests: Sequence[Request], room: int, base: Work) -> StepDecision:
        each = min(self.nodes, room // max(len(requests), 1))
        depths = {r.id: min(each, r.left - 1) for r in requests}
        shares = {
            i: Share(self.drafter if deep else PLAIN_DRAFTER, deep and each, deep, MinChance(0.0))
            for i, deep in depths.items()
        }
        return StepDecision(shares, passes=self.several)

    def learn(self, notes: Any, work: Work, parts: Sequence[Drafting], times: Times) -> None:
        self.samples.append((work, parts, times))


def place(facts: dict[str, Any]) -> Path:
    """Where the table of an engine with these facts is kept."""
    native = getattr(library(), "_name", None)  # its file's name tells one build from another
    facts = {**facts, "paceline": __version__, "table": VERSION, "native": native}
    facts["machine"] = platform.processor() or platform.machine()
    seal = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
    return home() / f"times-{seal}.json"


def calibrated(engine: Engine, facts: dict[str, Any]) -> StepTimes:
    """The table for this engine: from disk where one with equal `facts` was kept, else measured, and kept."""
    path = place(facts)
    if (known := kept(path)) is not None:
        return known
    for component in engine.components.values():
        if isinstance(component, NativeDecoder):
            component.settle()
    started, cpu, waits = perf_counter(), process_time(), waited()
    times = measure(engine)
    took, cpu, waits = perf_counter() - started, process_time() - cpu, waited() - waits
    log.info("Measured what steps cost in %.1f s: %s", took, path)
    if cpu < LEAST_CPU_SHARE * took or waits > MOST_WAIT_SHARE * took:
        times.doubt = max(took, cpu + waits) / max(cpu, 1e-9)
        log.info(
            "While step times were measured, the process had %.0f %% of a CPU and waited for one for %.0f %% of the "
            "time, because of a quota or other programs; prices of drafts are used with doubt until they have served, "
            "and measured again at the next start, but within %.0f minutes only if the machine is no longer busy.",
            100 * cpu / took, 100 * waits / took, DOUBTED_TABLE_AGE_S / 60,
        )  # fmt: skip
    keep(path, times)
    return times


def busy() -> bool:
    """Whether more threads of all programs wanted a CPU in the last minute than there are CPUs; False where the system
    does not say."""
    try:
        return os.getloadavg()[0] > (os.cpu_count() or 1)
    except (AttributeError, OSError):
        return False


def waited() -> float:
    """Seconds that threads of this process have been ready to run and had no CPU, all together; 0 where the system
    does not say."""
    try:
        return sum(int(each.read_text().split()[1]) for each in Path("/proc/self/task").glob("*/schedstat")) / 1e9
    except (OSError, ValueError, IndexError):  # another system, or a thread that has just ended
        return 0.0


def kept(path: Path) -> StepTimes | None:
    """The table of an earlier start; None where there is none, or it is of no use."""
    if not trusted(path) or (age := time() - path.stat().st_mtime) > TABLE_AGE_S:
        return None
    try:
        times = StepTimes.load(json.loads(path.read_text(encoding="utf-8")))
        check(times)
        return times if times.doubt == 1.0 or (age <= DOUBTED_TABLE_AGE_S and busy()) else None
    except Exception as error:  # whatever a damaged file makes of it: it can be measured again
        log.warning("The table of step times %s cannot be used (%r); it is measured again.", path, error)
        return None


def check(times: StepTimes) -> None:
    """Raise ValueError for a table that lacks terms, or whose numbers are none that time could take."""
    fresh = StepTimes()
    pairs = [(times.target, fresh.target), (times.rest, fresh.rest)]
    pairs += [(terms, fresh.drafter(name)) for name, terms in times.drafts.items()]
    numbers = [times.speed, times.seen, *(weight for terms, _ in pairs for weight in terms.weights.values())]
    if any(terms.weights.keys() != like.weights.keys() for terms, like in pairs):
        raise ValueError("its terms are those of another table")
    numbers.append(times.doubt - 1.0)
    if times.speed == 0 or not all(type(x) in (int, float) and 0 <= x < math.inf for x in numbers):
        raise ValueError("its numbers are no times")


def keep(path: Path, times: StepTimes) -> None:
    """Write a table; a disk that refuses costs the next start its seconds, no more."""
    try:
        write(path, json.dumps(times.dump()))
    except OSError as error:
        log.warning("The table of step times cannot be kept: %s", error)


def measure(engine: Engine) -> StepTimes:
    """Measure on an engine without requests, and leave it as it was."""
    assert not engine.busy
    if engine.model.device.type == "cuda":
        for _ in passes(engine, math.inf):  # what is compiled and captured once costs no pass later
            pass
    end = perf_counter() + BUDGET_S
    times, alone = StepTimes(), dict[Work, float]()
    for _ in range(SWEEPS):
        for work, seconds in passes(engine, end - BUDGET_S / 2):
            alone[work] = min(seconds, alone.get(work, seconds))
    unscored = share_unscored(engine, alone)
    policy, told = engine.table.policy, AsTold()
    engine.table.policy = told
    try:
        for batch in BATCHES:
            if batch <= engine.config.max_requests and not rounds(engine, told, batch, end):
                break
    finally:
        engine.table.policy = policy
        engine.drafters.restart()
        engine.desk.totals, engine.timer = Totals(), type(engine.timer)()
        engine.cache.drop_prefix()
        engine.cache.pool.queries = engine.cache.pool.hits = 0
    times.beside = {name: 0.0 for name, facts in engine.table.entries.items() if facts.ahead}
    whole = [
        (work, took.target) for work, parts, took in told.samples if not {p.drafter for p in parts} & {*times.beside}
    ]
    times.fit_target([*alone.items(), *whole], unscored)
    times.fit(told.samples)
    return times


def passes(engine: Engine, end: float) -> Iterator[tuple[Work, float]]:
    """Passes of the target alone: (work, the faster of some). None begins that would not end in time if a row took as
    long as in the one before."""
    most = min(engine.config.row_budget, engine.model.max_len - SHORT_TEXT)
    few = max(1, min(16, engine.config.max_requests))
    kinds = [(1, knot, SHORT_TEXT) for knot in KNOTS if knot <= most]
    kinds += [(few, rows, SHORT_TEXT) for rows in (1, 4, 8)]
    if engine.model.max_len > LONG_TEXT + 64:
        kinds += [(1, 1, LONG_TEXT), (1, 16, LONG_TEXT), (1, min(256, most), LONG_TEXT), (min(4, few), 1, LONG_TEXT)]
    each = 0.0  # seconds of a row
    for requests, rows, context in sorted(kinds, key=lambda kind: kind[0] * kind[1]):
        if perf_counter() + REPEATS * each * requests * rows > end:
            return
        if engine.cache.blocks_for(context + rows) * requests > engine.cache.room() or requests * rows > most:
            continue
        if context + rows > engine.model.max_len:
            continue
        scored = rows if rows <= SCORED_KNOT else 1
        seconds = timed(engine, requests, rows, context, scored)
        each = seconds / (requests * rows)
        work = Work(requests * rows, requests, requests * context, requests * rows * context, requests * scored)
        yield work, seconds


def timed(engine: Engine, requests: int, rows: int, context: int, scored: int) -> float:
    """Seconds of a pass of `rows` of each request, the faster of some; the last `scored` have their scores wanted."""
    ids = random.Random(0).choices(range(engine.model.vocab_size), k=max(KNOTS))  # of one id a mixture runs few experts
    leases = [engine.cache.open([]) for _ in range(requests)]
    try:
        taken = []
        for lease in leases:
            engine.cache.begin(lease, context, 0).commit([], [0] * context)
        for keeper in stateful({TARGET: engine.model}).values():
            keeper.blank([lease.slot(context - 1) for lease in leases])  # of rows that were not computed
        for _ in range(REPEATS):
            txns = [engine.cache.begin(lease, rows, 0) for lease in leases]
            builder = RowsBuilder()
            for txn in txns:
                builder.add(ids[:rows], txn.slots, txn.table, context, want=list(range(rows - scored, rows)))
            built = builder.build(engine.model.device)
            started = perf_counter()
            engine.model.forward(built).logits.sum().item()  # waits for a GPU
            taken.append(perf_counter() - started)
            for txn in txns:
                txn.abort()
        return min(taken)
    finally:
        for lease in leases:
            engine.cache.close(lease)


def share_unscored(engine: Engine, known: Mapping[Work, float]) -> float:
    """Share of the longest pass that there was time for which it takes if its last row alone is scored, as that of a
    prompt is; 1 where prompts were timed. Where none were, their prices are scaled by it."""
    longest = max((work for work in known if work.requests == 1), key=lambda work: work.rows, default=None)
    if longest is None or longest.rows > SCORED_KNOT or longest.rows == 1:
        return 1.0
    return min(1.0, timed(engine, 1, longest.rows, longest.context, 1) / known[longest])


def costliest(drafter: str) -> str:
    """Drafter that is measured in its place: the most expensive part of a merged drafter. Made-up text repeats itself,
    so the cheap parts would otherwise do all the work."""
    parts = DRAFTERS.card(drafter).parts if drafter != PLAIN_DRAFTER else ()
    return parts[-1] if parts else drafter


def renamed(times: Times, drafter: str) -> Times:
    """With all drafting as this drafter's."""
    return replace(times, drafts={drafter: sum(times.drafts.values())})


def rounds(engine: Engine, told: AsTold, batch: int, end: float) -> bool:
    """Steps of `batch` requests: plain ones of one pass, and of two; with each drafter at some sizes, of one pass, and
    of two where it can. The first of a kind is not counted. With one request the smallest draft of each drafter
    is timed even when the time is up: the price of reading a prompt follows from it. False where no more can be."""
    vocab, need = engine.model.vocab_size, SHORT_TEXT + 256
    if engine.cache.blocks_for(need) * batch > engine.cache.room() or need > engine.model.max_len:
        return False
    wish = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=224, seed=0, drafter=AUTO)
    wish = wish.resolve({})
    prompts = [[(7 * i * i + 13 * j * j * (i + 3) + 5) % vocab for j in range(SHORT_TEXT)] for i in range(batch)]
    requests = [engine.submit(prompt, wish)[0] for prompt in prompts]
    try:
        told.drafter, told.nodes = PLAIN_DRAFTER, 0
        while any(not r.output and r.finish is None for r in requests) and (batch == 1 or perf_counter() < end):
            engine.step()
        if failed := next((r.error for r in requests if r.finish is not None), None):  # as any request would
            log.warning("What steps cost cannot be measured with a made-up prompt: %s", failed)
            return False
        told.samples = [s for s in told.samples if s[0].rows == s[0].requests or s[1]]
        kinds = [
            (PLAIN_DRAFTER, 0, 1),
            (PLAIN_DRAFTER, 0, 2),
            *((arm, nodes, 1) for nodes in NODES for arm in requests[0].arms),
        ]
        kinds += [(arm, nodes, 2) for arm in requests[0].arms if engine.table.entries[arm].runs for nodes in NODES]
        must = 2 + len(requests[0].arms) if batch == 1 else 0
        for place, (drafter, nodes, several) in enumerate(kinds):
            if place >= must and perf_counter() > end:
                return False
            told.drafter, told.nodes, told.several = costliest(drafter), nodes, several
            before, began = len(told.samples), perf_counter()
            for count in range(STEPS):
                if count >= MIN_TIMED_STEPS and perf_counter() - began > SLICE_S:
                    break
                engine.step()
            new = sorted(told.samples[before + 1 :], key=lambda sample: sample[2].total)
            told.samples[before:] = [
                (work, [replace(part, drafter=drafter) for part in parts], renamed(took, drafter))
                for work, parts, took in new[: STEPS // 2]
            ]
        return True
    finally:
        for request in requests:
            engine.abort(request)
