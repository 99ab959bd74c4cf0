"""Guesses that a grammar rules out go before they cost a row."""

from collections.abc import Sequence

from paceline.core.forest import PROBE, ROOT, Forest, Law
from paceline.core.plan import Item
from paceline.sample.sampler import Path, Sampler
from paceline.verify import VERIFIERS


def prune(part: Forest, items: Sequence[Item], sampler: Sampler) -> Forest:
    """A drafter's forest without the candidates that cannot follow their parent, and what hangs below them.

    Under a rule that looks at q a drawn node stays, whatever its token (D2): it is judged, and its chance is 0. What
    was drawn from `Sampler.scores` is possible anyway, so the rows of a drafter with a cache stay where they are. What
    hangs below a node goes as a whole where the masks so far took all the time that there is, whatever those tokens
    are. So a grammar whose masks grow at once costs a step one such mask where a place has one candidate, and one for
    each candidate of one place where it has several (`rrs`, `kseq`): not one for each candidate of the draft.
    """
    if all(items[place].request.params.grammar is None for place in set(part.request)):
        return part
    out, places, paths = Forest(q=part.q, entries=part.entries), {ROOT: ROOT}, dict[int, Path]({ROOT: ()})
    room = dict[tuple[int, int], bool]()
    for i, (request, token, parent) in enumerate(zip(part.request, part.token, part.parent)):
        if parent not in places:
            continue
        mine, judged = items[request].request, drawn(part, i, items)
        if judged and not room.setdefault((request, parent), sampler.room(mine)):
            continue
        if not (judged or stays(part, i, items) or sampler.possible(mine, paths[parent], token)):
            continue
        paths[i] = (*paths[parent], token)
        at = (request, token, places[parent])
        places[i] = out.add(*at, law=part.law[i], q_row=part.q_row[i], role=part.role[i])
        out.row[places[i]] = part.row[i]
        out.source[places[i]] = 0, i
        if judged:
            sampler.prepare(mine, paths[i])
    return out


def stays(part: Forest, node: int, items: Sequence[Item]) -> bool:
    """Is this node kept without a look at its token?"""
    return (
        drawn(part, node, items) or part.role[node] is PROBE or items[part.request[node]].request.params.grammar is None
    )


def drawn(part: Forest, node: int, items: Sequence[Item]) -> bool:
    """Whether a rule reads the q of this candidate."""
    guarantee = VERIFIERS.card(items[part.request[node]].verifier).guarantee
    return part.role[node] is not PROBE and part.law[node] is not Law.POINT and guarantee != "text"
