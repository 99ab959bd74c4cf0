"""`paceline info --draft HEAD --probe`: what a head drafts for its model, as it is served and by PyTorch alone.

The model answers a few built-in prompts greedily, a request at a time, and the head drafts. Then a child process does
the same without native code. A head that keeps next to nothing in both is of another model, or was trained on other
states than the engine hands it; one that keeps less natively is computed wrongly here.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any

from paceline.core.params import SamplingParams
from paceline.engine.options import Options

PROBE_PROMPTS = (
    "A baker packs 6 rolls into each bag. On Monday she sells 14 bags and on Tuesday 9 bags more. How many rolls?",
    "Write a Python function that returns the largest of three numbers.",
    "Why is the sky blue?",
    "List the days of the week, and what each is named after.",
)
PROBE_ANSWER_TOKENS = 64
"""Tokens of each answer."""
PROBE_NODES = 15
"""Drafted tokens a pass, whatever a row costs here: where rows cost much, a head would be given none."""
LEAST_PROBE_TAU = 1.05
"""Tokens per pass below which a head counts as useless."""
SAME_TAU_SHARE = 0.15
"""Most that tokens per pass may differ between native code and PyTorch: texts part at near-ties."""


@dataclass(frozen=True, slots=True)
class HeadProbe:
    """What a head drafted for the prompts."""

    tau: float
    """Tokens per pass."""
    kept: tuple[float, ...]
    """Share of passes that kept a token at depth 1, 2, ..."""
    texts: tuple[tuple[int, ...], ...]
    """The answers, in tokens."""


def probe(options: Options, method: str) -> HeadProbe:
    """Answer the prompts in this process."""
    from paceline import LLM

    wish = SamplingParams(
        temperature=0.0, max_tokens=PROBE_ANSWER_TOKENS, ignore_eos=True, drafter=method, max_nodes=PROBE_NODES
    )
    given: dict[str, Any] = asdict(replace(options, drafter="none", length="fixed", max_requests=1))
    with LLM(**given) as llm:
        if llm.text.tokenizer.chat_template:
            found = [llm.chat([{"role": "user", "content": prompt}], wish)[0] for prompt in PROBE_PROMPTS]
        else:
            found = llm.generate(list(PROBE_PROMPTS), wish, progress=False)
    stats = [answer.stats for answer in found]
    passes, depth = sum(it.passes for it in stats), max(len(it.kept) for it in stats)
    kept = [sum(it.kept[d] for it in stats if d < len(it.kept)) / passes for d in range(depth)]
    tokens = sum(it.generated for it in stats)
    return HeadProbe(tokens / passes, tuple(kept), tuple(tuple(answer.token_ids) for answer in found))


def reference(options: Options, method: str) -> HeadProbe:
    """Answer the prompts in a child process that has no native code."""
    with ProcessPoolExecutor(1, get_context("spawn"), _without_native) as pool:
        return pool.submit(probe, options, method).result()


def _without_native() -> None:
    os.environ["PACELINE_NATIVE"] = "0"


def verdict(served: HeadProbe, plain: HeadProbe) -> str:
    """One sentence on both."""
    if plain.tau < LEAST_PROBE_TAU:
        return "The head keeps next to nothing: it is of another model, or reads other states than it was trained on."
    if abs(served.tau / plain.tau - 1) > SAME_TAU_SHARE:
        return "The two differ by more than near-ties explain: this head is computed wrongly here; please report it."
    return "The two agree."


def probe_lines(served: HeadProbe, plain: HeadProbe) -> Sequence[str]:
    """Lines for people."""
    rows = [
        f"{name}: {it.tau:.2f} tokens per pass, kept by depth: {' '.join(f'{share:.2f}' for share in it.kept)}"
        for name, it in (("As served", served), ("By PyTorch alone", plain))
    ]
    equal = sum(a == b for a, b in zip(served.texts, plain.texts))
    return (
        f"Probe: {len(PROBE_PROMPTS)} built-in prompts, {PROBE_ANSWER_TOKENS} tokens each, {equal} texts equal.",
        *rows,
        verdict(served, plain),
    )
