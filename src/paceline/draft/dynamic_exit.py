"""`del`: `early_exit` with the exit layer and the length chosen for each draft (DEL, arXiv 2504.05598).

What every exit would have drafted (its *shadow token*) is read from hidden states that the round has computed anyway.
With L layers, alpha the share of right shadow tokens at exit l, and drafts of g tokens, a round is expected to bring

    TPL(l, g) = (1 - alpha^(g+1)) / (1 - alpha) / (L + h + g (l + h))        tokens per layer,

where the head, which every pass ends with, costs h layers (the paper counts none). The best pair is taken. Where the
planner knows prices (`MinChance`) the best one brings most tokens beyond what its passes of l layers and the head and
its rows cost in seconds. The paper lets a draft go on beyond g, up to the first token of less probability than tau, the
mean of what right and wrong shadow tokens had: del.stop=confidence. On the models measured here g itself brings more
tokens per layer (docs/self-speculation.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.core.component import TARGET
from paceline.core.forest import Law
from paceline.core.plan import MinChance
from paceline.core.registry import DrafterSetting, Offers
from paceline.draft import DRAFTERS, NEED_EXIT, NEED_PROGRAM, Ask, Host, View
from paceline.draft.apart import Apart
from paceline.draft.early_exit import EXITS, EarlyExit, Leaving
from paceline.draft.model import Growing
from paceline.model import spans

EXIT_STOP = DrafterSetting("stop", "length", choices=("length", "confidence"))
"""What ends a draft: the length that pays best, or a token of less probability than tau, as in the paper."""
EXIT_ROUND_DECAY = 0.95
"""Weight of a round at each later one."""
MAX_EXIT_DRAFT = 17
"""Longest draft that is considered."""
PROMPT = 32
"""Rows at the end of a prompt that the first statistics are of."""
SETTLED, LEARN_EVERY, IDLE_LEARN_EVERY = 16, 4, 16
"""Rounds after which the statistics learn from every fourth round only (LEARN_EVERY), or from every sixteenth if
no draft pays (IDLE_LEARN_EVERY): reading them costs passes of the head."""
SETTLED_ROUNDS = 64
"""Rounds of all requests after which a new request starts with their average."""
EXIT_DOUBT = 2.0
"""Wrong shadow tokens that every exit is held to have had: three right ones are no reason for a draft of 17."""
INHERIT = 8.0
"""Most observations that a new request takes over from those before it."""


def tokens_per_layer(alpha: float, layer: int, length: int, layers: int, head: float = 0.0) -> float:
    """TPL (DEL, section 3.2): expected tokens of a round over the layers that it runs, where a pass's head costs as
    much as `head` of them."""
    return expected_tokens(alpha, length) / (layers + head + length * (layer + head))


def expected_tokens(alpha: float, length: int) -> float:
    """Expected tokens of a round with a draft of this length."""
    return float(length + 1) if alpha >= 1 else (1 - alpha ** (length + 1)) / (1 - alpha)


@dataclass(slots=True)
class Shadows:
    """Decayed sums over shadow tokens, for each exit."""

    right: Tensor
    """[E] how many were what the target drew"""
    wrong: Tensor
    sure_right: Tensor
    """[E] sum of the probability that those had"""
    sure_wrong: Tensor
    rounds: int = 0

    @classmethod
    def none(cls, exits: int) -> "Shadows":
        return cls(*torch.zeros(4, exits, dtype=torch.float64))

    def add(self, right: Tensor, sure: Tensor | None = None) -> None:
        """One round: [E, N] of the shadow tokens, 1 where right (or the chance of it). sure [E, N]: the probability of
        each exit's best token there; None: it is not asked for."""
        sure = torch.zeros_like(right) if sure is None else sure
        new = (right, 1 - right, right * sure, (1 - right) * sure)
        for mine, more in zip((self.right, self.wrong, self.sure_right, self.sure_wrong), new):
            mine.mul_(EXIT_ROUND_DECAY).add_(more.sum(1))
        self.rounds += 1

    def tau(self, exit: int) -> float:
        """The probability that tells right tokens of an exit from wrong ones: between their means; 0 where one of the
        two was not seen."""
        if not (right := float(self.right[exit])) or not (wrong := float(self.wrong[exit])):
            return 0.0
        return (float(self.sure_right[exit]) / right + float(self.sure_wrong[exit]) / wrong) / 2

    def part(self) -> "Shadows":
        """What a new request takes over."""
        seen = float((self.right + self.wrong).max()) if len(self.right) else 0.0
        scale = min(1.0, INHERIT / seen) if seen else 1.0
        return Shadows(self.right * scale, self.wrong * scale, self.sure_right * scale, self.sure_wrong * scale)

    def alpha(self) -> list[float]:
        """Share of right ones of each exit, with EXIT_DOUBT wrong ones more; 0 where none was seen."""
        return (self.right / (self.right + self.wrong + EXIT_DOUBT)).tolist()


