"""Structured output: an answer that keeps to a JSON schema, with any drafter."""

import json

from paceline import LLM, Grammar, SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {
        "item": {"enum": ["apples", "pencils", "rolls"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["item", "count"],
    "additionalProperties": False,
}

with LLM() as llm:
    params = SamplingParams(temperature=0, max_tokens=80, grammar=Grammar("json_schema", json.dumps(SCHEMA)))
    [answer] = llm.chat([{"role": "user", "content": "Tom has 3 apples and buys 4 more."}], params)
    order = json.loads(answer.text)
    print(order["count"], order["item"])
