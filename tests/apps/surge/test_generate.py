"""Items: one program prints the same in all languages, truths come from running, templates differ by seed."""

import random

import pytest

from paceline.apps.common.sandbox import run, unavailable
from paceline.apps.surge.execute import job
from paceline.apps.surge.extract import trimmed
from paceline.apps.surge.generate import generate
from paceline.apps.surge.generate.draft import Draft
from paceline.apps.surge.generate.make import checked, drafts, templates
from paceline.apps.surge.generate.tree import SURGE_TREE_STYLES, Maker, render
from paceline.apps.surge.items import SURGE_KINDS, SurgeItem
from paceline.apps.surge.scorers import SCORERS
from paceline.apps.surge.toolchains import LANGUAGES, PYTHON

boxed = pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox here: {unavailable()}")
BY_NAME = {language.name: language for language in LANGUAGES}


def interpreted(text: str) -> list[str]:
    printed: list[str] = []
    exec(text, {"print": lambda *values: printed.append(" ".join(map(str, values)))})
    return printed


@pytest.mark.parametrize("seed", range(200))
def test_a_drawn_program_ends_and_prints_small_numbers(seed: int) -> None:
    nodes = Maker(random.Random(seed)).program(names=3)
    [line] = interpreted(render(nodes, "Python"))
    assert all(0 <= int(word) < 1000 for word in line.split())


@boxed
@pytest.mark.parametrize("name", [name for name in SURGE_TREE_STYLES if name != "Python"])
async def test_a_program_prints_the_same_in_every_language(name: str) -> None:
    if not BY_NAME[name].present:
        pytest.skip(f"{name} is not installed")
    nodes = Maker(random.Random(5)).program(names=3)
    language = BY_NAME[name]
    outcome = await run(job({language.file: render(nodes, name)}, language.command))
    assert trimmed(outcome.text).split() == interpreted(render(nodes, "Python"))[0].split()


@pytest.mark.parametrize("kind", SURGE_KINDS)
def test_each_kind_draws_by_its_seed_alone(kind: str) -> None:
    if not templates(kind):
        pytest.skip(f"no language of {kind} is installed")
    assert drafts(kind, 6, 1) == drafts(kind, 6, 1)
    assert drafts(kind, 6, 1)[:3] == drafts(kind, 3, 1)
    assert [d.files for d in drafts(kind, 6, 1)] != [d.files for d in drafts(kind, 6, 2)]


@boxed
async def test_truths_are_what_running_prints() -> None:
    items, refused = await generate(("CL", "TC"), 1, seed=3)
    assert not refused
    for item in items:
        again = trimmed((await run(job(item.files, item.command))).text)
        assert again == item.truth
        assert SCORERS[item.rule](again, item.truth) == 1.0
        assert item.command in item.question
        assert item.files[PYTHON.file].rstrip() in item.question


@boxed
@pytest.mark.full
async def test_items_of_all_kinds() -> None:
    items, refused = await generate(tuple(SURGE_KINDS), 18, seed=1)
    assert not [row for row in refused if "no language" not in row.why]
    for item in items:
        assert SCORERS[item.rule](item.truth, item.truth) == 1.0
        assert "not found" not in item.truth


@boxed
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import time; print(time.time_ns())", "something else each time"),
        ("", "prints 0 characters"),
        ("print('x' * 5000)", "prints 5000 characters"),
    ],
)
async def test_what_cannot_be_predicted_makes_no_item(text: str, why: str) -> None:
    made = await checked("ML", 0, Draft("Python", {"main.py": text}, PYTHON.command, "exact"))
    assert not isinstance(made, SurgeItem)
    assert why in made.why


async def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="no kind XX"):
        await generate(("XX",), 1, 0)
