"""Learning while serving: a low-rank adapter on a small model's last hidden state, distilled from verified tokens in a
thread (OmniDraft, arXiv 2507.02659: on-line, on-policy, a hybrid loss, one adapter for each target).

    logits = Head (h + B A h)          h [N, H] behind the final norm; A [rank, H], B [H, rank], B zero at first
    loss   = mean of KL(q || p)        where the draft id d that the verified text has next is a token of the target,
                                       too, and p, what the verifier thought there, is known: both over the tokens that
                                       both models have, of which all but p's most probable ones count as one
             w CE(logits, d)           elsewhere; w = 1, or `HELD_OUT_SHARE` where the target has no such token

The states are those that the drafter computed anyway, of rows of the text and of its own drafts up to the first that
was not kept, so nothing but the head runs again. New rows are a test before they are a lesson: the adapter drafts while
it names more of their tokens than the model alone does, or what it began with (`paceline train crossvocab`). A verified
token is a draw of the target's distribution; cross entropy on draws is, in the mean, its forward KL. A run of several
passes has no p. The model's own weights never change. The adapter decides what is drafted, never what the answer says;
but how far it came in a given time is not repeatable."""

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

ADAPTER_RANK = 16
HELD_OUT_SHARE = 0.2
LEAST_REST, LEAST_LOG = 1e-6, -20.0
"""Least probability that is left for all others, and least log-probability, in a divergence."""
STEP_ROWS = 32
"""Rows of a step."""
BYTES = 32 << 20
"""Most bytes of rows that wait to be learned from; the oldest go."""
LR = 1e-3
EPOCHS = 4
"""How often a row is learned from, on average: a stream that is short is not learned by heart."""
LOOK_DECAY = 0.9
"""What earlier looks at new rows count for, from look to look."""
STOP_S = 10.0
"""Longest wait for a step at the end of the process."""
IDLE_LOOK_S = 0.02
"""Seconds between looks while there is nothing to learn from."""


@dataclass(slots=True)
class Judged:
    """What a verifier thought of the next token, for each row: draft ids [N, K], -1 for none, and log-probabilities
    [N, K], of which exp sums to at most 1."""

    ids: Tensor
    log_p: Tensor

    @classmethod
    def none(cls, rows: int, width: int) -> Self:
        return cls(torch.full((rows, width), -1), torch.full((rows, width), float("-inf")))

    @classmethod
    def of(cls, found: "Sequence[tuple[Tensor, Tensor] | None]", width: int) -> Self:
        made = cls.none(len(found), width)
        for row, law in enumerate(found):
            if law is not None:
                made.ids[row, : len(law[0])], made.log_p[row, : len(law[0])] = law
        return made

    def reverse_kl(self, logits: Tensor, shared: Tensor) -> Tensor:
        """[N]: KL(q || p) with q of logits [N, V] over the ids where `shared` [V]; what is not among `ids` is one event
        more, in both. Rows without any are 0."""
        known = self.ids >= 0
        log_q = logits.masked_fill(~shared, float("-inf")).log_softmax(-1).gather(1, self.ids.clamp(min=0))
        q = torch.where(known, log_q.exp(), 0.0)
        p = torch.where(known, self.log_p.exp(), 0.0)
        rest_q, rest_p = (1 - q.sum(-1)).clamp(min=LEAST_REST), (1 - p.sum(-1)).clamp(min=LEAST_REST)
        some = known & torch.isfinite(log_q)
        log_p = self.log_p.clamp(min=LEAST_LOG)
        inside = torch.where(some, q * (log_q.masked_fill(~some, 0.0) - log_p.masked_fill(~some, 0.0)), 0.0).sum(-1)
        each: Tensor = inside + rest_q * (rest_q.log() - rest_p.log())
        return torch.where(known.any(-1), each, 0.0)


def hybrid(logits: Tensor, token: Tensor, judged: Judged, shared: Tensor) -> Tensor:
    """[N] of the rows' logits [N, V]: the divergence where what a verifier thought is known, else the cross entropy."""
    known = (judged.ids >= 0).any(-1) & shared[token]
    told = F.cross_entropy(logits, token, reduction="none")
    return torch.where(known, judged.reverse_kl(logits, shared), told)


