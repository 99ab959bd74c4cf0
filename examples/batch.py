"""Several prompts at once: results in order, and what speculation did for each."""

from paceline import LLM, SamplingParams

PROMPTS = [
    "Tom has 3 apples and buys 4 more. How many has he?",
    "A baker packs 6 rolls into each bag and sells 14 bags. How many rolls does she sell?",
    "def count_lines(path):",
]

with LLM() as llm:  # the demo pair; LLM("path/or/hub-id", draft="path/or/hub-id") for yours
    for answer in llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=48)):
        print(f"{answer.prompt}\n  {answer.text!r}\n  {answer.stats.tau:.2f} tokens per pass of the model\n")
