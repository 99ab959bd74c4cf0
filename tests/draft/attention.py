"""Heads with attention of their own, or none at all, on the toy: the engine of their tests."""

from dataclasses import dataclass

from paceline.draft.head import HEADS
from paceline.engine.loop import Engine
from tests.lossless.cases import Setting
from tests.toy import VOCAB

NAMES = [name for name in ("eagle3", "ppd", "falcon", "longspec") if name in HEADS.names()]


@dataclass
class WithHead(Setting):
    """The toy's engine with one head alone as its component: the group is the head's for every drafter."""

    head: str = "eagle3"

    def engine(self, *, user: object = None) -> Engine:
        made = super().engine()
        session = made.session
        components = {self.head: HEADS.get(self.head).sketch(2, VOCAB, 1)}
        return Engine(made.model, made.config, components=components, tokenizer=session.tokenizer, eos=session.eos,
                      clock=made.clock)  # fmt: skip
