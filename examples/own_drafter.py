"""A drafter of your own in ten lines: a function that guesses how a text goes on. Wrong guesses cost time, never text.

One that keeps state, draws from a distribution or runs a model of its own is a class: docs/add-a-drafter.md.
"""

from paceline import LLM, SamplingParams

PROMPT = "Count: 1 2 3 4 1 2 3 4 1 2 3 4"


def repeat(tokens: list[int], count: int) -> list[int]:
    """At most `count` tokens: what followed when the last token stood here before."""
    last = tokens[-1]
    for at in range(len(tokens) - 2, -1, -1):
        if tokens[at] == last:
            return tokens[at + 1 : at + 1 + count]
    return []


params = SamplingParams(temperature=0, max_tokens=40)
with LLM(drafter=repeat, dtype="float32") as llm, LLM(drafter="none", dtype="float32") as plain:
    [drafted] = llm.generate(PROMPT, params)
    [alone] = plain.generate(PROMPT, params)
print(drafted.text)
print("the same text:", drafted.text == alone.text)
print(f"{drafted.stats.tau:.2f} tokens per pass, {drafted.stats.acceptance_rate:.0%} of the guesses were right")
