"""`judge`: the head of the verifier `judge`, from labels that needed no annotation (AutoJudge's procedure for Judge
Decoding, Bachmann et al. 2025, arXiv 2501.19309).

The target answers greedily. At the first token where the draft model differs, its token is put in and the target
finishes the answer. If the final answer is the same, the token was *unimportant* (label 1), and the text goes on from
there; else it was *important* (0), and the target's own token stays. Then the next one to the right. A head on the
target's state of the row that has read the draft's token learns the label. In addition to it, two rules without
training are measured on held-out labels: the token's rank in the target's distribution, and the divergence of the two
distributions."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.errors import InputError
from paceline.draft.correctness import Correctness
from paceline.train import TRAINERS, Trains
from paceline.train.data import Sample
from paceline.train.features import FeatureBatch, FeatureSource
from paceline.train.method import Loss, Method, settled
from paceline.train.objective import forward_kl
from paceline.train.student import loaded, write
from paceline.train.target import TrainingTarget

WRITTEN_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
JUDGE_BATCH_LABELS = 64
"""Labels of a batch."""


@dataclass(frozen=True)
class JudgeSettings:
    draft: str = ""
    texts: int = 48
    """Answers in which tokens are swapped."""
    rounds: int = 6
    """Swaps in each."""
    weight: float = 2.0
    """Weight of important tokens in the loss."""
    threshold: float = 0.5
    decay: float = 0.01
    """Weight decay (L2)."""


@dataclass(slots=True)
class Label:
    hidden: Tensor
    """[H]"""
    good: bool
    rank: int
    """Rank of the draft's token in the target's distribution, 0 the most probable."""
    divergence: float
    """KL(p | q)"""


def final(text: str) -> str | None:
    """The final answer: the number behind ####, else the last number; None: it has none."""
    tail = text.rsplit("####", 1)[1] if "####" in text else text
    found = WRITTEN_NUMBER.findall(tail)
    number = (found[0] if "####" in text else found[-1]) if found else None
    return None if number is None else number.replace(",", "").rstrip(".")


def auc(scores: Sequence[float], good: Sequence[bool]) -> float:
    """The chance that a good one has a higher score than another; ties count half. nan: one class is missing."""
    ups = [s for s, g in zip(scores, good) if g]
    downs = [s for s, g in zip(scores, good) if not g]
    if not ups or not downs:
        return float("nan")
    return sum((u > d) + 0.5 * (u == d) for u in ups for d in downs) / (len(ups) * len(downs))


