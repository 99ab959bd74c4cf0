"""Drafts that clients ask for by a drafter's name, within what they may take of a step of several clients: some
drafters run many passes for a draft. `auto` knows what drafters cost, and the engine's own is chosen by who starts it:
those are not held up."""

from collections import Counter
from collections.abc import Mapping, Sequence

from paceline.core.plan import Item
from paceline.sample.mask_turns import ALONE_TIMES, EXTRA_STEP_S, ClientDebts
from paceline.schedule.places import client_of, clients_of


class DraftTurns:
    """What named drafters have taken, by client: seconds beyond its share are paid back, without drafts meanwhile."""

    def __init__(self, own: str) -> None:
        """`own`: the engine's drafter."""
        self.own, self.debts, self.target = own, ClientDebts(), 0.0
        self._prices: dict[str, float] = {}
        """{drafter: seconds of a draft of the step before that had some}"""
        self._named = Counter[tuple[str, str]]()
        """Requests of the step, by drafter and client."""
        self._drafted, self._expected = Counter[str](), dict[str, float]()

    def begin(self, items: Sequence[Item]) -> None:
        """A step of these requests is drafted."""
        clients = clients_of(item.request for item in items)
        self._named = Counter((it.drafter, client_of(it.request)) for it in items if self._counts(it))
        self._drafted.clear()
        self._expected.clear()
        most = max(EXTRA_STEP_S * (ALONE_TIMES if len(clients) < 2 else 1), self.target / 2)
        self.debts.begin(most / max(1, len({client for _, client in self._named})))

    def affords(self, item: Item) -> bool:
        """May a draft be made for it? It is counted then."""
        if not self._counts(item):
            return True
        client, expected = client_of(item.request), self._expected.get(client_of(item.request), 0.0)
        price = self._prices.get(item.drafter, self.debts.share / 4)
        left = self.debts.left(client) - expected
        if left <= 0 or (expected and price > left):
            return False
        self._expected[client] = expected + price
        self._drafted[item.drafter] += 1
        return True

    def end(self, seconds: Mapping[str, float], target: float) -> None:
        """The step is done: what each drafter took, and the target's passes."""
        self.target = target
        for name, took in seconds.items():
            mine = {client: count for (drafter, client), count in self._named.items() if drafter == name}
            for client, count in mine.items():
                self.debts.charge(client, took * count / sum(mine.values()))
            if self._drafted[name]:
                self._prices[name] = took / self._drafted[name]

    def _counts(self, item: Item) -> bool:
        request = item.request
        return bool(client_of(request)) and not request.arms and item.drafter not in (self.own, "none")
