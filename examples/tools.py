"""A tool, called through OpenAI's client: start `paceline serve --chat-template examples/tools.jinja` first.

(The demo pair's own template shows no tools; most instruction-tuned models need no --chat-template.)
"""

import json
import sys
from typing import Any

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1] if sys.argv[1:] else "http://localhost:8000/v1", api_key="none")
model = client.models.list().data[0].id
NUMBER = {"type": "integer", "minimum": 0, "maximum": 999}
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": NUMBER, "b": NUMBER},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
messages: list[Any] = [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many has he?"}]
more: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 80, "tools": [ADD]}

asked = client.chat.completions.create(messages=messages, tool_choice="required", **more).choices[0].message
messages.append(asked.model_dump(exclude_none=True))
for call in asked.tool_calls or []:
    arguments = json.loads(call.function.arguments)  # type: ignore[union-attr]
    print("calls", call.function.name, arguments)  # type: ignore[union-attr]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": str(arguments["a"] + arguments["b"])})
print("says", client.chat.completions.create(messages=messages, tool_choice="none", **more).choices[0].message.content)
