"""What is sent: request bodies from prompts and flags, or from a recording.

A recording is a file of JSON lines. `at` is the arrival in seconds from any origin; everything else is the request's
own body, as {"at": 1.25, "prompt": "...", "max_tokens": 64}. `paceline bench record` makes one of live traffic.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal

import orjson

from paceline.bench.prompts import read_prompts, read_text
from paceline.core.errors import InputError

Endpoint = Literal["chat", "completions"]
API_PATHS: Mapping[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}
OWN_FIELDS = {"model", "stream", "stream_options"}
"""What this program must set itself."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of a recording."""

    at: float
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoadWish:
    """Fields that all requests share. `extra` overrides everything else, a recording overrides max_tokens, temperature
    and seed."""

    model: str
    endpoint: Endpoint = "chat"
    max_tokens: int = 128
    temperature: float | None = None
    seed: int = 0
    """Seed of the first request; each further request takes the next integer."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, own: Mapping[str, Any], number: int) -> bytes:
        """The JSON of request `number`, whose prompt or messages, and more, are in `own`."""
        limit = {} if "max_completion_tokens" in own else {"max_tokens": self.max_tokens}
        warmth = {} if self.temperature is None else {"temperature": self.temperature}
        fixed = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        given = self._shaped({k: v for k, v in own.items() if k not in OWN_FIELDS})
        return orjson.dumps({**limit, **warmth, "seed": self.seed + number, **given, **self.extra, **fixed})

    def _shaped(self, own: dict[str, Any]) -> dict[str, Any]:
        """A text becomes a user's message where the end point wants messages."""
        if self.endpoint == "chat" and "messages" not in own:
            return {"messages": [{"role": "user", "content": own.pop("prompt")}], **own}
        if self.endpoint == "completions" and "prompt" not in own:
            raise InputError("A recorded request has messages, not a prompt; replay it with --endpoint chat.")
        return own


class Supply:
    """Bodies one after another, in a cycle. A second call continues where the first ended, so that a sweep does not hit
    its own prompts in the server's prefix cache early."""

    def __init__(self, wish: LoadWish, prompts: Sequence[Mapping[str, Any]]) -> None:
        self.bodies = ((i % len(prompts), wish.body(prompts[i % len(prompts)], i)) for i in count())
        self.distinct = len(prompts)

    def take(self, number: int) -> list[tuple[int, bytes]]:
        """(which prompt, its body) of the next `number` requests."""
        return list(islice(self.bodies, number))


def from_prompts(path: Path, limit: int | None = None) -> list[Mapping[str, Any]]:
    """Bodies with a prompt alone, of a file that `paceline bench` reads."""
    return [{"prompt": prompt} for prompt in read_prompts(path, limit)]


def read_recording(path: Path) -> list[RecordedRequest]:
    """The lines in the order of their arrival, the first at 0. Raises InputError naming the line."""
    lines = sorted(_lines(path), key=lambda line: line.at)
    if not lines:
        raise InputError(f"{path} holds no requests; give one JSON object a line with at and prompt or messages.")
    return [RecordedRequest(line.at - lines[0].at, line.body) for line in lines]


def _lines(path: Path) -> Iterator[RecordedRequest]:
    for number, text in enumerate(read_text(path).split("\n"), start=1):
        if not text.strip():
            continue
        place = f"{path}, line {number}"
        try:
            entry = orjson.loads(text)
        except ValueError as error:
            raise InputError(f"{place} does not parse as JSON ({error}); give one JSON object a line.") from None
        if not isinstance(entry, dict) or not ({"prompt", "messages"} & entry.keys()):
            raise InputError(f'{place} has no request; expected is an object with "at" and "prompt" or "messages".')
        at = entry.pop("at", None)
        if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):
            raise InputError(f'{place} has no arrival; expected is "at", in seconds.')
        yield RecordedRequest(float(at), entry)
