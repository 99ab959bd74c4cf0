"""Fair shares between keys: the virtual token counter (VTC, Sheng et al., OSDI'24, algorithm 2)."""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

from paceline.core.request import Request

PROMPT_TOKEN, OUTPUT_TOKEN = 1.0, 2.0
"""What a computed token costs its key; one found in the prefix cache costs nothing. A drafted row that was not
kept costs what a row of a prompt does."""


class Fair:
    """Admits for the key that was served least. While two keys both have requests waiting, what they were served
    differs by less than what the running requests and one prompt cost; a key that comes back starts at the least of
    those there, so time without requests earns nothing.

    An admitted request keeps the place of that moment: shares steer admission, and pre-emption takes the latest.
    """

    def __init__(self) -> None:
        self.served: dict[str, float] = {}
        """Cost of what each key was given, lifted when it comes back. Keys without requests that would be lifted
        anyway are forgotten."""
        self._live: dict[int, tuple[Request, float]] = {}
        """Requests that are not finished, and what was charged for them."""
        self._floor = 0.0

    def __call__(self, requests: Sequence[Request], now: float) -> list[Request]:
        self._charge()
        for request in sorted(requests, key=lambda r: r.id):
            self._meet(request)
        placed = [r for r in requests if r.admitted is not None]
        placed.sort(key=lambda r: (r.admitted or 0.0, r.id))
        return [*placed, *self._draw(r for r in requests if r.admitted is None)]

    def _charge(self) -> None:
        """Add what was computed since the last look, and let the finished go."""
        for request, charged in list(self._live.values()):
            total = max(charged, cost(request))
            self.served[request.key] += total - charged
            if request.finish is None:
                self._live[request.id] = request, total
            else:
                del self._live[request.id]
                self._floor = max(self._floor, self.served[request.key])
        keys = self._keys()
        if keys:
            self._floor = min(self.served[key] for key in keys)
        self.served = {key: c for key, c in self.served.items() if key in keys or c > self._floor}

    def _meet(self, request: Request) -> None:
        """Lift the key of a new request, unless it has others."""
        if request.id in self._live:
            return
        keys = self._keys()
        if request.key not in keys:
            floor = min((self.served[key] for key in keys), default=self._floor)
            self.served[request.key] = max(self.served.get(request.key, 0.0), floor)
        self._live[request.id] = request, 0.0

    def _keys(self) -> set[str]:
        return {request.key for request, _ in self._live.values()}

    def _draw(self, requests: Iterable[Request]) -> list[Request]:
        """The oldest request of the least served key, as if its prompt were served; and so on."""
        queues: dict[str, deque[Request]] = {}
        for request in sorted(requests, key=lambda r: (r.arrival, r.id)):
            queues.setdefault(request.key, deque()).append(request)
        heap = [(self.served[key], queue[0].arrival, queue[0].id, key) for key, queue in queues.items()]
        heapq.heapify(heap)
        drawn: list[Request] = []
        while heap:
            served, _, _, key = heapq.heappop(heap)
            request = queues[key].popleft()
            drawn.append(request)
            if queue := queues[key]:
                prompt = PROMPT_TOKEN * len(request.prompt)
                heapq.heappush(heap, (served + prompt, queue[0].arrival, queue[0].id, key))
        return drawn


def cost(request: Request) -> float:
    """What a request was given so far. A prompt is charged whole when it is admitted; recomputation is free."""
    if request.admitted is None:
        return 0.0
    prompt = len(request.prompt) - request.stats.cached
    lost = request.stats.drafted - request.stats.accepted
    return PROMPT_TOKEN * (prompt + lost) + OUTPUT_TOKEN * len(request.output)
