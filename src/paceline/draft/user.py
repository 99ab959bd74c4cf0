"""`user`: a function of the user's proposes. It gets the text so far and the number of nodes, and returns a chain
(token ids) or a tree ((token id, parent) pairs, parent an earlier place in the list or -1)."""

from collections.abc import Sequence

from paceline.core.errors import InputError
from paceline.core.forest import ROOT, Forest, Law
from paceline.core.registry import Offers
from paceline.core.user import Proposal
from paceline.draft import DRAFTERS, NEED_FUNCTION, Ask, Host, View


@DRAFTERS.register(
    "user",
    Offers(
        summary="a function you pass in",
        laws=frozenset({Law.POINT}),
        shape="tree",
        nodes=5,
        needs=frozenset({NEED_FUNCTION}),
    ),
)
class UserDrafter:
    def __init__(self, host: Host) -> None:
        assert host.callable is not None
        self.function = host.callable
        self.vocab_size = host.vocab_size

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        forest = Forest()
        for ask in asks:
            if ask.item.nodes == 0:
                continue
            proposal = self.function(list(ask.request.tokens), ask.item.nodes)
            places: dict[int, int] = {ROOT: ROOT}
            for i, (token, parent) in enumerate(self._pairs(proposal)[: ask.item.nodes]):
                places[i] = forest.add(ask.place, token, places[parent], law=ask.law)
        return forest

    def _pairs(self, proposal: Proposal) -> list[tuple[int, int]]:
        """The proposal as checked (token, parent) pairs."""
        pairs: list[tuple[int, int]] = []
        for i, entry in enumerate(proposal):
            token, parent = entry if isinstance(entry, tuple) else (entry, i - 1)
            if not 0 <= token < self.vocab_size or not ROOT <= parent < i:
                raise InputError(
                    f"The user drafter proposed ({token}, {parent}) at place {i}; tokens must be in "
                    f"[0, {self.vocab_size}) and a parent is -1 or an earlier place."
                )
            pairs.append((token, parent))
        return pairs

    def learn(self, view: View) -> None:
        pass
