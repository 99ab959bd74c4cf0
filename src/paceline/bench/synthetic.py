"""`--synthetic-acceptance`: what speculation would bring if drafts were right so often and cost nothing.

The text that plain decoding made is known, so a draft can be right as often as one likes, and the texts stay equal to
plain decoding's. For models without a draft, random weights among them: verification, layout and commits are real.
"""

from collections.abc import Sequence

from paceline.bench.harness import PLAIN_METHOD, BenchPlan, BenchRun, groups, time_batch
from paceline.core.errors import InputError
from paceline.core.noise import SimulationNoise, uniform
from paceline.engine.loop import Engine


class Synthetic:
    """A user's drafter that proposes the known continuation, each token of it right with this chance, whatever came of
    the others: at depth d a draft is kept with chance**d."""

    def __init__(self, chance: float, seed: int = 0) -> None:
        if not 0.0 <= chance <= 1.0:
            raise InputError(f"synthetic_acceptance is {chance}, but a chance is between 0 and 1.")
        self.chance, self.noise = chance, SimulationNoise(seed)
        self.texts: list[list[int]] = []
        """Prompts and what plain decoding made of them."""

    def rehearse(self, engine: Engine, prompts: Sequence[Sequence[int]], plan: BenchPlan) -> None:
        """Learn the texts, of the first temperature."""
        run = BenchRun()
        for group in groups(len(prompts), plan.batches[0]):
            wishes = [plan.wish(PLAIN_METHOD, plan.temperatures[0], i) for i in group]
            time_batch(engine, [prompts[i] for i in group], wishes, run)
        self.texts = [[*prompt, *output] for prompt, output in zip(prompts, run.outputs)]

    def propose(self, tokens: list[int], count: int) -> list[int]:
        """A chain below a known text's beginning; nothing below another."""
        length = len(tokens)
        found = next((number for number, text in enumerate(self.texts) if text[:length] == tokens), None)
        if found is None:
            return []
        rest = self.texts[found][length : length + count]
        return [token if self._right(found, length, depth) else other(token) for depth, token in enumerate(rest)]

    def _right(self, text: int, length: int, depth: int) -> bool:
        return uniform(self.noise.key(text, length, depth)) < self.chance


def other(token: int) -> int:
    """A token other than this one."""
    return token - 1 if token else 1
