"""`crossvocab`: an adapter for a draft model with another tokenizer (OmniDraft, arXiv 2507.02659, off-line).

The target's answers are spelt by the draft's tokenizer, and the draft model reads them. At each of its tokens the
adapter (draft/online.py) learns as it would while serving: by the reverse KL to what the target thinks there, where a
token of the target of the same bytes begins at the same byte, else by the cross entropy of the token, which counts
`held_out` of it where the target has no such token. `objective=ce` takes the cross entropy everywhere.
"""

import shutil
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import InputError
from paceline.core.rows import RowsBuilder
from paceline.draft.crossvocab import JUDGED_TOKENS, TrainedAdapter, Translation
from paceline.draft.online import ADAPTER_RANK, HELD_OUT_SHARE, Judged, hybrid
from paceline.draft.surfaces import Surfaces
from paceline.engine.text import Text
from paceline.model.checkpoint import resolve
from paceline.model.load import load_model
from paceline.train import TRAINERS, Trains
from paceline.train.features import FEATURE_BLOCK_ROWS, FeatureBatch
from paceline.train.method import Loss, Method, settled
from paceline.train.student import TOKENIZER_FILES
from paceline.train.target import TrainingTarget

MODEL_FILES = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES)
"""Files of the draft model's directory that are copied to where the adapter is."""
KEPT_STATE_BYTES = 256 << 20
"""Most bytes of the draft model's states that are kept in memory; the oldest texts go."""
GOALS = ("hybrid", "ce")


@dataclass(frozen=True)
class AdapterSettings:
    draft: str = ""
    rank: int = ADAPTER_RANK
    objective: str = "hybrid"
    held_out: float = HELD_OUT_SHARE


@dataclass(slots=True)
class SpeltText:
    """A text as the draft model reads it, at the places that are learned: its states [N, H], the ids that follow them
    [N], their weights [N], and for those where the target's tokens stand the target's rows (-1: none)."""

    states: Tensor
    token: Tensor
    weight: Tensor
    row: Tensor


