"""What an engine's rounds were, for comparisons of twins."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline import LLM, SamplingParams
from paceline.core.plan import Note
from paceline.core.result import Round
from paceline.engine.recorder import Recorder
from tests.sample.ruled import SOME_RULES


class Rounds(Recorder):
    """The rounds of every item of every step, and what merged drafters said of their parts."""

    def __init__(self) -> None:
        self.each: list[list[Round]] = []
        self.found: list[Note] = []

    def ran(self, results: Any, found: Any, work: Any, parts: Any, times: Any) -> None:
        self.each += [result.rounds for result in results]
        self.found += found


@contextmanager
def answered(
    target: Path, head: Path | None, drafter: str, nodes: int, prompts: Sequence[Any], tokens: int,
    quantize: str | None = None, patience: float = 1e9, temperature: float = 0.0,
) -> Iterator[tuple[list[list[int]], list[list[Round]], LLM]]:  # fmt: skip
    """Texts and rounds of prompts with a head, and the engine that wrote them. In int8 some rules shape the texts."""
    most = None if drafter == "none" else nodes
    with LLM(target, head, drafter=drafter, quantize=quantize, memory="100M", nodes=most) as llm:
        llm.engine.desk.policy.patience = patience  # type: ignore[attr-defined]
        llm.engine.recorder = rounds = Rounds()
        rules = SOME_RULES if quantize == "int8" else {}
        params = SamplingParams(
            temperature=temperature, max_tokens=tokens, seed=1, ignore_eos=True, top_k=0, top_p=1.0, **rules
        )  # fmt: skip
        outputs = llm.generate(list(prompts), params, progress=False)
        assert llm.engine.drafters.errors == []
        yield [output.token_ids for output in outputs], rounds.each, llm
