"""Guesses that a grammar rules out go before they cost a row."""

from collections.abc import Sequence

from paceline.core.forest import PROBE, ROOT, Forest, Law
from paceline.core.plan import Item
from paceline.sample.sampler import Path, Sampler
from paceline.verify import VERIFIERS


def prune(part: Forest, items: Sequence[Item], sampler: Sampler) -> Forest:
    """A drafter's forest without the candidates that cannot follow their parent, and what hangs below them.

    Under a rule that looks at q a drawn node stays, whatever its token (D2): it is judged, and its chance is 0. What
    was drawn from `Sampler.scores` is possible anyway, so the rows of a drafter with a cache stay where they are.
    """
    if all(items[place].request.params.grammar is None for place in set(part.request)):
        return part
    out, places, paths = Forest(q=part.q, entries=part.entries), {ROOT: ROOT}, dict[int, Path]({ROOT: ()})
    for i, (request, token, parent) in enumerate(zip(part.request, part.token, part.parent)):
        if parent not in places or not (
            stays(part, i, items) or sampler.possible(items[request].request, paths[parent], token)
        ):
            continue
        paths[i] = (*paths[parent], token)
        at = (request, token, places[parent])
        places[i] = out.add(*at, law=part.law[i], q_row=part.q_row[i], role=part.role[i])
        out.row[places[i]] = part.row[i]
        out.source[places[i]] = 0, i
    return out


def stays(part: Forest, node: int, items: Sequence[Item]) -> bool:
    """Is this node kept without a look at its token?"""
    item = items[part.request[node]]
    drawn = part.law[node] is not Law.POINT and VERIFIERS.card(item.verifier).guarantee != "text"
    return drawn or part.role[node] is PROBE or item.request.params.grammar is None
