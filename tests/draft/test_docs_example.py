"""The drafters of docs/add-a-drafter.md: taken from the page, and lossless."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.core.params import SamplingParams
from paceline.draft import DRAFTERS
from tests.lossless.cases import FEATURES, Setting, Wish, check
from tests.lossless.test_law import g_test, joint_law, sample

PAGE = Path(__file__).parents[2] / "docs" / "add-a-drafter.md"
EXAMPLES = {"repeat": 0, "fan": 1}


@pytest.fixture(params=EXAMPLES)
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[EXAMPLES[request.param]]
    assert len(code.splitlines()) < 60
    DRAFTERS.names()
    exec(compile(code, str(PAGE), "exec"), {"__name__": request.param})
    yield request.param
    DRAFTERS._entries.pop(request.param)


def test_the_example_is_lossless(name: str) -> None:
    rng = random.Random(0)
    kept = 0
    for case, feature in enumerate(FEATURES):
        params = {"top_p": 1.0, "top_k": 0, **FEATURES[feature], "drafter": name, "max_tokens": 20, "seed": case}
        wishes = [Wish([rng.randrange(7) for _ in range(5)], SamplingParams(**params).resolve({}))]
        engine = check(Setting(model_seed=case % 3, nodes={name: 3}), wishes)
        kept += name in engine.drafters.drafters
    assert kept == len(FEATURES)


def test_the_example_keeps_the_law(name: str) -> None:
    setting = Setting(
        model_seed=4, sharpness=1.0, draft_noise=2.0, blocks=400, block_size=8, max_requests=60, row_budget=512,
        nodes={name: 3}, check=False,
    )  # fmt: skip
    law = joint_law(setting, SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=0, ignore_eos=True).resolve({}))
    assert g_test(sample(setting, name, "rrs", "temperature", 0, 1000), law) > 1e-4
