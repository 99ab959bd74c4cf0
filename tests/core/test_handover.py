"""Hand-overs, model-checked: every interleaving of two requests on two engines of three blocks, with lost answers,
ends, growth, pre-emptions, full engines, time limits and dying engines; and many requests at random."""

import random
from dataclasses import replace

import pytest

from paceline.core.errors import CapacityError, InputError
from paceline.core.handover import FINAL_STATES, LAST_BLOCKS, Handover, Reservations
from tests.core.handover_world import OWNED, Sample, World, by_themselves, defects, following


def explore(losses: int, ends: int, deaths: int, most: int, bug: str = "") -> tuple[int, set[str], set[str]]:
    """All worlds that can come of two requests that swap places, with so many lost answers, ends, deaths and blocks of
    a text: how many, what is wrong in any, and how moves end."""
    first = World((Sample(0, 1), Sample(1, 0)), losses=losses, ends=ends, deaths=deaths, most=most)
    seen, left, wrong, ends = {first}, [first], set[str](), set[str]()
    while left:
        world = left.pop()
        wrong.update(defects(world, world.losses == first.losses))
        ends.update(each.move.state for each in world.samples if each.move.state in FINAL_STATES)
        for after in (*following(world, 0, bug), *following(world, 1, bug), *by_themselves(world)):
            if after not in seen:
                seen.add(after)
                left.append(after)
        if bug and wrong:
            break
    return len(seen), wrong, ends


@pytest.mark.parametrize(
    "troubles", [(1, 1, 0, 1), (1, 0, 1, 1), (0, 0, 0, 2), pytest.param((1, 1, 1, 2), marks=pytest.mark.full)], ids=str
)
def test_every_interleaving_leaves_one_owner_and_all_blocks(troubles: tuple[int, int, int, int]) -> None:
    count, wrong, ends = explore(*troubles)
    assert count > 500 and not wrong and ends >= {"moved", "stayed"}, (count, wrong, ends)


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
    assert what in explore(1, 1, 1, 2, bug)[1]


def test_many_requests_that_move_again_and_again() -> None:
    """At random, with engines that die and come back."""
    rng, moved = random.Random(0), 0
    world = World(
        tuple(Sample(n % 6, (n + 1) % 6) for n in range(24)), (False,) * 6, blocks=9, most=4, losses=9**9, ends=0,
        deaths=9**9,
    )  # fmt: skip
    for _ in range(4_000):
        who = rng.randrange(24)
        it = world.samples[who]
        if it.move.state in FINAL_STATES:
            home, here = (it.goal, it.there) if it.there in OWNED else (it.home, it.here)
            alive = [n for n, gone in enumerate(world.dead) if not gone]
            if here == "elsewhere" or world.dead[home]:  # replayed: it waits for its blocks where there is an engine
                home, here = rng.choice(alive), "waits"
            goal = rng.choice([n for n in alive if n != home])
            moved += it.move.state == "moved"
            world = world.put(who, home=home, here=here, goal=goal, there="", move=Handover(), size=1, held=0)
        elif rng.random() < 0.9:
            world = rng.choice([*following(world, who)][: 1 if rng.random() < 0.8 else None])
        else:
            after = rng.choice([*by_themselves(world)])
            world = after if sum(after.dead) < 3 else world
        if any(world.dead) and rng.random() < 0.05:
            world = replace(world, dead=(False,) * 6)
        assert not [*defects(world, untroubled=False)]
    assert moved > 200


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
