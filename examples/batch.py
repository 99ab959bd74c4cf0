"""Several prompts at once: results in order, and what speculation did for each."""

from small import small

from paceline import SamplingParams

PROMPTS = [
    "Tom has 3 apples and buys 4 more. How many has he?",
    "A baker packs 6 rolls into each bag and sells 14 bags. How many rolls does she sell?",
    "Write a Python function that counts the lines of a file.",
]

with small() as llm:  # LLM("path/or/hub-id", draft="path/or/hub-id") for yours
    conversations = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    for prompt, answer in zip(PROMPTS, llm.chat(conversations, SamplingParams(temperature=0, max_tokens=80))):
        print(f"{prompt}\n  {answer.text!r}\n  {answer.stats.tau:.2f} tokens per pass of the model\n")
