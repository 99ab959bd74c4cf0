"""`Rollout`: whose texts a draft model learns from, batch by batch.

    data     the texts as the loop brings them: as given, or (`answers`) the target's own
    target   the same; the loop lets the target answer
    policy   the student's own answers to the same prompts, sampled now (DistillSpec, Zhou et al. 2023, arXiv
             2310.08461, algorithm 1 with lambda = 1)
    mixed    each text is replaced by the student's own with probability `share`

The student draws with torch's generator, which the loop seeds for every step: a resumed run draws the same. No gradient
goes through the sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline.core.errors import InputError
from paceline.train.data import Sample
from paceline.train.features import FeatureBatch, FeatureSource
from paceline.train.target import TrainingTarget

ROLLOUT_KINDS = ("data", "target", "policy", "mixed")
MAX_ROLLOUT_TOKENS = 96
"""Most tokens that the student samples."""


@dataclass
class Rollout:
    target: TrainingTarget
    student: Any
    share: float
    """Chance of each text to be the student's own."""
    temperature: float = 1.0
    counts: dict[str, int] = field(default_factory=lambda: {"data": 0, "policy": 0})
    """Texts of each kind, so far."""

    @classmethod
    def of(cls, kind: str, share: float, temperature: float, target: TrainingTarget, student: Any) -> "Rollout":
        """Raises InputError."""
        if kind not in ROLLOUT_KINDS:
            raise InputError(f"rollout is {kind!r}, but it must be one of {', '.join(ROLLOUT_KINDS)}.")
        if not 0 <= share <= 1 or not temperature > 0:
            raise InputError(f"share is {share} and temperature {temperature}; give a share in [0, 1], and above 0.")
        return cls(target, student, {"policy": 1.0, "mixed": share}.get(kind, 0.0), temperature)

    def next(self, batch: FeatureBatch, taps: Sequence[str]) -> FeatureBatch:
        """The batch to learn from; hidden states of the student's texts are the target's, computed now."""
        if not self.share:
            self.counts["data"] += len(batch.names)
            return batch
        own = torch.rand(len(batch.names)) < self.share
        self.counts["policy"] += int(own.sum())
        self.counts["data"] += len(batch.names) - int(own.sum())
        if not own.any():
            return batch
        samples = list[Sample]()
        for row in range(len(batch.names)):
            ids = batch.ids[row, : int(batch.length[row])].tolist()
            learn = batch.learn[row].nonzero().flatten()
            samples.append(Sample(tuple(ids), int(learn[0]) if len(learn) else len(ids)))
        for row in own.nonzero().flatten().tolist():
            samples[row] = self.sampled(samples[row])
        return FeatureSource(self.target, samples, tuple(taps)).batch(range(len(samples)))

    @torch.no_grad()
    def sampled(self, sample: Sample) -> Sample:
        """The student's answer to a prompt, as long as the text that it replaces at most."""
        prompt, most = list(sample.ids[: sample.start]), min(MAX_ROLLOUT_TOKENS, len(sample.ids) - sample.start)
        if most < 3:
            return sample
        self.student.eval()
        ids = torch.tensor([prompt])
        out = self.student.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, min_new_tokens=3, do_sample=True, top_k=0,
            top_p=1.0, temperature=self.temperature, pad_token_id=0,
        )  # fmt: skip
        self.student.train()
        return Sample(tuple(out[0].tolist()), sample.start)
