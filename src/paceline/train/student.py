"""A small causal language model in training, over the library `transformers`; its directory is what `--draft` takes.
`DraftMethod` holds what the methods that train one share."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.core.errors import InputError
from paceline.model.checkpoint import resolve
from paceline.train.features import FeatureBatch
from paceline.train.method import Loss, Method, settled
from paceline.train.objective import DIVERGENCES, Objective
from paceline.train.rollout import Rollout
from paceline.train.target import TrainingTarget

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "chat_template.jinja",
    "added_tokens.json",
)
"""Files of a tokenizer."""
FRESH_FAMILIES = ("llama", "mamba2")
STATE_NUMBERS = 64
"""Numbers of a fresh recurrent model's state, for each of its channels."""
CHUNK_TOKENS = 64
"""Tokens that its training computes at a time."""
TAU_DEPTH_TOKENS = 8
"""Tokens below the root that are looked at for simulated tau."""


@dataclass(frozen=True)
class StudentSettings:
    """draft: a directory to begin with; none: a fresh model of this shape, with the target's vocabulary."""

    draft: str = ""
    family: str = "llama"
    """Family of a fresh one: llama, or mamba2, whose state takes as much memory for a long text as for a short one; it
    has twice `hidden` channels in `heads` heads, and neither kv_heads nor ffn."""
    layers: int = 2
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 688
    objective: str = "ce"
    """See train/objective.py."""
    rollout: str = "data"
    """See train/rollout.py."""
    share: float = 0.5
    """Share of texts that a mixed rollout replaces by the student's own."""
    temperature: float = 1.0
    """Temperature at which the student samples and distributions are compared."""


def fresh(target: TrainingTarget, settings: StudentSettings) -> nn.Module:
    """Random weights from torch's generator."""
    from transformers import LlamaConfig, LlamaForCausalLM, Mamba2Config, Mamba2ForCausalLM

    if settings.family not in FRESH_FAMILIES:
        raise InputError(f"family is {settings.family!r}, but it must be one of {', '.join(FRESH_FAMILIES)}.")
    if settings.hidden % settings.heads or (settings.family == "llama" and settings.heads % settings.kv_heads):
        raise InputError(
            f"hidden {settings.hidden}, heads {settings.heads} and kv_heads {settings.kv_heads} do not divide; give a "
            "hidden width that is a multiple of heads, and heads that are a multiple of kv_heads."
        )
    ends = [token for token in target.text.eos() if isinstance(token, int)]
    if settings.family == "mamba2":
        recurrent: nn.Module = Mamba2ForCausalLM(Mamba2Config(
            vocab_size=target.spec.vocab, hidden_size=settings.hidden, num_hidden_layers=settings.layers, expand=2,
            num_heads=settings.heads, head_dim=2 * settings.hidden // settings.heads, state_size=STATE_NUMBERS,
            n_groups=1, chunk_size=CHUNK_TOKENS, tie_word_embeddings=True, bos_token_id=None,
            eos_token_id=ends[0] if ends else None, pad_token_id=None, use_cache=True,
        ))  # fmt: skip
        return recurrent
    config = LlamaConfig(
        vocab_size=target.spec.vocab, hidden_size=settings.hidden, num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads, num_key_value_heads=settings.kv_heads, intermediate_size=settings.ffn,
        max_position_embeddings=target.spec.max_len, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=ends[0] if ends else None, pad_token_id=None, use_cache=True,
    )  # fmt: skip
    made: nn.Module = LlamaForCausalLM(config)
    return made


