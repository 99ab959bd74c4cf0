"""Hand-overs, model-checked: every interleaving of two requests on two engines of three blocks, with lost messages,
refusals, ends, time limits and a destination that dies."""

from dataclasses import dataclass, replace

import pytest

from paceline.core.errors import CapacityError, InputError
from paceline.core.handover import FINAL_STATES, LAST_BLOCKS, Handover, Reservations

BLOCKS = 3


@dataclass(frozen=True)
class World:
    """Two engines, and a request each that moves to the other one."""

    moves: tuple[Handover, Handover] = (Handover(), Handover())
    at_source: tuple[str, str] = ("runs", "runs")
    """runs, out (its bytes are on the way), or ended."""
    at_goal: tuple[str, str] = ("", "")
    """"": nothing, held: a reservation, runs."""
    used: tuple[int, int] = (1, 1)
    """Blocks in use of each engine; that of its own request is 1."""
    dead: tuple[bool, bool] = (False, False)
    losses: int = 2
    ends: int = 1


def put(pair: tuple, at: int, value: object) -> tuple:
    return tuple(value if i == at else old for i, old in enumerate(pair))


def freed(world: World, engine: int, count: int) -> World:
    return replace(world, used=put(world.used, engine, world.used[engine] - count))


def outcomes(world: World, who: int, bug: str = "") -> list[tuple[str, World]]:
    """What an action may come to: (event, the world behind it). A lost answer leaves both worlds possible."""
    action, goal = world.moves[who].action, 1 - who
    dead, here, there = world.dead[goal], world.at_source[who], world.at_goal[who]
    done: list[tuple[str, World]] = []
    match action:
        case "reserve":
            if not dead and world.used[goal] < BLOCKS:
                done = [("done", replace(freed(world, goal, -1), at_goal=put(world.at_goal, who, "held")))]
        case "copy":
            if here != "runs":
                done = [("gone", world)]
            elif not dead and there == "held":
                done = [("done", world)]
        case "park":
            if here != "runs":
                done = [("gone", world)]
            else:
                done = [("done", replace(freed(world, who, 1), at_source=put(world.at_source, who, "out")))]
        case "settle":
            if not dead and there == "held":
                done = [("done", replace(world, at_goal=put(world.at_goal, who, "runs")))]
            elif not dead and there == "runs":
                done = [("done", world)]  # asked twice, answered alike
            elif dead:
                return [("gone", world)]
        case "restore":
            if world.used[who] < BLOCKS or True:  # without room it waits in the queue
                done = [("done", replace(freed(world, who, -1), at_source=put(world.at_source, who, "runs")))]
        case "release":
            held = there == "held"
            done = [("done", replace(freed(world, goal, 1), at_goal=put(world.at_goal, who, "")) if held else world)]
            if bug == "release forgotten":
                done = [("done", world)]
    if bug == "settle twice" and action == "settle" and there == "runs":
        done = [("refused", world)]
    found = done or [("refused", world)]
    if world.losses and action in ("reserve", "copy", "settle", "release"):
        less = replace(world, losses=world.losses - 1)
        found = found + [("lost", less)] + [("lost", replace(after, losses=world.losses - 1)) for _, after in done]
    return found


def others(world: World, who: int) -> list[World]:
    """What happens by itself: a request ends, a reservation runs out, an engine dies."""
    out, goal = [], 1 - who
    if world.ends and world.at_source[who] == "runs":
        out.append(replace(freed(world, who, 1), at_source=put(world.at_source, who, "ended"), ends=world.ends - 1))
    if world.at_goal[who] == "held":
        out.append(replace(freed(world, goal, 1), at_goal=put(world.at_goal, who, "")))
    if not any(world.dead) and world.at_goal[who] == "held":
        out.append(
            replace(freed(world, goal, 1), dead=put(world.dead, goal, True), at_goal=put(world.at_goal, who, ""))
        )
    return out


