"""`none`: plain decoding, a tree of one node."""

from collections.abc import Sequence

from paceline.core.forest import Forest, Law
from paceline.core.registry import Offers
from paceline.draft import DRAFTERS, Ask, Host, View


@DRAFTERS.register("none", Offers(summary="plain decoding", laws=frozenset(Law), shape="chain", nodes=0))
class NoDrafter:
    def __init__(self, host: Host) -> None:
        pass

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        return Forest()

    def learn(self, view: View) -> None:
        pass
