"""The output of one response, item by item as its text is read, and the events that tell of it."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from paceline.serve.parser import Content, Delta, Reasoning, ToolCall

Event = tuple[str, dict[str, Any]]
"""(type, fields)"""


class Output:
    """Items in the order in which they begin; at most the last one is open.

    Reasoning -> reasoning    Content -> message    ToolCall -> function_call
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open = False
        self._logprobs: list[dict[str, Any]] = []
        """Log-probabilities of tokens whose text is still to come."""

    def read(self, deltas: Sequence[Delta], logprobs: Sequence[dict[str, Any]] = ()) -> Iterator[Event]:
        """What these deltas add; `logprobs`: of the tokens that they come from."""
        self._logprobs.extend(logprobs)
        for delta in deltas:
            match delta:
                case Reasoning(text):
                    self._logprobs.clear()
                    yield from self._text("reasoning", text)
                case Content(text):
                    yield from self._text("message", text)
                case ToolCall(_, id, name, arguments):
                    if id is not None:
                        yield from self.close()
                        yield from self._begin(
                            {"type": "function_call", "id": f"fc_{uuid4().hex}", "call_id": id, "name": name,
                             "arguments": "", "status": "in_progress"}
                        )  # fmt: skip
                    if arguments:
                        self.items[-1]["arguments"] += arguments
                        yield self._event("response.function_call_arguments.delta", delta=arguments)

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        part: dict[str, Any]
        if not self._open or self.items[-1]["type"] != kind:
            yield from self.close()
            if kind == "message":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                yield from self._begin(
                    {"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant", "content": [],
                     "status": "in_progress"}
                )  # fmt: skip
            else:
                part = {"type": "reasoning_text", "text": ""}
                yield from self._begin(
                    {"type": "reasoning", "id": f"rs_{uuid4().hex}", "summary": [], "content": [],
                     "encrypted_content": None, "status": "in_progress"}
                )  # fmt: skip
            self.items[-1]["content"].append(part)
            yield self._event("response.content_part.added", part=dict(part), content_index=0)
        part = self.items[-1]["content"][0]
        part["text"] += text
        if kind == "message":
            logprobs, self._logprobs = self._logprobs, []
            part["logprobs"].extend(logprobs)
            yield self._event("response.output_text.delta", delta=text, content_index=0, logprobs=logprobs)
        else:
            yield self._event("response.reasoning_text.delta", delta=text, content_index=0)

    def _begin(self, item: dict[str, Any]) -> Iterator[Event]:
        self.items.append(item)
        self._open = True
        yield "response.output_item.added", {"output_index": len(self.items) - 1, "item": {**item}}

    def close(self, status: str = "completed") -> Iterator[Event]:
        """End the item that is open, if one is."""
        if not self._open:
            return
        item, self._open = self.items[-1], False
        item["status"] = status
        if item["type"] == "message":
            item["content"][0]["logprobs"].extend(self._logprobs)
        self._logprobs.clear()
        if item["type"] == "function_call":
            yield self._event("response.function_call_arguments.done", arguments=item["arguments"], name=item["name"])
        else:
            part = item["content"][0]
            name = "output_text" if item["type"] == "message" else "reasoning_text"
            more = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            yield self._event(f"response.{name}.done", text=part["text"], content_index=0, **more)
            yield self._event("response.content_part.done", part=part, content_index=0)
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": item}

    def _event(self, kind: str, /, **fields: Any) -> Event:
        return kind, {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}