def explore(bug: str = "") -> tuple[int, set[str]]:
    """All reachable worlds; how many, and what is wrong in any."""
    first = World()
    seen, left, wrong = {first}, [first], set[str]()
    while left:
        world = left.pop()
        following = []
        for who in (0, 1):
            move = world.moves[who]
            following += others(world, who)
            if move.state in FINAL_STATES:
                continue
            for event, after in outcomes(world, who, bug):
                step = stepped(move, event, bug)
                following.append(replace(after, moves=put(after.moves, who, step)))
            owners = (world.at_source[who] == "runs") + (world.at_goal[who] == "runs")
            if owners > 1:
                wrong.add("runs twice")
        if all(move.state in FINAL_STATES for move in world.moves):
            for who in (0, 1):
                source, goal = world.at_source[who], world.at_goal[who]
                if source == "out" and goal != "runs":
                    wrong.add("lost")
                if source == "runs" and goal == "runs":
                    wrong.add("runs twice")
                if world.moves[who].state == "moved" and goal != "runs":
                    wrong.add("said to have moved")
                if goal == "held" and not world.losses < 2:
                    wrong.add("reservation left")  # with a lost answer its time limit gives it back
        if min(world.used) < 0 or max(world.used) > BLOCKS + 1:
            wrong.add("blocks not conserved")
        for each in following:
            if each not in seen:
                seen.add(each)
                left.append(each)
    return len(seen), wrong


def stepped(move: Handover, event: str, bug: str) -> Handover:
    if bug == "not put back" and move.state == "settling" and event in ("refused", "gone"):
        return replace(move, state="releasing")
    if bug == "put back when an answer is lost" and move.state == "settling" and event == "lost":
        return replace(move, state="releasing", restores=True)
    if bug == "said done when lost" and move.state == "settling" and event == "lost":
        return replace(move, state="moved")
    return move.step(event, blocks=1, left=0)  # type: ignore[arg-type]


def test_every_interleaving_leaves_one_owner_and_all_blocks() -> None:
    count, wrong = explore()
    assert count > 500 and not wrong, wrong


@pytest.mark.parametrize(
    ("bug", "what"),
    [
        ("not put back", "lost"),
        ("put back when an answer is lost", "runs twice"),
        ("said done when lost", "said to have moved"),
        ("release forgotten", "reservation left"),
        ("settle twice", "runs twice"),
    ],
)
def test_the_check_finds_planted_defects(bug: str, what: str) -> None:
    assert what in explore(bug)[1]


def test_it_stands_still_for_few_blocks_whatever_the_length() -> None:
    move = Handover().step("done")
    move = move.step("done", blocks=200, left=LAST_BLOCKS + 1)
    assert move.action == "copy" and move.copied == 200
    assert move.step("done", blocks=17, left=LAST_BLOCKS).action == "park"
    for _ in range(3):
        move = move.step("done", blocks=1, left=LAST_BLOCKS + 9) if move.state == "copying" else move
    assert move.state == "releasing", "a text that grows faster than it is copied stays"
    with pytest.raises(InputError, match="knows no event"):
        Handover(state="moved").step("done")


def test_reservations_are_bounded_in_room_and_time() -> None:
    table = Reservations()
    with pytest.raises(CapacityError, match="3 are free"):
        table.reserve(3, 1.0, 1, 3, 0.0)
    for blocks, seconds, spare in ((0, 1.0, 0), (1, 0.0, 0), (1, float("inf"), 0), (1, 1.0, -1)):
        with pytest.raises(InputError, match="cannot be made"):
            table.reserve(blocks, seconds, spare, 9, 0.0)
    number = table.reserve(4, 1.0, 1, 5, 0.0)
    assert table.fill(number, 0, 2, 0.9).until == 1.9 and table.fill(number, 1, 2, 1.0).filled == 3
    with pytest.raises(InputError, match="begin with block 4"):
        table.fill(number, 4, 1, 1.0)
    with pytest.raises(CapacityError, match="is of 4 blocks"):
        table.fill(number, 3, 2, 1.0)
    assert table.expired(2.0) == [] and table.expired(2.1) == [number]
    with pytest.raises(InputError, match="run out"):
        table.fill(number, 3, 1, 2.1)
    table.release(number)
    table.release(number)
    with pytest.raises(InputError, match="no reservation"):
        table.get(number, 0.0)
