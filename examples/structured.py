"""Structured output: an answer that keeps to a JSON schema, with any drafter."""

import json

from small import small

from paceline import Grammar, SamplingParams

TASK = "Write as JSON which item is ordered and how many: I would like 12 pencils, please."
SCHEMA = {
    "type": "object",
    "properties": {
        "item": {"enum": ["apples", "pencils", "rolls"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["item", "count"],
    "additionalProperties": False,
}

with small() as llm:
    params = SamplingParams(temperature=0, max_tokens=80, grammar=Grammar("json_schema", json.dumps(SCHEMA)))
    [answer] = llm.chat([{"role": "user", "content": TASK}], params)
    order = json.loads(answer.text)
    print(order["count"], order["item"])