@TRAINERS.register("crossvocab", Trains("an adapter for a draft model with another tokenizer", drafter="crossvocab"))
class CrossVocabTraining(Method):
    taps = ("post_norm",)

    def __init__(self, target: TrainingTarget, settings: dict[str, Any]) -> None:
        self.settings = s = AdapterSettings(**settled(AdapterSettings, settings, {}, "crossvocab"))
        if not s.draft:
            raise InputError("crossvocab needs the draft model that its adapter is for; give --set draft=DIRECTORY.")
        if s.objective not in GOALS or s.rank < 1:
            raise InputError(
                f"objective is {s.objective!r} and rank {s.rank}; give {' or '.join(GOALS)}, and a rank of at least 1."
            )
        self.target, self.path = target, resolve(s.draft)
        if not self.path.is_dir():
            raise InputError(
                f"draft {s.draft} is a file; give the directory of a model, which is copied to the output."
            )
        text = Text(self.path)
        self.draft = load_model(self.path, dtype=target.dtype)
        if text.vocabulary(target.spec.vocab) == target.text.vocabulary(target.spec.vocab):
            raise InputError(f"draft {s.draft} has the target's own tokenizer; train it with distillspec instead.")
        if self.draft.spec.logit_softcap is not None:
            raise InputError(f"draft {s.draft} caps its logits, so its head has no adapter.")
        own = Surfaces(text.tokenizer, self.draft.vocab_size)
        self.translation = Translation(own, Surfaces(target.text.tokenizer, target.spec.vocab))
        self.shared = torch.tensor([number in self.translation.one for number in range(self.draft.vocab_size)])
        self.table = self.draft.head(torch.eye(self.draft.width, dtype=self.draft.dtype)).float()
        self.module = self.adapter = TrainedAdapter(self.draft.width, target.spec.vocab, s.rank)
        self.back = torch.full((target.spec.vocab,), -1)
        for token, number in self.translation.back.items():
            self.back[token] = number
        self.blocks = 0
        self.known: OrderedDict[tuple[int, ...], SpeltText] = OrderedDict()

    def loss(self, batch: FeatureBatch, step: int, done: float = 0.0) -> Loss:
        texts = [self.spelt(batch, number) for number in range(len(batch.ids))]
        states = torch.cat([text.states for text in texts]).float()
        token, weight = (torch.cat([getattr(text, name) for text in texts]) for name in ("token", "weight"))
        moved = states + states @ self.adapter.down.mT @ self.adapter.up.mT
        logits = moved @ self.table
        if self.settings.objective == "ce":
            places = torch.nn.functional.cross_entropy(logits, token, reduction="none")
        else:
            places = hybrid(logits, token, self.judged(batch, texts), self.shared)
        hit = float((logits.detach().argmax(-1) == token).sum())
        return Loss((places * weight).sum() / weight.sum().clamp(min=1e-9), [hit], [float(len(token))])

    @torch.no_grad()
    def judged(self, batch: FeatureBatch, texts: list[SpeltText]) -> Judged:
        """What the target thinks at all places, over the tokens that both know, as the drafter has it while serving."""
        rows = torch.cat([text.row for text in texts])
        text = torch.cat([torch.full_like(each.row, number) for number, each in enumerate(texts)])
        made, some = Judged.none(len(rows), JUDGED_TOKENS), rows >= 0
        if some.any():
            scores = self.target.head(batch.hidden["post_norm"][text[some], rows[some]])
            scores = scores.masked_fill(~self.translation.shared, float("-inf")).log_softmax(-1)
            values, tokens = scores.topk(min(JUDGED_TOKENS, scores.shape[-1]), dim=-1)
            ids = torch.where(values > float("-inf"), self.back[tokens], -1)
            made.ids[some, : ids.shape[1]], made.log_p[some, : ids.shape[1]] = ids, values
        return made

    def spelt(self, batch: FeatureBatch, number: int) -> SpeltText:
        """One text of the batch; the latest ones are kept."""
        count = int(batch.length[number])
        key = (*batch.ids[number, :count].tolist(), int(batch.learn[number].argmax()))
        if (found := self.known.get(key)) is None:
            found = self.known[key] = self.read(list(key[:-1]), key[-1])
            size = sum(text.states.nbytes for text in self.known.values())
            while size > KEPT_STATE_BYTES and len(self.known) > 1:
                size -= self.known.popitem(last=False)[1].states.nbytes
        return found

    @torch.no_grad()
    def read(self, tokens: list[int], start: int) -> SpeltText:
        """Spell a text of the target and let the draft model read it. `start`: the first token that is learned."""
        translation, begins, text = self.translation, dict[int, int](), bytearray()
        for place, token in enumerate(tokens):
            begins[len(text)] = place
            text += translation.target.shown(token)
        first = next(at for at, place in begins.items() if place >= start)
        while text and not (ids := translation.own.spell(bytes(text), start=True)):
            text.pop()  # it ends within a character
        at = len(text) - sum(len(translation.own.shown(token)) for token in ids)
        wanted, row = list[int](), list[int]()
        for place, token in enumerate(ids):
            if place and at >= first:
                theirs = begins.get(at)
                same = theirs is not None and theirs > 0 and translation.one.get(token) == tokens[theirs]
                wanted.append(place)
                row.append(theirs - 1 if same and theirs is not None else -1)
            at += len(translation.own.shown(token))
        following = torch.tensor([ids[place] for place in wanted], dtype=torch.int64)
        weight = torch.where(self.shared[following], 1.0, self.settings.held_out)
        hidden = self.states(ids)[[place - 1 for place in wanted]]
        return SpeltText(hidden, following, weight, torch.tensor(row, dtype=torch.int64))

    def states(self, ids: list[int]) -> Tensor:
        """[T, H] behind the draft model's final norm."""
        blocks = -(-len(ids) // FEATURE_BLOCK_ROWS) + 1
        if len(ids) > self.draft.spec.max_len:
            raise InputError(
                f"A text has {len(ids)} of the draft's tokens, but it reads {self.draft.spec.max_len}; give --length."
            )
        if blocks > self.blocks:
            self.draft.allocate(blocks, FEATURE_BLOCK_ROWS)
            self.blocks = blocks
        builder = RowsBuilder()
        builder.add(ids, list(range(len(ids))), list(range(blocks)), 0, want=[len(ids) - 1])
        return self.draft.forward(builder.build(self.draft.device, taps=("post_norm",))).taps["post_norm"].clone()

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        path.mkdir(parents=True, exist_ok=True)
        for file in {file for pattern in MODEL_FILES for file in self.path.glob(pattern)}:
            shutil.copyfile(file, path / file.name)
        self.adapter.save(path)
