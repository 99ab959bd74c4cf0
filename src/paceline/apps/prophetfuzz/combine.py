"""Which options together are risky (ProphetFuzz, section 4.2): sampled with reasons, repaired, counted.

The examples in the original are eight programs with known bugs; here their distilled kinds of risk stand in the prompt.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field, create_model

from ..common.ask import AppSettings, Prompt, sample
from ..common.client import AppClient
from ..common.forms import Json
from .constraints import Constraints
from .manual import Manual

FUZZ_COMBINE_SYSTEM = "You review programs in C for memory errors. You answer as JSON."
RISKS = (
    "values that size or multiply buffers", "limits that are checked in one place and used in another",
    "transformations of one buffer in place, one after the other", "layouts that change between two passes",
    "tables that are indexed by the input", "input that is cut short or trimmed before it is parsed",
    "errors that are suppressed so that work goes on", "rare formats of output", "options that change a size after it "
    "was allocated", "conversions between widths of numbers",
)  # fmt: skip
FUZZ_TASK = (
    "Kinds of risk: "
    + "; ".join(RISKS)
    + ".\nThink about which code each option runs and which buffers it shares with "
    "others. Then name combinations of two to four options that together are most likely to reach memory errors. "
    "Write each option as in the manual. Combinations should differ.\n"
    "Example. A program that scales pictures: --scale N sizes a buffer, --rotate turns the picture in it, --in-place "
    "keeps the old buffer. Reason: the buffer keeps its old size while rows become longer. Combinations: [--scale, "
    "--in-place], [--scale, --rotate, --in-place]."
)
SMALLEST, LARGEST = 2, 4
SKIPPED = frozenset({"--help", "--version", "-h", "-V"})


class Prediction(BaseModel):
    """One sample: why, then the combinations."""

    reason: Annotated[str, Field(max_length=200)]
    combinations: Annotated[list[list[str]], Field(min_length=1, max_length=8)]


def prediction(manual: Manual) -> type[Prediction]:
    """Prediction form for one program: it admits combinations of the program's own options, in any spelling of the
    page."""
    known = tuple(name for o in manual.options if o.key not in SKIPPED for name in o.spellings)
    if not known:
        return Prediction
    group = Annotated[list[Literal[known]], Field(min_length=SMALLEST, max_length=LARGEST)]  # type: ignore[valid-type]
    several = Annotated[list[group], Field(min_length=1, max_length=8)]
    return create_model("Prediction", __base__=Prediction, combinations=(several, ...))


@dataclass(frozen=True, slots=True)
class Risky:
    """A combination of option keys and how many samples named it."""

    options: tuple[str, ...]
    count: int


async def predict(
    client: AppClient, manual: Manual, constraints: Constraints, samples: int, deadline_s: float | None
) -> list[Risky]:
    """Combinations, those named most often first; all keep the constraints."""
    rules = " ".join(r.sentence() for r in constraints.relations)
    data = f"{manual.text()}\n{f'Rules: {rules}' if rules else ''}"
    settings = AppSettings(max_tokens=500, temperature=0.7, logprobs=False, deadline_s=deadline_s)
    answers = await sample(
        client, Json(prediction(manual)), Prompt(FUZZ_TASK, data, FUZZ_COMBINE_SYSTEM), samples, settings
    )
    said = [options for a in answers if a.value for options in a.value.combinations]
    return ranked(said, manual, constraints)


def ranked(said: Sequence[Sequence[str]], manual: Manual, constraints: Constraints) -> list[Risky]:
    """Known options only, at least two, repaired, counted; ties in the order of their names."""
    count: Counter[tuple[str, ...]] = Counter()
    for names in said:
        keys = {o.key for name in names if (o := manual.option(name)) and o.key not in SKIPPED}
        if len(keys) >= SMALLEST:
            count.update(tuple(sorted(g)) for g in constraints.repaired(keys))
    return [Risky(options, n) for options, n in sorted(count.items(), key=lambda item: (-item[1], item[0]))]


def at_random(manual: Manual, count: int, seed: int) -> list[Risky]:
    """Combinations of two to four options drawn evenly, without a model or constraints: the baseline."""
    draw = random.Random(seed)
    keys = [o.key for o in manual.options if o.key not in SKIPPED]
    found: dict[tuple[str, ...], Risky] = {}
    for _ in range(50 * count):
        size = draw.randint(SMALLEST, min(LARGEST, len(keys)))
        options = tuple(sorted(draw.sample(keys, size)))
        found.setdefault(options, Risky(options, 1))
        if len(found) == count:
            break
    return list(found.values())
