"""One request as the client saw it. Times are seconds from the start of the run; no clock is read here."""

from array import array
from dataclasses import dataclass, field
from typing import Any

import orjson

DONE_DATA = b"[DONE]"
TOKEN_FIELDS = ("content", "text", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")
"""Fields of a choice, or of its delta, that bring tokens."""


@dataclass(slots=True)
class ServerUsage:
    """What the server counted."""

    prompt: int
    completion: int
    cached: int = 0
    passes: int | None = None
    """Target passes, where the server tells them (usage.speculation)."""
    drafted: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, usage: dict[str, Any]) -> "ServerUsage":
        details, spec = usage.get("prompt_tokens_details") or {}, usage.get("speculation") or {}
        return cls(
            int(usage.get("prompt_tokens") or 0),
            int(usage.get("completion_tokens") or 0),
            int(details.get("cached_tokens") or 0),
            spec.get("target_passes"),
            int(spec.get("drafted") or 0),
            int(spec.get("accepted") or 0),
        )


@dataclass(slots=True)
class TimedAnswer:
    """A request and what came back.

    `intended` is when the arrival process wanted it; everything the user waits for counts from there, also the time in
    which this program, or a limit on connections, held it back. `fired` is when this program woke for it, `sent` when
    its bytes were written.
    """

    intended: float
    prompt: int = 0
    """Which prompt it carried."""
    fired: float = 0.0
    sent: float | None = None
    first: float | None = None
    """Time of the first chunk with tokens, in seconds; None: no such chunk came."""
    last: float | None = None
    """Time of the last chunk with tokens, in seconds."""
    ended: float | None = None
    """Time at which the answer ended or failed, in seconds."""
    gaps: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds between chunks with tokens."""
    usage: ServerUsage | None = None
    finished: bool = False
    """[DONE_DATA] came."""
    error: str | None = None
    """A short kind, such as "HTTP 429"."""
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.finished and self.error is None

    @property
    def chunks(self) -> int:
        return len(self.gaps) + (self.first is not None)

    @property
    def tokens(self) -> int:
        """Generated tokens as the server counted them; chunks, if it reported no usage."""
        return self.chunks if self.usage is None else self.usage.completion

    @property
    def ttft(self) -> float | None:
        """Time to first token, from the intended arrival."""
        return None if self.first is None else self.first - self.intended

    @property
    def e2e(self) -> float | None:
        return None if self.ended is None else self.ended - self.intended

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first: from the first chunk to the last, over the other tokens."""
        if self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)

    @property
    def held(self) -> float:
        """From the intended arrival to the first byte out; latencies "from sending" are shorter by this."""
        return 0.0 if self.sent is None else self.sent - self.intended

    def fail(self, kind: str, detail: str, now: float) -> None:
        """The first failure stands; after [DONE_DATA] nothing is missing."""
        if self.error is None and not self.finished:
            self.error, self.detail, self.ended = kind, detail, now

    def event(self, data: bytes, now: float) -> None:
        """Take the data of one server-sent event."""
        if data == DONE_DATA:
            self.finished, self.ended = True, now
            return
        try:
            chunk = orjson.loads(data)
            if error := chunk.get("error"):
                self.fail("error event", message(error), now)
                return
            if usage := chunk.get("usage"):
                self.usage = ServerUsage.of(usage)
            new = any(brings_tokens(choice) for choice in chunk.get("choices") or ())
        except (ValueError, AttributeError, TypeError) as error:
            self.fail("malformed event", f"{data[:80]!r}: {error}", now)
            return
        if new:
            self._tokens(now)

    def _tokens(self, now: float) -> None:
        if self.last is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now


def brings_tokens(choice: dict[str, Any]) -> bool:
    """Whether a streamed choice holds text (of whatever kind), not only a role or a finish reason."""
    delta = choice.get("delta", choice)
    return any(delta.get(name) for name in TOKEN_FIELDS)


def message(error: Any) -> str:
    """The sentence in an OpenAI error object."""
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
