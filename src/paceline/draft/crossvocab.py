"""`crossvocab`: a small model with another tokenizer drafts for any target (OmniDraft, arXiv 2507.02659).

    text so far ─ spelt by the draft's tokenizer ─▶ its greedy continuation ─ translated ─▶ a chain of target tokens

A run of the draft's tokens becomes the target token of the same bytes: the longest run that the n-gram cache has, else
one token by itself; where neither is, the chain ends. The cache grows while serving: each token that the target commits
and that the draft needs several tokens for is entered (crossvocab.translation=map leaves it empty). Guesses are points,
and `exact` makes any translation lossless. The paper's ratio test would need the distribution of every run that spells
a token; this one does without.

A draft ends where the chance that all of it is kept, by the draft model's own confidence, no longer pays; the paper
trains a head for this chance (crossvocab.stop=length: as many tokens as are asked for).

`paceline train crossvocab` makes an adapter for a pair (`TrainedAdapter`). With a share of a core to learn with
(`ForeignModel.online`), one follows the verified text (draft/online.py) and what the verifier thought of each of its
tokens.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from paceline.cache.cache import Cache
from paceline.cache.txn import Txn
from paceline.core.component import Ability, Embeds, Model, Rowless
from paceline.core.errors import CapacityError, CheckpointError, IntegrityError, RefusalError
from paceline.core.forest import Forest, Law
from paceline.core.registry import DrafterSetting, Need, Offers
from paceline.core.rows import RowsBuilder
from paceline.draft import DRAFTERS, Ask, Host, View
from paceline.draft.companion import CONFIG, Companion, restored
from paceline.draft.model import CHAIN_MIN_CHANCE, SHARP
from paceline.draft.online import ADAPTER_RANK, HELD_OUT_SHARE, Adapter, Judged, learn
from paceline.draft.surfaces import Surfaces

FOREIGN = "foreign"
NEED_FOREIGN = Need(FOREIGN, "a draft model of any vocabulary (give draft=PATH and drafter crossvocab)")
MOST_RUNS = 1 << 16
"""Entries of the n-gram cache; the oldest go. With keys and bytes about 16 MB."""
MAX_DRAFT_PIECES = 16
"""Draft tokens of one target token."""
TRANSLATION = DrafterSetting("translation", "grow", choices=("grow", "map"))
"""Does the n-gram cache grow, or are tokens of equal bytes alone translated?"""
FOREIGN_STOP = DrafterSetting("stop", "chance", choices=("chance", "length"))
"""Does a draft end where it no longer pays by its chance, or at its length?"""
SPELT_AGAIN, SPELT_ALIKE = 24, 4
"""Last tokens of a spelling that are spelt again when the text has grown, and how many in a row must come out as before
for those in front of them to stay."""
JUDGED_TOKENS = 32
"""Most probable tokens of a verifier's distribution that an adapter learns from; the others count as one."""


class TrainedAdapter(Companion):
    """A and B of draft/online.py, trained for a draft model and one target. They lie in a folder next to the draft
    model, as companions do, but belong to a pair of two vocabularies."""

    kind = "crossvocab"

    def __init__(self, width: int, vocab: int, rank: int = ADAPTER_RANK) -> None:
        super().__init__(width)
        self.vocab, self.rank = vocab, rank
        self.down = nn.Parameter(torch.randn(rank, width) * width**-0.5)
        self.up = nn.Parameter(torch.zeros(width, rank))

    def config(self) -> dict[str, Any]:
        return {"width": self.width, "vocab": self.vocab, "rank": self.rank}

    def misfit(self, target: Any, draft: Any) -> str | None:
        if draft.width != self.width:
            return f"reads hidden states of {self.width} numbers, but the draft model's have {draft.width}"
        if target.vocab_size != self.vocab:
            return f"was trained for a model of {self.vocab} tokens, but this one has {target.vocab_size}"
        return None

    @classmethod
    def lies_in(cls, draft: Path) -> bool:
        """Does a draft model's directory hold one?"""
        return (draft / cls.kind / CONFIG).is_file()

    @classmethod
    def beside(cls, draft: Path, target: Any, model: Any) -> "TrainedAdapter | None":
        """The one in a draft model's directory; None: there is none. Raises CheckpointError."""
        if not cls.lies_in(draft):
            return None
        made = restored(draft / cls.kind, cls).settle()
        assert isinstance(made, cls)
        if reason := made.misfit(target, model):
            raise CheckpointError(f"{draft / cls.kind} {reason}; train it for this pair, or delete the folder.")
        return made