def best(
    alpha: Sequence[float],
    exits: Sequence[int],
    layers: int,
    most: int = MAX_EXIT_DRAFT,
    price: MinChance | None = None,
    head: float = 0.0,
) -> tuple[int, int]:
    """(number of the exit, length) of the largest TPL, or of most tokens less what they cost; length 0 where no draft
    pays. A pass's head costs as much as `head` layers."""
    pairs = [(0, 0), *((e, g) for e in range(len(exits)) for g in range(1, most + 1))]

    def value(pair: tuple[int, int]) -> float:
        layer, length = exits[pair[0]], pair[1]
        chance = alpha[pair[0]] if length else 0.0
        if price is None or not price.target:
            return tokens_per_layer(chance, layer, length, layers, head)
        share = (layer + head) / (layers + head)
        return expected_tokens(chance, length) - length * (price.row + price.target * share)

    return max(pairs, key=value)


@dataclass(slots=True)
class ExitMemory:
    """State of one request."""

    shadows: Shadows
    seen: int = 0
    """Rounds."""
    drafts: bool = True
    """Was a draft to pay in the latest one?"""


@DRAFTERS.register(
    "del",
    Offers(
        summary="the target's lower layers draft, where and as long as tokens per layer are most",
        laws=frozenset({Law.SHARED_NOISE, Law.SAMPLED}),
        shape="chain",
        nodes=MAX_EXIT_DRAFT,
        needs=frozenset({NEED_PROGRAM}),
        taps=("post_norm",),
        exits=EXITS,
        stops_early=True,
        auto=("del",),
        settings=(EXIT_STOP,),
        auto_needs=frozenset({NEED_EXIT}),
    ),
)
class DynamicExit(EarlyExit):
    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.target, self.head = host.embeds(TARGET), spans.head_layers(self.model)
        self.by_confidence = host.setting("del", "stop") == "confidence"
        self.sure: Tensor | None = None
        """[E, N]: probabilities of the tokens that `_of_prompt` or `_of_round` has looked at last, where they count."""
        self.common = Apart(lambda: Shadows.none(len(self.exits)))
        """Counts over all requests of a tenant."""

    def leaving(self, ask: Ask, view: View) -> Leaving:
        nothing = Leaving(ask, ask.txn.base, most=0)
        if not self.exits:
            return nothing
        memory = self._memory(ask, view)
        shadows = memory.shadows
        exit, length = self._best(shadows, min(MAX_EXIT_DRAFT, ask.item.chain), ask.item.min_chance)
        memory.drafts = length > 0
        if not length:
            return nothing
        # the length is decided here, and no node ends it
        free = ask._replace(item=ask.item._replace(min_chance=None))
        if self.by_confidence:
            return Leaving(
                free, ask.txn.base, layer=self.exits[exit], most=MAX_EXIT_DRAFT, tau=shadows.tau(exit), least=1
            )
        return Leaving(free, ask.txn.base, layer=self.exits[exit], most=length)

    def chances(
        self, drawing: Sequence[Growing], scores: Tensor, drawn: Sequence[int], hidden: Tensor | None
    ) -> list[float]:
        """No draft ends early: its length is g. With del.stop=confidence it ends behind a distribution whose best token
        has less than tau."""
        if not self.by_confidence:
            return [1.0] * len(drawing)
        best = scores.softmax(-1).amax(-1).tolist()
        return [float(not isinstance(g, Leaving) or sure >= g.tau) for g, sure in zip(drawing, best)]

    def learn(self, view: View) -> None:
        for ask in view.asks:
            tokens, hidden = view.results[ask.place].tokens, view.hidden.get(ask.place, {})
            taps = [f"input:{layer}" for layer in self.exits]
            if not tokens or tokens[-1] < 0 or not taps or any(tap not in hidden for tap in taps):
                continue
            memory, common = self._memory(ask, view), self.common.of(ask.request)
            memory.seen += 1
            if not ask.request.output and ask.item.given > 1:
                memory.drafts = (
                    common.rounds < SETTLED_ROUNDS
                    or self._best(memory.shadows, MAX_EXIT_DRAFT, ask.item.min_chance)[1] > 0
                )
                if not memory.drafts:
                    continue
                found = self._of_prompt(hidden, taps)
            elif self._due(memory, common):
                found = self._of_round(ask, view, tokens, torch.stack([hidden[tap][-len(tokens) :] for tap in taps]))
            else:
                continue
            for shadows in (memory.shadows, common):
                shadows.add(found, self.sure)

    def _best(self, shadows: Shadows, most: int, price: MinChance | None = None) -> tuple[int, int]:
        return best(shadows.alpha(), self.exits, self.layers, most, price, self.head)

    def _due(self, memory: ExitMemory, common: Shadows) -> bool:
        """Do the statistics learn from this round?"""
        new = memory.seen <= SETTLED and common.rounds < SETTLED_ROUNDS
        return new or memory.seen % (LEARN_EVERY if memory.drafts else IDLE_LEARN_EVERY) == 0

    def _memory(self, ask: Ask, view: View) -> ExitMemory:
        return view.slot(ask.request, lambda: ExitMemory(self.common.of(ask.request).part()))

    def _of_prompt(self, hidden: Mapping[str, Tensor], taps: Sequence[str]) -> Tensor:
        """The most probable token of each exit against the target's own, at the last rows of a prompt."""
        states = [hidden[tap][-PROMPT:] for tap in (*taps, "post_norm")]
        count, width = states[0].shape
        logits = spans.head(self.model, torch.cat(states[:-1]).view(-1, width), self.layers)
        mine = logits.view(len(taps), count, -1)
        self.sure = mine.softmax(-1).amax(-1).double() if self.by_confidence else None
        return (mine.argmax(-1) == self.target.head(states[-1]).argmax(-1)).to(torch.float64)

    def _of_round(self, ask: Ask, view: View, tokens: list[int], states: Tensor) -> Tensor:
        """What each exit would have drawn at the rows [E, N, H] against what the target did. All of them stand in the
        text, so none is conditioned on a wrong draft."""
        exits, count, width = states.shape
        refs = [(ask.request, tuple(tokens[:i])) for _ in range(exits) for i in range(count)]
        scores = self.sampler.scores(refs, spans.head(self.model, states.reshape(-1, width), self.layers))
        self.sure = scores.softmax(-1).amax(-1).view(exits, count).double() if self.by_confidence else None
        if ask.law is Law.SAMPLED and not ask.request.params.greedy:
            q, p = self.sampler.probs(refs, scores), view.scores(ask.place).exp() if view.scores else None
            assert p is not None
            return torch.minimum(q.view(exits, count, -1), p.to(q.dtype)).sum(-1).to(torch.float64)
        keys = [ask.request.target_noise.key(ask.request.index(i)) for _ in range(exits) for i in range(count)]
        drawn = self.sampler.draw(refs, scores, keys)
        right = torch.tensor([token == own for token, own in zip(drawn, tokens * exits)], dtype=torch.float64)
        return right.view(exits, count)
