"""`docs/matrix.md` by the join over the registries: `python -m tests.lossless.matrix_page > docs/matrix.md`."""

from pathlib import Path
from textwrap import fill

from paceline.core.registry import refusal
from paceline.draft import DRAFTERS
from paceline.draft.companion import COMPANIONS
from paceline.draft.head import HEADS
from paceline.verify import VERIFIERS
from tests.lossless.cases import FEATURES

PAGE = Path(__file__).parents[2] / "docs" / "matrix.md"
HAVE = frozenset(
    {"draft", "foreign", "callable", "target:program", "draft:program", *HEADS.names(), *COMPANIONS.names()}
)
"""An engine that was given everything: what is refused here is refused everywhere."""
LONG = {
    "allowed": "allowed tokens", "bias": "logit bias", "custom": "a processor of your own",
    "mask": "a mask of your own that follows the path", "grammar": "structured output (a regular expression)",
    "logprobs": "log-probabilities", "stop ids": "stop tokens",
}  # fmt: skip
LEAST = 200
"""Generated requests of a feature in a cell of the full run."""
EACH = 1
"""Requests of every feature in a cell of the default run."""

WORDS = {"text": "text", "distribution": "distribution", "none": "lossy"}
PROMISES = {
    "text": "the text is the one that plain decoding gives for the same seed, token for token",
    "distribution": "the text is another draw from the same distribution; greedy requests get the same text",
    "none": "neither, though every token is one that plain decoding could emit and greedy requests get the same text; "
    "the verifier must be asked for by name",
}
NAME = "…"
"""Stands for the drafter's name in a footnote."""

TOP = """\
# What works with what

A *drafter* guesses the next tokens, a *verifier* decides which of them stand (`drafter=` and `verifier=` of
`SamplingParams`). This page is printed from what each of them declares about itself. A pair that cannot be exact is
refused with the sentence given here, never served in another way.
"""
MERGED = """\
Several drafters can share one tree: `drafter="ngram+topk"`, any names joined by `+`, of which at most one uses the
draft model. Only `exact` can judge such a tree; any other verifier refuses it.
"""
BOTTOM = """\
A test regenerates this page and compares, tries every refused pair and compares its sentence, and runs every other pair
on a toy model in random batches, block sizes and row budgets, with pre-emption and with drafters that lose their
memory: at least {cases} generated requests for each pair, {each} of each feature (at least {least} of each with
`pytest -m full`). Under *text* every one equals plain decoding. Under *distribution* and *lossy* every token is
possible where it stands, greedy requests equal plain decoding, and a repeated run gives the same text. That
*distribution* keeps the distribution of plain decoding is tested apart (`tests/lossless/test_law.py`).

To regenerate it, from the root of the repository:

    python -m tests.lossless.matrix_page > docs/matrix.md
"""


def drafters() -> list[str]:
    """Plain decoding, then those that draft chains, then those that draft trees."""
    return sorted(DRAFTERS.names(), key=lambda d: (d != "none", DRAFTERS.card(d).shape, d))


def verifiers() -> list[str]:
    """The strongest guarantee first."""
    return sorted(VERIFIERS.names(), key=lambda v: (list(WORDS).index(VERIFIERS.card(v).guarantee), v))


def refusals() -> dict[tuple[str, str], str | None]:
    """The sentence with which each pair is refused; None for a legal one."""
    return {(d, v): refusal(d, DRAFTERS.card(d), v, VERIFIERS.card(v), HAVE) for d in drafters() for v in verifiers()}


def legal(*guarantees: str) -> list[tuple[str, str]]:
    """The legal pairs under rules with one of these guarantees (none given: all)."""
    wanted = guarantees or tuple(WORDS)
    return [(d, v) for (d, v), reason in refusals().items() if not reason and VERIFIERS.card(v).guarantee in wanted]


def general(drafter: str, sentence: str) -> str:
    """A refusal with NAME for the drafter's."""
    return sentence.replace(repr(drafter), repr(NAME))


def settings() -> list[list[str]]:
    """What can be set of drafters."""
    rows = [(name, setting) for name in drafters() for setting in DRAFTERS.card(name).settings]
    return [[f"`{name}.{it.name}`", it.expected, str(it.usual)] for name, it in rows]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def page() -> str:
    refused = refusals()
    notes = list(dict.fromkeys(general(d, reason) for (d, _), reason in refused.items() if reason))

    def cell(drafter: str, verifier: str) -> str:
        reason = refused[drafter, verifier]
        word = WORDS[VERIFIERS.card(verifier).guarantee]
        return f"refused ({notes.index(general(drafter, reason)) + 1})" if reason else word

    matrix = [[f"`{d}`", *(cell(d, v) for v in verifiers())] for d in drafters()]
    drafter_rows = [
        [f"`{d}`", card.summary, card.shape, ", ".join(need.text for need in sorted(card.needs)) or "nothing"]
        for d, card in ((d, DRAFTERS.card(d)) for d in drafters())
    ]
    verifier_rows = [
        [f"`{v}`", card.summary, card.shape, WORDS[card.guarantee]]
        for v, card in ((v, VERIFIERS.card(v)) for v in verifiers())
    ]
    parts = [
        TOP,
        table(["", *(f"`{v}`" for v in verifiers())], matrix),
        "".join(f"- **{WORDS[guarantee]}**: {promise}.\n" for guarantee, promise in PROMISES.items()),
        f"Refused ({NAME} is the drafter's name):\n",
        "".join(f"{number}. {note}\n" for number, note in enumerate(notes, 1)),
        f"No pair refuses a feature. Each of these is tested with every legal pair:\n"
        f"{fill(', '.join(LONG.get(name, name) for name in FEATURES), 119)}.\n",
        MERGED,
        "## Drafters\n",
        table(["", "what it drafts", "shape", "needs"], drafter_rows),
        "A drafter whose need is not met is refused too: \"Drafter '…' needs …\".\n",
        "Settings of drafters (`--drafter-set swift.ratio=0.3`, `drafter_settings=` in Python);\n"
        "none changes a text that the verifier keeps:\n",
        table(["", "value", "unless it is set"], settings()),
        "## Verifiers\n",
        table(["", "what it keeps", "judges at most a", "guarantee"], verifier_rows),
        "## How it is tested\n",
        BOTTOM.format(cases=EACH * len(FEATURES), each=EACH, least=LEAST),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