@dataclass(eq=False)
class ForeignModel(Rowless):
    """A component: a model with a tokenizer of its own. Its K/V is in blocks of its own, as many as the target has; so
    it keeps no group."""

    model: Model
    own: Surfaces
    target: Surfaces
    vocab_size: int
    """The target's."""
    width: int = 0
    taps: tuple[str, ...] = ()
    abilities: frozenset[Ability] = frozenset()
    online: float = 0.0
    """Share of a core that an adapter of it learns with while it drafts; 0: nothing learns."""
    trained: TrainedAdapter | None = None
    """What a training made for this pair."""
    adapter: Adapter | None = None
    cache: Cache = field(init=False)
    weight_bytes: int = field(init=False)
    max_len: int = field(init=False)

    def __post_init__(self) -> None:
        self.weight_bytes, self.max_len = self.model.weight_bytes, self.model.max_len
        if self.online and cast(Any, self.model).spec.logit_softcap is not None:
            raise RefusalError("online is given, but the draft model caps its logits, so its head has no adapter.")
        self.weight_bytes += 0 if self.trained is None else self.trained.weight_bytes
        self.adapter = self.learner()

    def learner(self, share: float = 1.0) -> Adapter | None:
        """A new adapter, and where `online` is given its thread, which works `share` of the time that it allows; None:
        there is nothing to adapt by."""
        if not self.online and self.trained is None:
            return None
        first = None if self.trained is None else (self.trained.down.data, self.trained.up.data)
        shared = torch.tensor([each is not None and each in self.target.ids for each in self.own.bytes])
        adapter = Adapter(
            cast(Embeds, self.model).head, self.model.width, shared=shared, judged=JUDGED_TOKENS, first=first
        )
        if self.online:
            learn(adapter, self.online * share)
        return adapter

    def describe(self) -> str:
        return f"{cast(Any, self.model).describe()}, of another vocabulary"

    def allocate(self, blocks: int, block_size: int) -> None:
        self.cache = Cache(blocks, block_size)
        self.model.allocate(blocks, block_size)


class Translation:
    """The draft's tokens as the target's."""

    def __init__(self, own: Surfaces, target: Surfaces) -> None:
        self.own, self.target = own, target
        self.one = {number: target.ids[each] for number, each in enumerate(own.bytes) if each in target.ids}
        """The static map: draft id to the target id of the same bytes."""
        self.runs: OrderedDict[tuple[int, ...], int] = OrderedDict()
        """The n-gram cache: draft ids, at least two, to the target id of the same bytes."""
        self.back: dict[int, int] = {}
        """Target id to the first draft id of the same bytes."""
        for number, token in self.one.items():
            self.back.setdefault(token, number)
        self.shared = torch.zeros(len(target.bytes), dtype=torch.bool)
        """[V]: target ids that the draft's tokenizer has, too."""
        self.shared[list(self.back)] = True

    def learn(self, token: int) -> None:
        """A target token was committed: enter it where the draft spells it in several tokens."""
        surface = self.target.of(token)
        if surface is None or surface in self.own.ids:
            return
        run = tuple(self.own.spell(surface))
        if 2 <= len(run) <= MAX_DRAFT_PIECES and self.own.join(run) == surface:
            self.runs.pop(run, None)
            self.runs[run] = token
            while len(self.runs) > MOST_RUNS:
                self.runs.popitem(last=False)

    def of(self, drafted: Sequence[int]) -> list[int]:
        """Target ids of a run of draft ids, as far as there are any; the longest entries first."""
        made, at = list[int](), 0
        while at < len(drafted):
            for end in range(min(len(drafted), at + MAX_DRAFT_PIECES), at + 1, -1):
                if (token := self.runs.get(tuple(drafted[at:end]))) is not None:
                    break
            else:
                end, token = at + 1, self.one.get(drafted[at])
            if token is None:
                break
            made.append(token)
            at = end
        return made


