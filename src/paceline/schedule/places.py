"""Shares of the clients in what an engine has: places of running requests, and rows of prompts and drafts. Where there
is one client, nothing changes."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence

from paceline.core.plan import Item
from paceline.core.request import Request


class ClientShares:
    """Each client that has requests may hold as many places as any other. What one leaves the others take, and give
    back when it comes."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.rows: dict[str, int] = {}
        """Rows that each client with running requests was given, of prompts, outputs and drafts alike. One that comes
        begins at the least of those there."""

    def queue(self, waiting: Sequence[Request], running: Sequence[Request]) -> list[Request]:
        """Waiting requests in the order of admission: those within the share of their client, then the others."""
        return ranked(waiting, Counter(map(client_of, running)), self.places)

    def order(self, running: Sequence[Request]) -> list[Request]:
        """Running requests, most important first: those within the share of their client, then the others."""
        return ranked(running, Counter(), len(running))

    def claim(self, waiting: Sequence[Request], running: Sequence[Request]) -> Request | None:
        """The oldest waiting request of a client that holds less than its share, if there is one."""
        clients, held = clients_of([*waiting, *running]), Counter(map(client_of, running))
        if len(clients) < 2:
            return None
        entitled = [r for r in waiting if held[client_of(r)] < share(len(running), clients)]
        return min(entitled, key=lambda r: (r.arrival, r.id), default=None)

    def surplus(self, waiting: Sequence[Request], order: Sequence[Request]) -> Iterator[Request]:
        """Running requests beyond the shares, of the client that holds most and of its the least important first.
        `order`: all that run, most important first."""
        held, left = Counter(map(client_of, order)), list(order)
        most = share(len(order), clients_of([*waiting, *order]))
        while (largest := max(held.values(), default=0)) > most:
            last = next(r for r in reversed(left) if held[client_of(r)] == largest)
            left.remove(last)
            held[client_of(last)] -= 1
            yield last

    def gave(self, items: Iterable[Item]) -> None:
        """Count the rows of a step."""
        for item in items:
            client = client_of(item.request)
            self.rows[client] = self.rows.get(client, 0) + item.rows

    def turned(self, turn: Sequence[Request], running: Sequence[Request]) -> list[Request]:
        """The requests of a step; of those whose prompts are computed, those of the client that was given the fewest
        rows come first."""
        clients = clients_of(running)
        least = min((self.rows[client] for client in clients if client in self.rows), default=0)
        self.rows = {client: self.rows.get(client, least) for client in sorted(clients)}
        queues: dict[str, deque[Request]] = {}
        for request in turn:
            if request.pending > 1:
                queues.setdefault(client_of(request), deque()).append(request)
        if len(queues) < 2:
            return list(turn)
        ranked = sorted(queues, key=lambda client: self.rows[client])
        drawn = deque[Request]()
        while len(drawn) < sum(r.pending > 1 for r in turn):
            drawn.extend(queues[client].popleft() for client in ranked if queues[client])
        return [drawn.popleft() if r.pending > 1 else r for r in turn]


def share(places: int, clients: Collection[str]) -> int:
    """Places of each of the clients that are there."""
    return max(1, places // max(1, len(clients)))


def ranked(requests: Sequence[Request], held: Counter[str], places: int) -> list[Request]:
    """Requests in order, those within the share of their client first. `held`: places that are taken, by client."""
    clients = clients_of(requests) | set(held)
    if len(clients) < 2:
        return list(requests)
    most, taken = share(places, clients), Counter(held)
    within, beyond = list[Request](), list[Request]()
    for request in requests:
        taken[client_of(request)] += 1
        (within if taken[client_of(request)] <= most else beyond).append(request)
    return within + beyond


def client_of(request: Request) -> str:
    return request.params.client


def clients_of(requests: Iterable[Request]) -> set[str]:
    return set(map(client_of, requests))
