"""Models of instances for the simulator: one that decodes a batch, and one that takes what a predictor says."""

from dataclasses import dataclass, field
from math import inf

from paceline.cluster.workflow.simulate import SimulatedCall
from paceline.cluster.workflow.tasks import CallPredictor, CallWork, Instance, Task


@dataclass(frozen=True, slots=True)
class Speed:
    """What a kind of engine takes."""

    prefill: float
    """Seconds a prompt token."""
    decode: float
    """Seconds an output token, alone."""
    crowd: float = 0.0
    """Each further call of the batch makes an output token longer by this share."""

    def seconds(self, work: CallWork) -> float:
        return work.tokens_in * self.prefill + work.tokens_out * self.decode


@dataclass(slots=True)
class Batched:
    """An engine whose steps are a prefill of one prompt, or a token for each running call (HexGen's simulator, with
    whole runs of steps at once)."""

    speed: Speed
    at: float = 0.0
    prefills: list[tuple[str, float, float]] = field(default_factory=list)
    """(id, seconds left, output tokens)."""
    decodes: dict[str, float] = field(default_factory=dict)
    """Tokens left, by id."""

    def start(self, task: Task, call: SimulatedCall, now: float) -> None:
        self._advance(now)
        self.prefills.append((task.id, call.tokens_in * self.speed.prefill, call.tokens_out))

    def next(self) -> tuple[float, str]:
        rest = sum(left for _, left, _ in self.prefills)
        tokens = {**{id: count for id, _, count in self.prefills}, **self.decodes}
        if not tokens:
            return inf, ""
        first = min(tokens, key=lambda id: (tokens[id], id))
        return self.at + rest + tokens[first] * self._token(len(tokens)), first

    def end(self, id: str, now: float) -> None:
        self._advance(now)
        self.decodes.pop(id)

    def stop(self) -> None:
        self.prefills.clear()
        self.decodes.clear()

    def _token(self, batch: int) -> float:
        return self.speed.decode * (1.0 + self.speed.crowd * (batch - 1))

    def _advance(self, now: float) -> None:
        """To `now`, which is no later than `next` says."""
        left = max(0.0, now - self.at)
        while self.prefills and left >= self.prefills[0][1]:
            id, took, tokens = self.prefills.pop(0)
            left -= took
            self.decodes[id] = tokens
        if self.prefills:
            id, rest, tokens = self.prefills[0]
            self.prefills[0] = (id, rest - left, tokens)
        elif self.decodes:
            done = left / self._token(len(self.decodes))
            self.decodes = {id: max(0.0, tokens - done) for id, tokens in self.decodes.items()}
        self.at = max(self.at, now)


@dataclass(slots=True)
class Predicted:
    """Calls that take what a predictor says of their true tokens, times their noise, whatever else runs."""

    predictor: CallPredictor
    instance: Instance
    ends: dict[str, float] = field(default_factory=dict)

    def start(self, task: Task, call: SimulatedCall, now: float) -> None:
        work = CallWork(call.work.step, call.tokens_in, call.tokens_out)
        self.ends[task.id] = now + self.predictor.seconds(work, self.instance) * call.noise

    def next(self) -> tuple[float, str]:
        return min(((at, id) for id, at in self.ends.items()), default=(inf, ""))

    def end(self, id: str, now: float) -> None:
        del self.ends[id]

    def stop(self) -> None:
        self.ends.clear()
