"""`Sampler`: the one processor chain, for plain decoding, verification and drafters alike.

    raw logits -> grammar -> allowed tokens -> bad words -> min tokens -> logit bias -> repetition, presence, frequency
               -> custom callables -> temperature -> min-p -> top-k -> top-p -> log p -> + noise -> argmax

The order and the meaning of each step are vLLM's: what removes tokens whatever their logits comes first, so that
top-k and its like choose among those that are left. Rows are independent of one another, bit for bit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import InputError
from paceline.core.request import Request
from paceline.core.warp import LogitRules, Warp
from paceline.sample.chunks import chunks
from paceline.sample.edited import edited
from paceline.sample.filters import boundary, law
from paceline.sample.grammar import Grammars, Place, Structure
from paceline.sample.history import Custom, Penalties
from paceline.sample.mask_turns import MaskTurns
from paceline.sample.noise import keys_tensor
from paceline.sample.processors import AllowedTokens, BadWords, Encode, LogitBias, MinTokens, Processor
from paceline.sample.race import perturbed, race, winners

Path = tuple[int, ...]
RowRef = tuple[Request, Path]
"""Reference to a row of logits: the request, and the candidate tokens that follow its committed text there."""


@dataclass(slots=True)
class _Slot:
    """What the sampler keeps of one request: a state per processor it uses, for the committed text and, until the
    next commit, for every path that was asked for."""

    warp: Warp
    live: tuple[int, ...]
    """Places in the chain of the processors this request uses."""
    ruled: bool
    """Can `LogitRules` say what all of these do? A target may still be unable to apply them."""
    paths: dict[Path, tuple[Any, ...]] = field(default_factory=dict)
    warps: dict[Path, Warp] = field(default_factory=dict)
    """The same with the rules behind these paths, so that all rows and calls of a step share them."""


class Sampler:
    """Turns logits [L, V] into log p and tokens. One per engine; requests are distinguished by their id."""

    def __init__(self, vocab_size: int, encode: Encode | None = None, grammars: Grammars | None = None) -> None:
        """`encode`: text -> ids without special tokens, for bad words given as text. Without `grammars` a request that
        has one is refused."""
        self.vocab_size = vocab_size
        self.grammars = grammars or Grammars(None, vocab_size)
        self._words = BadWords(encode)
        self._custom = Custom()
        self.turns = MaskTurns()
        self._chain: tuple[Processor, ...] = (
            Structure(self.grammars, self.turns), AllowedTokens(), self._words, MinTokens(), LogitBias(), Penalties(),
            self._custom,
        )  # fmt: skip
        self._slots: dict[int, _Slot] = {}
        self._checked: object = None
        """The latest parameters that were found in order: those of all samples of a prompt are the same object."""

    def spell(self, words: Sequence[str | Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """Bad words as token ids; any thread may ask. Raises InputError."""
        return self._words.spell(words)

    def admit(self, request: Request) -> None:
        """Check the request's ids and follow its output so far. Raises InputError; nothing is kept then."""
        if self._checked is not request.params:
            check_ids(request, self._words.words(request), self.vocab_size)
        states = [processor.start(request) for processor in self._chain]
        self._checked = request.params
        live = tuple(i for i, state in enumerate(states) if state is not None)
        ruled = all(self._chain[i].rules(states[i]) is not None for i in live)
        self._slots[request.id] = _Slot(Warp.of(request.params), live, ruled, {(): tuple(states[i] for i in live)})
        for token in request.output:
            self.commit(request, (token,))

    def commit(self, request: Request, tokens: Sequence[int]) -> None:
        """`tokens` joined the request's text."""
        slot = self._slots[request.id]
        if slot.live:
            slot.paths, slot.warps = {(): self._states(slot, tuple(tokens))}, {}

    def drop(self, request: Request) -> None:
        """Forget the request (finished, aborted or pre-empted); an unknown one is no error."""
        self._slots.pop(request.id, None)
        self._custom.failures.pop(request.id, None)

    def scores(self, rows: Sequence[RowRef], logits: Tensor) -> Tensor:
        """Processed scores [L, V] in the dtype of `logits` (float32 or float64), which are not modified.

        Sampled rows: log p, normalised, -inf where removed. Greedy rows: the processed logits, not divided. A row
        from which everything was removed is all -inf (see `draw`). The result may be `logits` itself.
        """
        slots = self._of(rows)
        if all(slot.warp.greedy and not slot.live for slot in slots):
            return logits
        parts = list(chunks(logits))
        if len(parts) < 2:
            return self._scores(rows, logits)
        scores = torch.empty_like(logits)
        for part in parts:
            scores[part] = self._scores(rows[part], logits[part])
        return scores

    def _scores(self, rows: Sequence[RowRef], logits: Tensor) -> Tensor:
        slots = self._of(rows)
        logits = self._process(slots, rows, logits)
        sampled = [i for i, slot in enumerate(slots) if not slot.warp.greedy]
        if not sampled:
            return logits
        warps = [slots[i].warp for i in sampled]
        part = logits if len(sampled) == len(slots) else logits[sampled]
        log_p = law(part, warps)
        # An emptied row has no distribution: keep it all -inf, not NaN, which it is in all places
        if any(slot.live for slot in slots) and bool(log_p[:, 0].isnan().any()):
            log_p = log_p.masked_fill(part.amax(-1, keepdim=True) == float("-inf"), float("-inf"))
        if len(sampled) == len(slots):
            return log_p
        return logits.index_copy(0, torch.tensor(sampled, device=logits.device), log_p)

    def draw(self, rows: Sequence[RowRef], scores: Tensor, keys: Sequence[int]) -> list[int]:
        """The token of each row: argmax(scores + Gumbel(key)) in float64, greedy rows argmax(scores); the lowest id
        at ties. `keys` are the integers of `Stream.key`, one per row (unused for greedy rows). -1: the row is empty
        and its request must fail with `empty_message`."""
        slots = self._of(rows)
        sampled = [i for i, slot in enumerate(slots) if not slot.warp.greedy]
        if not sampled:
            return winners(scores)
        noise = keys_tensor([keys[i] for i in sampled], scores.device)
        sparse = all(slots[i].warp.filters for i in sampled)
        if len(sampled) == len(slots):
            return race(scores, noise, sparse)
        tokens = winners(scores)
        for i, token in zip(sampled, race(scores[sampled], noise, sparse)):
            tokens[i] = token
        return tokens

    def greedy(self, request: Request) -> bool:
        """Does it draw without noise?"""
        return self._slots[request.id].warp.greedy

    def warp(self, request: Request, path: Path = ()) -> Warp | None:
        """The request's temperature, filters and rules, as they stand behind `path`, if they alone make the
        distribution from the logits; None where anything else does too."""
        slot = self._slots[request.id]
        return self._warp(slot, path) if slot.ruled else None

    def _warp(self, slot: _Slot, path: Path = ()) -> Warp:
        if not slot.live:
            return slot.warp
        if path not in slot.warps:
            parts = [self._chain[i].rules(state) for i, state in zip(slot.live, self._states(slot, path))]
            rules = LogitRules(**{k: v for part in parts for k, v in (part or {}).items()})
            slot.warps[path] = replace(slot.warp, rules=rules)
        return slot.warps[path]

    def possible(self, request: Request, path: Path, token: int) -> bool:
        """Does the request's grammar, if it has one, allow `token` after the candidates `path`? No, too, where the
        masks before and after it would take too long for a guess."""
        if request.params.grammar is None:
            return True
        place = self._place(request, path)
        if not self.turns.knows(place) or not bool(place.parse.mask(place)[token]):
            return False
        after = self._place(request, (*path, token))
        return self.turns.knows(after) and after.parse.work(after)

    def held(self, requests: Sequence[Request]) -> list[int]:
        """Which of these must sit out of the next step, because their masks take too long; those of others are
        computed."""
        wanted = [r for r in requests if r.params.grammar and r.params.client and r.closing is None and not r.layer]
        alone = len({r.params.client for r in requests}) < 2
        return self.turns.held([(r, self._place(r)) for r in wanted], alone)

    def affords(self, request: Request, nodes: int) -> bool:
        """May `nodes` candidates be drafted, as far as their masks go?"""
        limited = request.params.grammar and request.params.client
        return not limited or self.turns.affords(self._place(request), nodes)

    def room(self, request: Request) -> bool:
        """Is there time left in this step for masks of its candidates?"""
        return not (request.params.grammar and request.params.client) or self.turns.room()

    def prepare(self, request: Request, path: Path) -> None:
        """Compute the mask after these candidates, as far as there is time, where other clients wait for it."""
        if request.params.grammar and request.params.client:
            self.turns.ready(self._place(request, path))

    def _place(self, request: Request, path: Path = ()) -> Place:
        """Place of its grammar: the first state of the chain, and so of those in use."""
        place: Place = self._states(self._slots[request.id], path)[0]
        return place

    def probs(self, rows: Sequence[RowRef], scores: Tensor) -> Tensor:
        """The distribution of each row, float64 [L, V]: one-hot for greedy rows, all 0 for empty ones."""
        p = scores.to(torch.float64).exp()
        greedy = [i for i, slot in enumerate(self._of(rows)) if slot.warp.greedy]
        if greedy:
            p[greedy] = 0.0
            for i, token in zip(greedy, winners(scores[greedy])):
                if token >= 0:
                    p[i, token] = 1.0
        return p

    def margin(self, rows: Sequence[RowRef], scores: Tensor, keys: Sequence[int]) -> list[float]:
        """Gap between the two largest perturbed scores of each row (greedy rows: between the two largest logits):
        a smaller change of the logits' differences cannot change the draw. For reports, not for the hot path."""
        noisy = perturbed(scores, keys_tensor(list(keys), scores.device))
        greedy = [i for i, slot in enumerate(self._of(rows)) if slot.warp.greedy]
        noisy[greedy] = scores[greedy].to(torch.float64)
        top = noisy.topk(2, dim=-1).values
        return (top[:, 0] - top[:, 1]).tolist()

    def boundary_margin(self, rows: Sequence[RowRef], logits: Tensor) -> list[float]:
        """How close each row's surviving set is to another one, from raw logits [L, V]; inf without filters. See
        `filters.boundary`. For reports, not for the hot path."""
        slots = self._of(rows)
        return boundary(self._process(slots, rows, logits), [slot.warp for slot in slots])

    def empty_message(self, request: Request) -> str:
        """Why a row of this request has no token left, in one sentence."""
        failure = self._custom.failures.get(request.id)
        if failure is not None:
            return f"A custom processor failed with {failure}."
        p = request.params
        gave_up = self._slots[request.id].paths[()][0].parse.failure if p.grammar else None
        if gave_up is not None:
            return f"The grammar's parser gave up ({gave_up}): give a simpler grammar."
        used = {"grammar": p.grammar, "allowed_tokens": p.allowed_tokens, "bad_words": p.bad_words,
                "min_tokens": p.min_tokens, "logit_bias": p.logit_bias, "processors": p.processors}  # fmt: skip
        names = [name for name, value in used.items() if value]
        if not names and not 1e-6 < (p.repetition_penalty or 1.0) < 1e6:
            return f"No finite score is left after repetition_penalty {p.repetition_penalty:g}: give one nearer to 1."
        if not names:
            return "The model's logits are not finite, so no token can be drawn: check the weights or use float32."
        return f"No token is left to draw after {' and '.join(names)}: allow more tokens or remove one of them."

    def _of(self, rows: Iterable[RowRef]) -> list[_Slot]:
        return [self._slots[request.id] for request, _ in rows]

    def _states(self, slot: _Slot, path: Path) -> tuple[Any, ...]:
        """States at the end of `path`, advancing only what no earlier call has: a token is followed once, not once
        for the draft and once for its verification."""
        known = next(n for n in range(len(path), -1, -1) if path[:n] in slot.paths)
        states = slot.paths[path[:known]]
        for n in range(known, len(path)):
            states = tuple(self._chain[i].advance(state, path[n]) for i, state in zip(slot.live, states))
            slot.paths[path[: n + 1]] = states
        return states

    def _process(self, slots: Sequence[_Slot], rows: Sequence[RowRef], logits: Tensor) -> Tensor:
        """The chain up to temperature, on a copy; `logits` itself when no row uses any of it."""
        used = {i for slot in slots for i in slot.live}
        if not used:
            return logits
        if all(slot.ruled for slot in slots):
            changed = edited(logits, [self._warp(slot) for slot in slots], [path for _, path in rows])
            if changed is not None:
                return changed
        return self._processed(slots, rows, logits, used)

    def _processed(self, slots: Sequence[_Slot], rows: Sequence[RowRef], logits: Tensor, used: set[int]) -> Tensor:
        """The processors one by one, on a copy."""
        logits = logits.clone()
        at = [
            dict(zip(slot.live, self._states(slot, path))) if slot.live else {} for slot, (_, path) in zip(slots, rows)
        ]
        for i in sorted(used):
            logits = self._chain[i].apply([states.get(i) for states in at], logits)
        return logits


def check_ids(request: Request, words: Iterable[Sequence[int]], vocab_size: int) -> None:
    """Raise InputError for a token id outside the vocabulary or a bias that is not a number below infinity."""
    p = request.params
    named: dict[str, Iterable[int]] = {
        "logit_bias": p.logit_bias or (),
        "allowed_tokens": p.allowed_tokens or (),
        "stop_token_ids": p.stop_token_ids,
        "eos_token_id": request.eos,
        "bad_words": [token for word in words for token in word],
    }
    for name, tokens in named.items():
        for token in tokens:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise InputError(f"{name} has token id {token!r}, but this model's ids are 0 to {vocab_size - 1}.")
    for token, bias in (p.logit_bias or {}).items():
        if isnan(bias) or bias == float("inf"):
            raise InputError(f"logit_bias of token {token} is {bias}, but it must be finite or -inf (never drawn).")
