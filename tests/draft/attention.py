"""Heads with attention of their own on the toy, with random weights: what the tests of each need."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from paceline.core.component import Component
from paceline.draft.eagle3 import Eagle, Shape, random_weights
from paceline.draft.ppd import Prompts
from paceline.engine.loop import Engine
from paceline.model.linear import plain
from tests.lossless.cases import MAX_LEN, Setting
from tests.toy import VOCAB

FLOAT = plain(torch.float32, torch.device("cpu"))


def eagle(fused: bool = True, draft_vocab: int = 5) -> Eagle:
    """A head on the toy. With a draft vocabulary of 5 the last ids are never drafted."""
    shape = Shape(
        width=2, heads=2, kv_heads=1, head_dim=4, ffn=8, vocab=VOCAB,
        draft_vocab=draft_vocab, max_len=MAX_LEN, taps=("post_norm",), fused=fused,
    )  # fmt: skip
    d2t = torch.arange(draft_vocab) % 2 if fused else None
    return Eagle(shape, random_weights(shape, 3), FLOAT, None if d2t is None else d2t.sort().values)


def prompts() -> Prompts:
    return Prompts(torch.ones(3, 2), VOCAB, MAX_LEN, ())


MAKE: dict[str, Callable[[], Component]] = {"eagle3": eagle, "ppd": prompts}


@dataclass
class WithHead(Setting):
    """The toy's engine with these heads as components."""

    heads: tuple[str, ...] = field(default_factory=lambda: tuple(MAKE))

    def engine(self, *, user: object = None) -> Engine:
        made = super().engine()
        components = {n: it for n, it in made.components.items() if n != "target"}
        components |= {name: MAKE[name]() for name in self.heads}
        session = made.session
        return Engine(made.model, made.config, components=components, tokenizer=session.tokenizer, eos=session.eos,
                      clock=made.clock)  # fmt: skip
