"""`auto`, and `a|b`: the planner chooses the drafter for each request and step; not to draft is always a choice."""

from collections.abc import Sequence

from paceline.core.errors import InputError, IntegrityError
from paceline.core.forest import Forest, Law
from paceline.core.registry import Offers
from paceline.draft import DRAFTERS, Ask, Host, View


def card(name: str) -> Offers:
    """The card of a choice. InputError when its parts cannot be chosen from."""
    arms = tuple(name.split("|"))
    if len(set(arms)) < len(arms) or "none" in arms or "auto" in arms:
        raise InputError(f"Drafter {name!r} is not valid: name each drafter once, and neither 'none' nor 'auto'.")
    parts = [DRAFTERS.card(arm) for arm in arms]
    return Offers(
        summary="the best of " + ", ".join(arms),
        laws=frozenset[Law]().union(*(part.laws for part in parts)),
        shape="tree" if any(part.shape == "tree" for part in parts) else "chain",
        nodes=max(part.nodes for part in parts),
        needs=frozenset().union(*(part.needs for part in parts)),
        arms=arms,
    )


@DRAFTERS.register("auto", Offers("the drafter that brings most, or none", frozenset(Law), "chain", nodes=15))
class Auto:
    """Never asked: each step the planner puts one of the arms, or `none`, in its place."""

    def __init__(self, host: Host) -> None:
        pass

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        raise IntegrityError("A choice of drafters was asked to draft; the planner has to choose one first.")

    def learn(self, view: View) -> None:
        raise IntegrityError("A choice of drafters was asked to learn; the planner has to choose one first.")