@TRAINERS.register("judge", Trains("a head that lets good drafts stand (lossy)", drafter="model"))
class JudgeMethod(Method):
    taps = ()  # of batches: a label brings its own state

    def __init__(self, target: TrainingTarget, settings: dict[str, Any]) -> None:
        self.settings = JudgeSettings(**settled(JudgeSettings, settings, {}, "judge"))
        if not self.settings.draft:
            raise InputError("judge needs the draft model whose tokens it judges; give --set draft=DIRECTORY.")
        self.target, self.student = target, loaded(target, self.settings.draft)
        self.student.eval().requires_grad_(False)
        self.module = self.head = Correctness(target.spec.hidden, self.settings.threshold)
        self.labels: list[Label] = []

    def see(self, samples: Sequence[Sample]) -> None:
        self.labels = self.labelled(list(samples)[: self.settings.texts])
        if len({label.good for label in self.labels}) < 2:
            raise InputError(
                f"The {len(self.labels)} swapped tokens all have one label, so there is nothing to learn; give more "
                "prompts whose answers end in a number."
            )
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(0)).tolist()
        self.labels = [self.labels[i] for i in order]
        self.split = max(1, len(self.labels) // 4)
        """Labels before it are held out."""

    def labelled(self, samples: list[Sample]) -> list[Label]:
        """Swaps from left to right, all texts together: a round swaps one token in each."""
        from paceline import LLM, SamplingParams

        texts, answers = [list(s.ids) for s in samples], [final(self.said(s.ids, s.start)) for s in samples]
        at, out = [s.start for s in samples], list[Label]()
        with LLM(self.target.path, dtype=self.target.dtype, drafter="ngram", max_requests=32) as llm:
            for _ in range(self.settings.rounds):
                swaps = []
                for i in range(len(samples)):
                    found = self.mismatch(texts[i], at[i]) if answers[i] is not None else None
                    if found is not None:
                        swaps.append((i, *found))
                prompts = [[*texts[i][:place], label_token] for i, place, label_token, _ in swaps]
                rest = [
                    SamplingParams(temperature=0.0, seed=0, max_tokens=max(1, len(samples[i].ids) + 24 - len(prompt)))
                    for (i, *_), prompt in zip(swaps, prompts)
                ]
                ends = set(self.target.text.eos())
                if not prompts:
                    break
                outputs = llm.generate(prompts, rest, progress=False)
                for (i, place, token, label), prompt, output in zip(swaps, prompts, outputs):
                    whole = prompt if token in ends else [*prompt, *output.token_ids]
                    label.good = final(self.said(whole, samples[i].start)) == answers[i]
                    out.append(label)
                    texts[i], at[i] = whole if label.good else texts[i], place + 1
        return out

    def said(self, ids: Sequence[int], start: int) -> str:
        return str(self.target.text.tokenizer.decode(list(ids[start:])))

    @torch.no_grad()
    def mismatch(self, ids: list[int], start: int) -> tuple[int, int, Label] | None:
        """First place from `start` on where the draft model's token differs: (place, its token, a label without
        verdict)."""
        student: Any = self.student
        logits = student(input_ids=torch.tensor([ids])).logits[0].float()
        said = logits.argmax(-1).tolist()
        place = next((t for t in range(start, len(ids)) if said[t - 1] != ids[t]), None)
        if place is None:
            return None
        token = said[place - 1]
        text = [*ids[:place], token]
        hidden = FeatureSource(self.target, [Sample(tuple(text), 1)], Correctness.taps).states(0)["post_norm"]
        p = self.target.head(hidden[place - 1])
        divergence = float(forward_kl(p.log_softmax(-1), logits[place - 1].log_softmax(-1)))
        return place, token, Label(hidden[place].clone(), False, int((p > p[token]).sum()), divergence)

    def loss(self, batch: FeatureBatch, step: int, done: float = 0.0) -> Loss:
        known = self.labels[self.split :]
        names = torch.randint(len(known), (min(JUDGE_BATCH_LABELS, len(known)),)).tolist()
        hidden = torch.stack([known[i].hidden for i in names])
        good = torch.tensor([float(known[i].good) for i in names])
        z = self.head.out(hidden)[:, 0]
        weight = torch.where(good > 0, 1.0, self.settings.weight)
        total = (F.binary_cross_entropy_with_logits(z, good, reduction="none") * weight).sum() / weight.sum()
        total = total + self.settings.decay * self.head.out.weight.square().sum()
        hit = float(((z.detach() > 0) == (good > 0)).sum())
        return Loss(total, [hit], [float(len(names))])

    @torch.no_grad()
    def curve(self) -> dict[str, float]:
        """Areas under the curve on held-out labels, of the head and of the rules without training."""
        held = self.labels[: self.split]
        good = [label.good for label in held]
        head = self.head(torch.stack([label.hidden for label in held])).tolist()
        made = {"head": head, "rank": [-label.rank for label in held], "kl": [-label.divergence for label in held]}
        return {name: round(auc(scores, good), 4) for name, scores in made.items()} | {
            "labels": float(len(self.labels)), "good": round(sum(x.good for x in self.labels) / len(self.labels), 4),
        }  # fmt: skip

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        write(self.student, self.target, path)
        self.head.save(path)
        (path / "auc.json").write_text(json.dumps(self.curve(), indent=2) + "\n", encoding="utf-8")
