"""Engines and samples that move between them, as small as a check of every interleaving needs: what hand-overs, ends,
growth, pre-emptions, time limits, lost answers and dying engines may make of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from paceline.core.handover import FINAL_STATES, Handover

STARTED = Handover()
OWNED = ("runs", "waits")
"""An engine has the sample: with its blocks, or without (it waits for them again)."""
Outcome = tuple[str, "World"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One that moves from `home` to `goal`."""

    home: int
    goal: int
    move: Handover = STARTED
    here: str = "runs"
    """runs, waits, out (its bytes are on their way, or there), elsewhere (replayed on a further engine), or ended."""
    there: str = ""
    """"": nothing, held: a reservation, runs, waits."""
    size: int = 1
    held: int = 0
    """Blocks of its text, and of the reservation."""

    @property
    def owners(self) -> int:
        return (self.here in OWNED) + (self.here == "elsewhere") + (self.there in OWNED)


@dataclass(frozen=True, slots=True)
class World:
    samples: tuple[Sample, ...]
    dead: tuple[bool, ...] = (False, False)
    blocks: int = 3
    most: int = 2
    """Blocks that a text grows to."""
    losses: int = 1
    ends: int = 1
    deaths: int = 1

    def used(self, engine: int) -> int:
        """Its blocks that samples or reservations hold."""
        own = sum(each.size for each in self.samples if each.home == engine and each.here == "runs")
        goal = [each for each in self.samples if each.goal == engine]
        return own + sum(each.held if each.there == "held" else each.size * (each.there == "runs") for each in goal)

    def room(self, engine: int) -> int:
        return self.blocks - self.used(engine)

    def put(self, who: int, **changes: object) -> "World":
        samples = [replace(each, **changes) if n == who else each for n, each in enumerate(self.samples)]  # type: ignore[arg-type]
        return replace(self, samples=tuple(samples))

    def killed(self, engine: int) -> "World":
        """The engine is dead. The front replays what it had."""
        samples = []
        for each in self.samples:
            if each.home == engine and each.here in OWNED:
                each = replace(each, here="elsewhere")
            if each.goal == engine and each.there in OWNED:
                each = replace(each, here="elsewhere")
            samples.append(replace(each, there="", held=0) if each.goal == engine else each)
        dead = tuple(n == engine or gone for n, gone in enumerate(self.dead))
        return replace(self, samples=tuple(samples), dead=dead, deaths=self.deaths - 1)


def outcomes(world: World, who: int, bug: str = "") -> list[Outcome]:
    """What a sample's action may come to: (event, the world behind it). A lost answer leaves both worlds possible."""
    it = world.samples[who]
    answers: dict[str, Callable[[], list[Outcome]]] = {
        "reserve": lambda: _reserve(world, who), "copy": lambda: _copy(world, who), "park": lambda: _park(world, who),
        "settle": lambda: _settle(world, who, bug), "restore": lambda: _restore(world, who),
        "release": lambda: _release(world, who, bug),
    }  # fmt: skip
    found = answers[it.move.action]()
    if world.losses and it.move.action in ("reserve", "copy", "settle", "release") and not world.dead[it.goal]:
        less = [replace(after, losses=world.losses - 1) for after in (world, *(after for _, after in found))]
        found = found + [("lost", after) for after in less]
    return found


def _reserve(world: World, who: int) -> list[Outcome]:
    it = world.samples[who]
    if world.dead[it.goal]:
        return [("gone", world)]
    if it.size + 1 > world.room(it.goal):
        return [("refused", world)]
    return [("done", world.put(who, there="held", held=it.size + 1))]


def _copy(world: World, who: int) -> list[Outcome]:
    it = world.samples[who]
    if it.here not in OWNED or world.dead[it.goal]:
        return [("gone", world)]
    stale = it.here == "waits" and it.move.copied > 0  # it was pre-empted: it has fewer blocks than the goal
    return [("refused" if stale or it.there != "held" or it.size > it.held else "done", world)]