def loaded(target: TrainingTarget, draft: str) -> nn.Module:
    """In float32. Raises InputError for another vocabulary."""
    from transformers import AutoModelForCausalLM

    try:
        model: Any = AutoModelForCausalLM.from_pretrained(resolve(draft), dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise InputError(f"draft {draft} cannot be read ({error}); give the directory of a small model.") from None
    if model.config.vocab_size != target.spec.vocab:
        raise InputError(
            f"draft {draft} has a vocabulary of {model.config.vocab_size} entries, but the target has "
            f"{target.spec.vocab}; give a draft of the same tokenizer."
        )
    made: nn.Module = model
    return made


def check_layers(student: Any, method: str) -> None:
    """InputError unless a model's layers are where methods look for them that compute them one by one."""
    if not hasattr(getattr(student, "model", None), "layers"):
        kind = student.config.model_type
        raise InputError(
            f"{method} computes the layers of a draft one by one, but the family {kind!r} calls them otherwise; give a "
            "draft with layers of attention, such as llama's."
        )


def write(model: Any, target: TrainingTarget, path: Path) -> None:
    """The draft model's directory: weights in bfloat16, and the target's tokenizer."""
    path.mkdir(parents=True, exist_ok=True)
    kept = {name: part.dtype for name, part in model.named_parameters()}
    model.to(torch.bfloat16).save_pretrained(path)
    model.to(next(iter(kept.values())))
    for pattern in TOKENIZER_FILES:
        for file in target.path.glob(pattern):
            shutil.copyfile(file, path / file.name)


class DraftMethod(Method):
    """Trains a draft model. A method gives `name` and `preset`: its settings unless the user says otherwise."""

    name: ClassVar[str]
    preset: ClassVar[Mapping[str, Any]] = {}
    settings_type: ClassVar[type[StudentSettings]] = StudentSettings
    needs_draft: ClassVar[bool] = False
    by_layer: ClassVar[bool] = False
    """Does it compute the draft's layers one by one?"""

    def __init__(self, target: TrainingTarget, settings: dict[str, Any]) -> None:
        self.target = target
        known = settings.keys() - {f.name for f in fields(self.settings_type)}
        if known:
            free = ", ".join(sorted(f.name for f in fields(self.settings_type)))
            raise InputError(f"{self.name} has no setting {min(known)!r}; it has {free}.")
        self.settings = self.settings_type(**settled(self.settings_type, settings, dict(self.preset), self.name))
        if self.needs_draft and not self.settings.draft:
            raise InputError(f"{self.name} needs a draft model to begin with; give --set draft=DIRECTORY.")
        s = self.settings
        self.student: Any = loaded(target, s.draft) if s.draft else fresh(target, s)
        if self.by_layer:
            check_layers(self.student, self.name)
        self.module = self.student
        self.goal = Objective.parse(s.objective)
        soft = any(name in DIVERGENCES for name in self.goal.terms)
        self.taps = ("post_norm",) if soft else ()
        self.rollout = Rollout.of(s.rollout, s.share, s.temperature, target, self.student)

    def logits(self, ids: Tensor) -> Tensor:
        """[B, T, V] of texts that are padded at the end."""
        made: Tensor = self.student(input_ids=ids).logits
        return made

    def loss(self, batch: FeatureBatch, step: int, done: float = 0.0) -> Loss:
        batch = self.rollout.next(batch, self.taps)
        wanted = batch.learn[:, 1:] > 0
        logits = self.logits(batch.ids)[:, :-1]
        return self.compared(batch, wanted, logits)

    def compared(self, batch: FeatureBatch, wanted: Tensor, logits: Tensor) -> Loss:
        """The objective at the wanted rows [B, T - 1] of these logits [B, T - 1, V]."""
        token, teacher = batch.ids[:, 1:][wanted], None
        if self.taps:
            with torch.no_grad():
                teacher = self.target.head(batch.hidden["post_norm"][:, :-1][wanted]) / self.settings.temperature
        mine = logits[wanted].float()
        places = self.goal.places(teacher=teacher, logits=mine / self.settings.temperature, token=token)
        hit = float((mine.detach().argmax(-1) == token).sum())
        return Loss(places.mean(), [hit], [float(len(token))])

    @torch.no_grad()
    def ranks(self, batch: FeatureBatch) -> Tensor:
        logits = self.logits(batch.ids)[:, :-1].float()
        own = logits.gather(2, batch.ids[:, 1:, None])
        place = torch.arange(logits.shape[-1])
        ahead = (logits > own) | ((logits == own) & (place < batch.ids[:, 1:, None]))
        rank = ahead.sum(-1)
        known = torch.arange(1, batch.ids.shape[1])[None] < batch.length[:, None]
        rank = F.pad(torch.where(known, rank, -1), (0, TAU_DEPTH_TOKENS + 1), value=-1)
        count = batch.ids.shape[1]
        return torch.stack([rank[:, 1 + depth : 1 + depth + count] for depth in range(TAU_DEPTH_TOKENS)], -1)

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        write(self.student, self.target, path)


def padded(target: TrainingTarget, samples: Sequence[tuple[Sequence[int], int]]) -> FeatureBatch:
    """A batch without hidden states of (ids, first to predict)."""
    length = max(len(ids) for ids, _ in samples)
    out, learn = torch.zeros(len(samples), length, dtype=torch.int64), torch.zeros(len(samples), length)
    for row, (ids, start) in enumerate(samples):
        out[row, : len(ids)] = torch.tensor(list(ids))
        learn[row, start : len(ids)] = 1
    return FeatureBatch(out, learn, torch.tensor([len(ids) for ids, _ in samples]))
