"""The drafter of docs/add-a-drafter.md: taken from the page, and lossless."""

import random
import re
from pathlib import Path

from paceline.core.params import SamplingParams
from paceline.draft import DRAFTERS
from tests.lossless.cases import FEATURES, Setting, Wish, check

PAGE = Path(__file__).parents[2] / "docs" / "add-a-drafter.md"


def test_the_example_of_the_docs_works() -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert len(code.splitlines()) < 60
    DRAFTERS.names()
    try:
        exec(compile(code, str(PAGE), "exec"), {"__name__": "repeat"})
        rng = random.Random(0)
        kept = 0
        for case, feature in enumerate(FEATURES):
            params = {
                "top_p": 1.0,
                "top_k": 0,
                **FEATURES[feature],
                "drafter": "repeat",
                "max_tokens": 20,
                "seed": case,
            }
            wishes = [Wish([rng.randrange(7) for _ in range(5)], SamplingParams(**params).resolve({}))]
            engine = check(Setting(model_seed=case % 3, nodes={"repeat": 3}), wishes)
            kept += "repeat" in engine.drafters
        assert kept == len(FEATURES)
    finally:
        DRAFTERS._entries.pop("repeat", None)