@dataclass(slots=True)
class Spelling:
    """What is remembered of a request: its text in bytes."""

    tokens: list[int] = field(default_factory=list)
    text: bytearray = field(default_factory=bytearray)
    ids: list[int] = field(default_factory=list)
    """Draft ids of `text[:spelt]`."""
    spelt: int = 0
    judged: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Where an adapter learns: {place of a token in the text: draft ids and log-probabilities of what the verifier
    thought likely there}; moved to `laws` when the token is read."""
    laws: dict[int, tuple[int, tuple[Tensor, Tensor]]] = field(default_factory=dict)
    """What was in `judged`, with the token before it, by the byte at which the token begins."""
    drafted: list[int] = field(default_factory=list)
    """Draft ids of the text and of the draft behind it, the last time."""
    states: Tensor | None = None
    """Hidden states of the last of their rows, as many as were computed; kept where an adapter learns."""
    learned: int | None = None
    """Ids whose rows were learned from, or are the prompt's; None: nothing was drafted yet."""


@dataclass(eq=False, slots=True)
class ForeignDraft:
    """State of a request's draft while it grows. `rows`: draft ids that have a row or get the next one."""

    ask: Ask
    ids: list[int]
    txn: Txn
    made: list[int] = field(default_factory=list)
    done: int = 0
    """Rows of the transaction that are computed."""
    states: list[Tensor] = field(default_factory=list)
    """Hidden states of these rows, if an adapter learns."""
    chance: float = 1.0
    """Chance that all drafted tokens are kept, by the draft model's own confidence."""
    worth: float = 0.0
    """The least chance of a whole draft that pays."""

    @property
    def pending(self) -> list[int]:
        return [*self.ids, *self.made][self.txn.base + self.done :]

    @property
    def live(self) -> bool:
        return len(self.made) < self.ask.item.chain and self.chance >= self.worth


