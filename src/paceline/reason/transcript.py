"""`Transcript`: the accepted text of one answer, and the author of each part."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.request import FinishReason, Request
from paceline.engine.stop import Stopper


@dataclass(slots=True)
class AuthoredSegment:
    """A part of the text that one author wrote."""

    author: str
    start: int
    """Characters of the text before this segment."""
    end: int
    tokens: int
    notes: dict[str, Any] = field(default_factory=dict)
    """What the policy has to say of it: a score, why it was written, which branch it is."""

    def shown(self, text: str) -> dict[str, Any]:
        """As answers carry it; `text` is the whole."""
        return {"author": self.author, "text": text[self.start : self.end], "tokens": self.tokens, **self.notes}


class Transcript:
    """Accepted text of an answer that several models write. Tokens are only appended, so what was shown stays.
    `request` looks like any other request to its readers, but no engine has it; the token that ends the text is found
    as an engine would find it."""

    def __init__(self, request: Request, stopper: Stopper) -> None:
        """`stopper`: fresh, of that request."""
        self.request, self.stopper = request, stopper
        self.segments: list[AuthoredSegment] = []
        self.why = ""
        """Why it ended, where `finish` does not say it: deadline, budget, ..."""

    @property
    def prompt(self) -> list[int]:
        return self.request.prompt

    @property
    def tokens(self) -> list[int]:
        """Tokens accepted so far."""
        return self.request.output

    @property
    def text(self) -> str:
        return self.request.text

    @property
    def open(self) -> bool:
        """May tokens be added?"""
        return self.request.finish is None

    @property
    def left(self) -> int:
        """Tokens that may still be added."""
        return self.request.left

    def add(self, tokens: Sequence[int], author: str, **notes: Any) -> int:
        """Accept tokens, up to the one that ends the text; how many were taken."""
        request, before, start = self.request, len(self.tokens), len(self.text)
        for token in tokens:
            if not self.open:
                break
            request.append(token, author)
            request.finish = self.stopper.push(token)
            request.text = self.stopper.text()
            request.marks.append(len(request.text))
        taken = len(self.tokens) - before
        request.stats.generated += taken
        if taken:
            self._joined(AuthoredSegment(author, start, len(self.text), taken, notes))
        return taken

    def _joined(self, new: AuthoredSegment) -> None:
        """Text that a stop string may begin with is shown late: it belongs to the segment that had its tokens."""
        if self.segments:
            new.start = self.segments[-1].end
        last = self.segments[-1] if self.segments else None
        if last is not None and last.author == new.author and last.notes == new.notes:
            last.end, last.tokens = new.end, last.tokens + new.tokens
        else:
            self.segments.append(new)

    def end(self, finish: FinishReason, why: str = "") -> None:
        """End the text; `why` says for what reason."""
        if self.open:
            self.stopper.finish()
            self.request.text = self.stopper.text()
            self.request.finish = finish
        self.why = self.why or why
        if self.segments:
            self.segments[-1].end = len(self.text)

    def shown(self) -> list[dict[str, Any]]:
        """The segments of the text, as answers carry them."""
        return [segment.shown(self.text) for segment in self.segments]