def _park(world: World, who: int) -> list[Outcome]:
    it = world.samples[who]
    if it.here not in OWNED:
        return [("gone", world)]
    died = [("gone", world.killed(it.home))] if world.deaths else []  # with its bytes, of which the front has none
    stale = it.here == "waits" and it.move.copied > 0
    return [("refused", world) if stale else ("done", world.put(who, here="out")), *died]


def _settle(world: World, who: int, bug: str) -> list[Outcome]:
    it = world.samples[who]
    if world.dead[it.goal]:
        return [("gone", world)]
    if it.there == "held" and it.here != "out":
        return [("done", world.put(who, there="", held=0))]  # its client has left: the front ends it at once
    if it.there == "held":
        fits = it.size <= world.room(it.goal) + it.held
        return [("done", world.put(who, there="runs" if fits else "waits", held=0))]
    twice = it.there in OWNED and bug != "settle twice"
    return [("done" if twice else "refused", world)]


def _restore(world: World, who: int) -> list[Outcome]:
    it = world.samples[who]
    if it.here != "out":
        return [("done", world)]
    return [("done", world.put(who, here="elsewhere" if world.dead[it.home] else "waits"))]


def _release(world: World, who: int, bug: str) -> list[Outcome]:
    kept = world.samples[who].there != "held" or bug == "release forgotten"
    return [("done", world if kept else world.put(who, there="", held=0))]


def by_themselves(world: World) -> Iterator[World]:
    """What happens without any hand-over."""
    for who, it in enumerate(world.samples):
        if world.ends and it.here != "ended":  # finished, or its client has left
            there = "" if it.there in OWNED else it.there
            yield replace(world.put(who, here="ended", there=there), ends=world.ends - 1)
        if it.there == "held":  # its time has run out
            yield world.put(who, there="", held=0)
        for place, engine, state in (("here", it.home, it.here), ("there", it.goal, it.there)):
            if state == "waits" and it.size <= world.room(engine):
                yield world.put(who, **{place: "runs"})
            if state == "runs":  # pre-empted
                yield world.put(who, **{place: "waits"})
            if state == "runs" and it.size < world.most:
                fits = world.room(engine) > 0
                yield world.put(who, size=it.size + 1, **{place: "runs" if fits else "waits"})
    for engine, gone in enumerate(world.dead):
        if world.deaths and not gone:
            yield world.killed(engine)


def stepped(move: Handover, event: str, blocks: int = 1, bug: str = "") -> Handover:
    """The machine's next state, or that of one with a planted defect."""
    if bug == "not put back" and move.state == "settling" and event in ("refused", "gone"):
        return replace(move, state="releasing")
    if bug == "put back when an answer is lost" and move.state == "settling" and event == "lost":
        return replace(move, state="releasing", restores=True)
    if bug == "said done when lost" and move.state == "settling" and event == "lost":
        return replace(move, state="moved")
    return move.step(event, blocks=blocks, left=0)  # type: ignore[arg-type]


def following(world: World, who: int, bug: str = "") -> Iterator[World]:
    """Worlds behind the next action of a sample that moves."""
    it = world.samples[who]
    if it.move.state in FINAL_STATES:
        return
    blocks = max(0, it.size - it.move.copied) if it.here == "runs" else 0
    for event, after in outcomes(world, who, bug):
        yield after.put(who, move=stepped(it.move, event, blocks, bug))


def defects(world: World, untroubled: bool) -> Iterator[str]:
    """What is wrong in a world. `untroubled`: no answer was lost."""
    for it in world.samples:
        final = it.move.state in FINAL_STATES
        if it.owners > 1 or (it.here == "ended" and it.there in OWNED):
            yield "runs twice"
        if final and it.owners == 0 and it.here != "ended":
            yield "lost"
        if it.move.state == "moved" and it.there not in OWNED and it.here not in ("ended", "elsewhere"):
            yield "said to have moved"
        if final and it.there == "held" and untroubled:
            yield "reservation left"  # with a lost answer its time limit gives it back
    if any(world.used(engine) > world.blocks for engine in range(len(world.dead))):
        yield "more blocks than there are"