@DRAFTERS.register(
    "crossvocab",
    Offers("a small model of another vocabulary", frozenset({Law.POINT}), shape="chain", nodes=5,
           needs=frozenset({NEED_FOREIGN}), learns=True, stops_early=True, auto=("crossvocab",),
           settings=(TRANSLATION, FOREIGN_STOP)),
)  # fmt: skip
class CrossVocab:
    def __init__(self, host: Host) -> None:
        self.foreign = cast(ForeignModel, host.components[FOREIGN])
        self.chunk, self.learns = host.chunk, self.foreign.online > 0
        self.translation = Translation(self.foreign.own, self.foreign.target)
        self.grows = host.setting("crossvocab", "translation") == "grow"
        self.by_chance = host.setting("crossvocab", "stop") == "chance"
        self.adapter = self.foreign.adapter if host.share == 1.0 else self.foreign.learner(host.share)

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        forest, cache = Forest(), self.foreign.cache
        writing = [it for ask in asks if ask.item.chain and (it := self._begin(ask, view)) is not None]
        try:
            self._write(writing)
            for it in writing:
                self._remember(it, view)
                chain = self.translation.of(it.made)[: it.ask.item.chain]
                if chain:
                    forest.add_chain(it.ask.place, chain, it.ask.law)
        finally:
            for it in writing:
                lease = it.txn.lease
                if it.txn.open and it.done >= it.txn.given:
                    it.txn.commit([], it.ids[it.txn.base :])
                cache.close(lease)  # full blocks stay in its index: the next draft finds them
        return forest

    def _begin(self, ask: Ask, view: View) -> ForeignDraft | None:
        """Reserve rows; None where the text ends within a character, is too long, or there is no room."""
        foreign, ids = self.foreign, self._spelt(ask, view)
        ahead = ask.item.chain
        if not ids or len(ids) + ahead > foreign.max_len:
            return None
        if self.adapter is not None and self.learns:
            self._teach(self.adapter, view.slot(ask.request, Spelling), ids)
        lease = foreign.cache.open(ids, extra_key=ask.request.extra_key)
        try:
            worth = (ask.item.min_chance or CHAIN_MIN_CHANCE).node if self.by_chance else 0.0
            return ForeignDraft(ask, ids, foreign.cache.begin(lease, len(ids) - lease.length, ahead), worth=worth)
        except CapacityError:
            foreign.cache.close(lease)
            return None

    def _spelt(self, ask: Ask, view: View) -> list[int]:
        """The text as draft ids."""
        mine, tokens = view.slot(ask.request, Spelling), ask.request.tokens
        if tokens[: len(mine.tokens)] != mine.tokens:
            mine.tokens, mine.text, mine.ids, mine.spelt = [], bytearray(), [], 0
            mine.laws.clear()
        for place in range(len(mine.tokens), len(tokens)):
            if place in mine.judged:
                mine.laws[len(mine.text)] = tokens[place], mine.judged.pop(place)
            mine.text += self.foreign.target.shown(tokens[place])
        mine.tokens = list(tokens)
        if not (ids := respelt(self.foreign.own, mine.ids, bytes(mine.text), mine.spelt)):
            return []
        mine.ids, mine.spelt = ids, len(mine.text)
        return list(ids)

    def _write(self, writing: Sequence[ForeignDraft]) -> None:
        """Greedy continuations, all requests' next tokens in one pass, texts in passes of at most `chunk` rows."""
        active, adapter = list(writing), self.adapter
        while active:
            builder, ends, left, parts = (
                RowsBuilder(),
                list[ForeignDraft](),
                self.chunk,
                list[tuple[ForeignDraft, int]](),
            )
            for it in active:
                part = it.pending[:left]
                if not part:
                    break
                at, whole = it.done, len(part) == len(it.pending)
                slots = it.txn.slots[at : at + len(part)]
                want = [len(part) - 1] if whole and adapter is None else []
                builder.add(part, slots, it.txn.table, it.txn.base + at, want=want)
                it.done, left = at + len(part), left - len(part)
                ends += [it] if whole else []
                parts.append((it, len(part)))
            logits = self._logits(builder, parts, ends)
            if len(ends) != len(logits):
                raise IntegrityError(f"{len(ends)} rows were wanted, but the draft gave {len(logits)}.")
            for it, token, chance in zip(ends, logits.argmax(-1).tolist(), self._chances(ends, logits)):
                it.made.append(token)
                it.chance *= chance
            active = [it for it in active if it.live]

    def _chances(self, ends: Sequence[ForeignDraft], logits: Tensor) -> list[float]:
        """That the best token of each row [N, V] is what the target takes there: its probability at the request's
        temperature, as `model` has it for greedy ones."""
        if not self.by_chance:
            return [1.0] * len(ends)
        heat = torch.tensor([it.ask.request.params.temperature or SHARP for it in ends])
        return (logits.float() / heat.to(logits.device)[:, None]).softmax(-1).amax(-1).tolist()

    def _logits(
        self, builder: RowsBuilder, parts: Sequence[tuple[ForeignDraft, int]], ends: Sequence[ForeignDraft]
    ) -> Tensor:
        """[ends, V], of a pass over these parts; with an adapter, of its states."""
        model, adapter = self.foreign.model, self.adapter
        if adapter is None:
            return model.forward(builder.build(model.device)).logits
        hidden = model.forward(builder.build(model.device, taps=("post_norm",))).taps["post_norm"]
        for (it, _), part in zip(parts, hidden.split_with_sizes([size for _, size in parts])):
            it.states.append(part.clone())
        return cast(Embeds, model).head(adapter(torch.stack([it.states[-1][-1] for it in ends]))).float()

    def _remember(self, it: ForeignDraft, view: View) -> None:
        """What was drafted and from which states, for `_teach`."""
        if it.states and self.learns:
            mine = view.slot(it.ask.request, Spelling)
            mine.states, mine.drafted = torch.cat(it.states), [*it.ids, *it.made]
            mine.drafted = mine.drafted[: it.txn.base + it.done]

    def _teach(self, adapter: Adapter, mine: Spelling, ids: list[int]) -> None:
        """Give the adapter each state of the last draft whose text turned out to be the verified one, once, with the id
        that follows it now: behind the first draft that was not kept that is the correction."""
        if mine.learned is None or mine.states is None:
            mine.learned = len(ids) - 1
            return
        first = len(mine.drafted) - len(mine.states)
        same = next((i for i, (a, b) in enumerate(zip(mine.drafted, ids)) if a != b), min(len(mine.drafted), len(ids)))
        start, stop = max(first, mine.learned), min(same, len(ids) - 1)
        if start < stop:
            token = torch.tensor(ids[start + 1 : stop + 1])
            weight = torch.tensor([1.0 if d in self.translation.one else HELD_OUT_SHARE for d in token.tolist()])
            adapter.add(
                mine.states[start - first : stop - first], token, weight, self._laws(mine, ids, start + 1, stop + 1)
            )
            mine.learned = stop
        mine.laws.clear()

    def _laws(self, mine: Spelling, ids: list[int], start: int, stop: int) -> "Judged | None":
        """What the verifier thought at the draft ids start .. stop of the text, of those that stand where one of its
        own tokens of the same bytes does."""
        at, found = (
            len(mine.text) - sum(len(self.foreign.own.shown(token)) for token in ids[start:]),
            list[tuple[Tensor, Tensor] | None](),
        )
        for token in ids[start:stop]:
            said = mine.laws.get(at)
            found.append(said[1] if said is not None and self.translation.one.get(token) == said[0] else None)
            at += len(self.foreign.own.shown(token))
        return Judged.of(found, JUDGED_TOKENS) if any(law is not None for law in found) else None

    def _judge(self, ask: Ask, view: View) -> None:
        """Remember what the verifier thought where each token of the result was drawn, of tokens that both know."""
        assert view.scores is not None
        try:
            scores, mine = view.scores(ask.place).float(), view.slot(ask.request, Spelling)
        except IntegrityError:  # of a run nothing is known but its tokens
            return
        scores = scores.masked_fill(~self.translation.shared[: scores.shape[-1]].to(scores.device), float("-inf"))
        scores = scores.log_softmax(-1)
        first = len(ask.request.tokens)  # it has not got the result's yet
        values, tokens = scores.topk(min(JUDGED_TOKENS, scores.shape[-1]), dim=-1)
        mine.judged.clear()
        for row, (some, of) in enumerate(zip(tokens.tolist(), values.cpu())):
            if many := int((of > float("-inf")).sum()):
                ids = torch.tensor([self.translation.back[token] for token in some[:many]])
                mine.judged[first + row] = ids, of[:many]

    def learn(self, view: View) -> None:
        for ask in view.asks:
            tokens = view.results[ask.place].tokens
            for token in tokens if self.grows else ():
                if token >= 0:
                    self.translation.learn(token)
            if self.learns and view.scores is not None and tokens and tokens[-1] >= 0:
                self._judge(ask, view)


def respelt(own: Surfaces, ids: Sequence[int], text: bytes, spelt: int) -> list[int]:
    """Draft ids of a text whose first `spelt` bytes have the given ids. Its end is spelt again, from some tokens in
    front of what is new; where that comes out as before for several tokens in a row, all in front of them stays. Else
    the whole text is spelt. [] where it ends within a character."""
    keep = max(0, len(ids) - SPELT_AGAIN)
    old, sizes = list(ids[keep:]), [len(own.shown(token)) for token in ids[keep:]]
    start = spelt - sum(sizes)
    if keep and start > 0 and (new := own.spell(text[start:])):
        places = {}  # byte, from the end of the text -> the old token that begins there
        left = len(text) - start
        for i, size in enumerate(sizes):
            places[left] = i
            left -= size
        left = sum(len(own.shown(token)) for token in new)
        for j in range(len(new) - SPELT_ALIKE + 1):
            place = places.get(left)
            if place is not None and old[place : place + SPELT_ALIKE] == new[j : j + SPELT_ALIKE]:
                return [*ids[: keep + place], *new[j:]]
            left -= len(own.shown(new[j]))
    return own.spell(text, start=True)
