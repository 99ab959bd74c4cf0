"""A drafter of everything that one may need, in one file: a component with K/V of its own that is made from the
target's hidden states, drafts in steps and in runs; and a verifier that reads hidden states. No file of the package
knows it."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from paceline.core.forest import Forest, Law
from paceline.core.proposer import Draft, Turn
from paceline.core.registry import Accepts, Need, Offers
from paceline.draft import DRAFTERS, Ask, Host, View
from paceline.engine.loop import Engine
from paceline.verify import VERIFIERS, Case
from paceline.verify.exact import Exact
from tests.lossless.cases import Setting
from tests.toy import ORDER, PHASES, VOCAB

NEED = Need("heads", "a head (give it as a component)")
State = tuple[float, float]


def fold(state: State, token: int) -> State:
    """The hidden state one token on."""
    return (state[0] + 1) % PHASES, (state[1] * (VOCAB + 1) + token) % (VOCAB + 1) ** ORDER


class Heads:
    """The component: a pool of hidden states by slot. The head that it would have is the target's own, wrong now and
    then."""

    kv_bytes_per_token, weight_bytes, max_len, vocab_size, width = 16, 0, 48, VOCAB, 2
    taps = ("post_norm",)
    abilities = frozenset({"run"})
    identity = "heads of tests"

    def allocate(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool: list[State] = [(-1.0, -1.0)] * (blocks * block_size)

    def move(self, source: list[int], target: list[int]) -> None:
        for slot, state in zip(target, [self.pool[slot] for slot in source]):
            self.pool[slot] = state

    def read(self, slots: list[int]) -> bytes:
        return array("d", [x for slot in slots for x in self.pool[slot]]).tobytes()

    def write(self, slots: list[int], packed: bytes) -> None:
        numbers = array("d", packed)
        for slot, state in zip(slots, zip(numbers[::2], numbers[1::2]), strict=True):
            self.pool[slot] = state

    def keep(self, slots: Sequence[int], states: torch.Tensor) -> None:
        for slot, state in zip(slots, states.tolist(), strict=True):
            self.pool[slot] = (state[0], state[1])


class HeadsDrafter:
    def __init__(self, host: Host) -> None:
        heads = host.components["heads"]
        assert isinstance(heads, Heads)
        self.heads, self.target = heads, host.embeds("target")

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        forest = Forest()
        for ask in asks:
            if self.catch_up(ask, view) and ask.item.nodes:
                tokens = self.chain(self.known(ask, ask.request.tokens[ask.txn.base : ask.known]), ask.item.chain)
                forest.add_chain(ask.place, tokens, ask.law)
        return forest

    def propose(self, asks: Sequence[Ask], view: View) -> "HeadsProposer | None":
        complete = [self.catch_up(ask, view) for ask in asks]
        return HeadsProposer(self, asks) if all(complete) else None

    def learn(self, view: View) -> None:
        for ask in view.asks:
            lease, states = ask.txn.lease, view.hidden[ask.place]["post_norm"]
            if lease.frontier["heads"] < ask.txn.base and not view.slots.get(ask.request.id):
                continue
            self.heads.keep(lease.slots(ask.txn.base, lease.length), states)
            view.advance(ask, "heads", lease.length)

    def catch_up(self, ask: Ask, view: View) -> bool:
        """Write what is held of the committed rows that the group lacks. Is it complete now?"""
        lease, held = ask.txn.lease, view.held[ask.place].get("post_norm", torch.empty(0, 2))
        complete = ask.txn.base - lease.frontier["heads"] <= len(held)
        if complete:
            start = lease.frontier["heads"]
            self.heads.keep(lease.slots(start, ask.txn.base), held[len(held) - (ask.txn.base - start) :])
        view.slots[ask.request.id] = complete
        return complete

    def known(self, ask: Ask, tokens: Sequence[int]) -> State:
        """The state behind the committed rows, from the pool, and these tokens."""
        base = ask.txn.base
        state = self.heads.pool[ask.txn.lease.slot(base - 1)] if base else self.blank()
        for token in tokens:
            state = fold(state, token)
        return state

    @staticmethod
    def blank() -> State:
        state: State = (0.0, 0.0)
        for _ in range(ORDER):
            state = (0.0, (state[1] * (VOCAB + 1) + VOCAB) % (VOCAB + 1) ** ORDER)
        return state

    def chain(self, state: State, most: int) -> list[int]:
        out = list[int]()
        while len(out) < most:
            token = int(self.target.head(torch.tensor([state]))[0].argmax())
            out.append((token + 1) % VOCAB if state[1] % 4 == 0 else token)
            state = fold(state, out[-1])
        return out


@dataclass
class HeadsProposer:
    drafter: HeadsDrafter
    asks: Sequence[Ask]
    error = None

    @property
    def texts(self) -> list[int]:
        return [ask.place for ask in self.asks]

    @property
    def nodes(self) -> list[int]:
        return [ask.item.chain for ask in self.asks]

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        out = list[Draft]()
        for turn in turns:
            ask = self.asks[turn.place]
            state = self.drafter.known(ask, [*ask.request.tokens[ask.txn.base : ask.known], *turn.said])
            tokens = self.drafter.chain(state, min(self.nodes[turn.place], turn.room, turn.most))
            out.append((tokens, range(-1, len(tokens) - 1)))
        return out

    def kept(self, turns: Sequence[Turn], paths: Sequence[Sequence[int]]) -> None:
        pass

    def native(self) -> None:
        return None


class Witness(Exact):
    """`exact`, and every judged row's hidden state is that of its path."""

    seen = 0

    def judge(self, case: Case) -> None:
        super().judge(case)
        paths = case.forest.paths(range(len(case.forest)))
        for node in case.line:
            if case.forest.request[node] not in case.places or not case.has_row(node):
                continue
            request = case.items[case.forest.request[node]].request
            context = [*request.tokens[: request.length + case.items[case.forest.request[node]].given], *paths[node]]
            state = HeadsDrafter.blank()
            for token in context:
                state = fold(state, token)
            assert case.hidden(node)["post_norm"].tolist() == list(state)
            Witness.seen += 1


@contextmanager
def registered() -> Iterator[None]:
    """As an installed plug-in would be, for a while."""
    DRAFTERS.names(), VERIFIERS.names()
    offers = Offers(
        "a head on the target", frozenset({Law.POINT}), "chain", 4, needs=frozenset({NEED}), group="heads", runs=True,
        auto=("heads",),
    )  # fmt: skip
    accepts = Accepts("exact, with a witness", (Law.POINT,), "tree", "text", taps=("post_norm",))
    DRAFTERS.register("heads", offers)(HeadsDrafter)
    VERIFIERS.register("witness", accepts)(Witness)
    try:
        yield
    finally:
        del DRAFTERS._entries["heads"], VERIFIERS._entries["witness"]


@dataclass
class WithHeads(Setting):
    """The toy's engine with the head as a component."""

    def engine(self, *, user: object = None) -> Engine:
        made = super().engine()
        components = {**{n: it for n, it in made.components.items() if n != "target"}, "heads": Heads()}
        session = made.session
        return Engine(made.model, made.config, components=components, tokenizer=session.tokenizer, eos=session.eos,
                      clock=made.clock)  # fmt: skip
