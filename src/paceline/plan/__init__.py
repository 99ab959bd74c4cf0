"""Who gets which rows. Pure decisions: no tensors, no clock (D8)."""

from typing import Protocol

from paceline.core.request import Request


class LengthPolicy(Protocol):
    """How many nodes a request drafts this step. May depend on anything known before the draft is drawn."""

    def nodes(self, request: Request, running: int) -> int:
        """0 .. MAX_CANDIDATES for `request`, one of `running` requests that decode in this step."""

    def depth(self, request: Request) -> int:
        """How deep its tree may be: no accepted path may run beyond the request's end."""
