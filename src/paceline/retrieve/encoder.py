"""`Encoder`: texts to vectors of unit length, and a name by which an index knows whose vectors it has."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import CheckpointError, InputError

MAX_ENCODER_TOKENS = 256
"""Tokens of a text that are read, where the model does not say."""
ENCODER_BATCH_TEXTS = 32


class Encoder(Protocol):
    """Texts to vectors."""

    name: str
    """Another encoder, or other weights, have another name."""
    width: int

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[n, width], each of length 1."""


class SentenceEncoder:
    """A BERT-like sentence encoder in Hugging Face layout whose vector is the mean of its last hidden states, as
    all-MiniLM-L6-v2 is."""

    def __init__(self, path: Path) -> None:
        """CheckpointError for a folder that holds no such model."""
        from transformers import AutoModel, AutoTokenizer

        check(path)
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
            self.model = AutoModel.from_pretrained(str(path), trust_remote_code=False).float().eval()
        except Exception as error:
            raise CheckpointError(f"{path} holds no sentence encoder ({type(error).__name__}: {error}).") from error
        limits = path / "sentence_bert_config.json"
        said = json.loads(limits.read_text(encoding="utf-8")) if limits.is_file() else {}
        self.longest = min(
            int(said.get("max_seq_length", MAX_ENCODER_TOKENS)), self.model.config.max_position_embeddings
        )
        self.width: int = self.model.config.hidden_size
        self.name = fingerprint(path)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        vectors = np.empty((len(texts), self.width), np.float32)
        for start in range(0, len(order), ENCODER_BATCH_TEXTS):
            part = order[start : start + ENCODER_BATCH_TEXTS]
            vectors[part] = self._batch([texts[i] for i in part])
        return vectors

    def _batch(self, texts: list[str]) -> NDArray[np.float32]:
        import torch

        read = self.tokenizer(texts, padding=True, truncation=True, max_length=self.longest, return_tensors="pt")
        with torch.inference_mode():
            states = self.model(**read).last_hidden_state
        mask = read["attention_mask"].unsqueeze(-1)
        mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        made: NDArray[np.float32] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return made


def check(path: Path) -> None:
    """Refuse what is no mean of hidden states."""
    if not (path / "config.json").is_file() or not (path / "model.safetensors").is_file():
        raise InputError(f"{path} holds no encoder; give a folder with config.json and model.safetensors.")
    pooling = path / "1_Pooling" / "config.json"
    if pooling.is_file() and not json.loads(pooling.read_text(encoding="utf-8")).get("pooling_mode_mean_tokens"):
        raise InputError(f"{path} does not pool by the mean of its tokens; give an encoder that does.")


def fingerprint(path: Path) -> str:
    """A name made of configuration, weights and tokenizer."""
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        if (path / name).is_file():
            with (path / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