class Adapter:
    """A, B of one target, and the rows that they learn from. `step` is one thread's; `add` and `__call__` are the
    engine's."""

    def __init__(
        self, head: Callable[[Tensor], Tensor], width: int, most: int = BYTES, seed: int = 0,
        shared: Tensor | None = None, judged: int = 0, first: "tuple[Tensor, Tensor] | None" = None,
    ) -> None:  # fmt: skip
        """`head`: logits [N, V] of hidden states [N, H], linear in them. shared [V]: ids that are tokens of the target,
        too; None: nothing but tokens is learned. `judged`: most ids of what a verifier thought of a row. `first`: A and
        B that it begins with (train/crossvocab.py); None: it begins as the model alone."""
        self.head, self.shared, self.width_of_law = head, shared, judged
        self.stream = torch.Generator().manual_seed(seed)
        if first is None:
            first = (
                torch.randn(ADAPTER_RANK, width, generator=self.stream) * width**-0.5,
                torch.zeros(width, ADAPTER_RANK),
            )
            self.first = None
        else:
            self.first = first[0].clone(), first[1].clone()
        self.down, self.up = (part.clone().requires_grad_() for part in first)
        self.served = self.first
        """A and B as they draft; None: nothing was learned yet."""
        self.rows = max(1, most // (4 * width + 16 + 12 * judged))
        """Most that wait."""
        self.hidden = torch.zeros(0, width)
        self.token, self.weight = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
        self.judged = Judged.none(0, judged)
        self.lock = threading.Lock()
        self.optimizer = torch.optim.AdamW([self.down, self.up], lr=LR, weight_decay=0.0)
        self.steps, self.busy = 0, 0.0
        """Updates, and the seconds of a core that they took."""
        self.fed = self.tested = 0
        """Rows that came, and those of them that were looked at."""
        self.gain = 0.0
        """New rows whose token the adapter named, less those that what it began with did; earlier ones fade."""
        self.table: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Hidden states [N, H] for the head."""
        if (served := self.served) is None:
            return hidden
        down, up = served
        return hidden + (hidden.float() @ down.mT @ up.mT).to(hidden.dtype)

    def add(self, hidden: Tensor, token: Tensor, weight: Tensor, judged: Judged | None = None) -> None:
        """Rows [N, H], the draft ids [N] that followed them, how much each counts, and what a verifier thought there,
        where that is known."""
        judged = judged or Judged.none(len(token), self.width_of_law)
        with self.lock:
            self.judged.ids = torch.cat((self.judged.ids, judged.ids))[-self.rows :]
            self.judged.log_p = torch.cat((self.judged.log_p, judged.log_p))[-self.rows :]
            self.hidden = torch.cat((self.hidden, hidden.float()))[-self.rows :]
            self.token = torch.cat((self.token, token))[-self.rows :]
            self.weight = torch.cat((self.weight, weight))[-self.rows :]
            self.fed += len(token)

    def step(self) -> bool:
        """Look at rows that are new, then one update; False: there is nothing to learn from."""
        with self.lock:
            new = min(self.fed - self.tested, len(self.token))
            if self.steps * STEP_ROWS >= EPOCHS * self.fed:
                return False
            fresh = (self.hidden[-new:], self.token[-new:]) if new >= STEP_ROWS else None
            chosen = torch.randint(len(self.token), (min(STEP_ROWS, len(self.token)),), generator=self.stream)
            hidden, token, weight = self.hidden[chosen], self.token[chosen], self.weight[chosen]
            judged = Judged(self.judged.ids[chosen], self.judged.log_p[chosen])
            self.tested = self.fed if fresh else self.tested
        if self.table is None:
            self.table = self.head(torch.eye(hidden.shape[1])).bfloat16()
        if fresh is not None:
            self.look(*fresh)
        loss = (self.losses(self.logits(hidden), token, judged) * weight).sum() / weight.sum()
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.steps += 1
        made = self.down.detach().clone(), self.up.detach().clone()
        self.served = made if self.gain > 0 else self.first
        return True

    def losses(self, logits: Tensor, token: Tensor, judged: Judged) -> Tensor:
        """[N] of the rows' logits [N, V]."""
        if self.shared is None:
            return F.cross_entropy(logits, token, reduction="none")
        return hybrid(logits, token, judged, self.shared)

    def logits(self, hidden: Tensor) -> Tensor:
        """As the adapter stands, with a gradient; the head in bfloat16."""
        assert self.table is not None
        with torch.enable_grad():
            moved = hidden + hidden @ self.down.mT @ self.up.mT
            made: Tensor = (moved.bfloat16() @ self.table).float()
            return made

    @torch.no_grad()
    def look(self, hidden: Tensor, token: Tensor) -> None:
        """Test rows that nothing was learned from yet, at most 8 STEP_ROWS of the latest."""
        hidden, token = hidden[-8 * STEP_ROWS :], token[-8 * STEP_ROWS :]
        assert self.table is not None
        base = hidden if self.first is None else hidden + hidden @ self.first[0].mT @ self.first[1].mT
        alone = int(((base.bfloat16() @ self.table).argmax(-1) == token).sum())
        self.gain = LOOK_DECAY * self.gain + int((self.logits(hidden).argmax(-1) == token).sum()) - alone


def learn(adapter: Adapter, share: float) -> threading.Thread:
    """Start the thread: it works `share` of the time of one core, sleeps the rest, and ends when nobody else holds the
    adapter."""
    held = weakref.ref(adapter)
    thread = threading.Thread(target=work, args=(held, share), name="paceline-online", daemon=True)
    thread.start()
    _learning.add(thread)
    return thread


_learning: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_over = threading.Event()
"""The process ends."""


@atexit.register
def stop() -> None:
    """End all of them, before the interpreter does: a thread that ends amid PyTorch's code ends the process badly."""
    _over.set()
    for thread in list(_learning):
        thread.join(STOP_S)


def work(held: "weakref.ref[Adapter]", share: float) -> None:
    torch.set_num_threads(1)
    while not _over.is_set() and (adapter := held()) is not None:
        start = time.thread_time()
        learned = adapter.step()
        spent = time.thread_time() - start
        adapter.busy += spent
        del adapter
        _over.wait(spent * (1 - share) / share if learned else IDLE_LOOK_S)
