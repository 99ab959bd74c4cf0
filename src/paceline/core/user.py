"""What a user's own drafter is: the function behind `drafter=FUNCTION`."""

from collections.abc import Callable, Sequence

Proposal = Sequence[int] | Sequence[tuple[int, int]]
"""A chain of token ids, or a tree of (token id, index of its parent in the list, -1: the text's end)."""
UserFn = Callable[[list[int], int], Proposal]
"""(token ids of the text so far, most nodes) -> what may come next."""
