"""`Encoder`: texts to vectors of unit length, and a name that an index stores next to its vectors."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import CheckpointError, InputError
from paceline.core.files import check_folder, json_of

WORD_OR_SIGN = re.compile(r"\w+|[^\w\s]")
ENCODER_BATCH_TEXTS = 64


class Encoder(Protocol):
    """Texts to vectors."""

    name: str
    """Another encoder, or other weights, have another name."""
    width: int

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[n, width], each of length 1."""


class TextReader:
    """A BERT-like checkpoint in Hugging Face layout and its tokenizer. `auto`: the class of transformers that loads
    it."""

    pooling = ""
    """How the vector of a text is made, of an encoder that makes one."""

    def __init__(self, path: Path, auto: str) -> None:
        """CheckpointError for a folder that holds no such model."""
        import transformers

        if path.is_dir():
            check_folder(path)
        self.path = path
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
            loads = getattr(transformers, auto)
            self.model = loads.from_pretrained(str(path), trust_remote_code=False, use_safetensors=True).float().eval()
        except Exception as error:
            raise CheckpointError(f"{path} holds no sentence encoder ({type(error).__name__}: {error}).") from error
        most = min(self.model.config.max_position_embeddings, self.tokenizer.model_max_length)
        said = said_beside(path / "sentence_bert_config.json").get("max_seq_length")
        said = most if said is None else said
        if type(said) is not int or said < 1:
            raise InputError(f"{path / 'sentence_bert_config.json'}: max_seq_length is {said!r}, no number of tokens.")
        self.longest: int = min(said, most)
        self.width: int = self.model.config.hidden_size

    def lengths(self, texts: Sequence[tuple[str, ...]]) -> list[int]:
        """Tokens of each text, or pair of texts, with the special ones."""
        read = [self.tokenizer(*each, truncation=False, verbose=False)["input_ids"] for each in texts]
        return list(map(len, read))

    def tokens(self, *texts: list[str]) -> Any:
        """Token ids of texts, or pairs of them, cut to what is read, and where each has any."""
        return self.tokenizer(*texts, padding=True, truncation=True, max_length=self.longest, return_tensors="pt")


class SentenceEncoder(TextReader):
    """An encoder whose vector is the mean of its last hidden states, as all-MiniLM-L6-v2's is, or the first of them."""

    def __init__(self, path: Path, narrow: bool = False) -> None:
        """`narrow`: compute in bfloat16, for many texts at once; their vectors are a little less exact."""
        check(path)
        super().__init__(path, "AutoModel")
        if narrow:
            self.model = self.model.bfloat16()
        self.pooling = pooling_of(path)
        self.name = fingerprint(path)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        vectors = np.empty((len(texts), self.width), np.float32)
        for start in range(0, len(order), ENCODER_BATCH_TEXTS):
            part = order[start : start + ENCODER_BATCH_TEXTS]
            vectors[part] = self.read([texts[i] for i in part])[0]
        return vectors

    def read(self, texts: Sequence[str]) -> tuple[NDArray[np.float32], int]:
        """Vectors of some texts in one pass, and their tokens."""
        import torch

        read = self.tokens([*texts])
        with torch.inference_mode():
            states = self.model(**read).last_hidden_state.float()
        mask = read["attention_mask"].unsqueeze(-1)
        mean = states[:, 0] if self.pooling == "cls" else (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        made: NDArray[np.float32] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return made, int(mask.sum())


class StaticEncoder:
    """The mean of a checkpoint's input embeddings over the words of a text: no layer is computed, so that millions of
    passages take minutes. It knows words, not order."""

    def __init__(self, path: Path) -> None:
        check(path)
        self.reader = TextReader(path, "AutoModel")
        self.name, self.width = f"{fingerprint(path)}-static", self.reader.width
        self._table: NDArray[np.float32] = self.reader.model.get_input_embeddings().weight.detach().numpy()
        self._words: dict[str, NDArray[np.float32]] = {}

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        made = np.empty((len(texts), self.width), np.float32)
        for i, text in enumerate(texts):
            words = WORD_OR_SIGN.findall(text.lower())
            total = sum((self._vector(word) for word in words), np.zeros(self.width, np.float32))
            made[i] = total / max(float(np.linalg.norm(total)), 1e-9)
        return made

    def _vector(self, word: str) -> NDArray[np.float32]:
        """[width] The mean of a word's pieces."""
        known = self._words.get(word)
        if known is None:
            ids = self.reader.tokenizer(word, add_special_tokens=False)["input_ids"]
            known = self._table[ids].mean(0) if ids else np.zeros(self.width, np.float32)
            self._words[word] = known
        return known


class PairEncoder(TextReader):
    """A cross-encoder: it reads both texts of a pair at once and says, from 0 to 1, how well they go together."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "AutoModelForSequenceClassification")
        if self.model.config.num_labels != 1:
            labels = self.model.config.num_labels
            raise CheckpointError(f"{path} sorts texts into {labels} classes; give a cross-encoder with one score.")

    def judge(self, pairs: Sequence[tuple[str, str]]) -> tuple[NDArray[np.float32], int]:
        """A score of each pair, the sigmoid of the head's output, and their tokens."""
        import torch

        read = self.tokens([one for one, _ in pairs], [two for _, two in pairs])
        with torch.inference_mode():
            made: NDArray[np.float32] = self.model(**read).logits[:, 0].sigmoid().numpy()
        return made, int(read["attention_mask"].sum())


def check(path: Path) -> None:
    """Refuse what is no sentence encoder, or makes its vectors in another way."""
    if path.is_dir():
        check_folder(path)
    if not (path / "config.json").is_file() or not (path / "model.safetensors").is_file():
        raise InputError(f"{path} holds no encoder; give a folder with config.json and model.safetensors.")
    pooling_of(path)
    modules = path / "modules.json"
    parts = json_of(modules, "the list of an encoder's parts") if modules.is_file() else []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise InputError(f"{modules} is no list of parts; download the encoder again.")
    kinds = {str(part.get("type", "")).rpartition(".")[2] for part in parts}
    if more := sorted(kinds - {"Transformer", "Pooling", "Normalize"}):
        raise InputError(f"{path} has the part {more[0]} behind its encoder, which is not computed; give another.")


def said_beside(file: Path) -> dict[str, Any]:
    """What a JSON file says; nothing where it is not there. InputError for one that is no object."""
    said = json_of(file, "an encoder's setting") if file.is_file() else {}
    if not isinstance(said, dict):
        raise InputError(f"{file} is no JSON object; download the encoder again.")
    return said


def pooling_of(path: Path) -> str:
    """mean or cls, as the folder says; mean where it says nothing. InputError for any other."""
    file = path / "1_Pooling" / "config.json"
    said = said_beside(file) if file.is_file() else {"pooling_mode_mean_tokens": True}
    modes = [name for name, on in said.items() if name.startswith("pooling_mode_") and on is True]
    found = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    if len(modes) != 1 or modes[0] not in found:
        raise InputError(f"{path} does not pool by the mean of its tokens or by the first; give an encoder that does.")
    return found[modes[0]]


def fingerprint(path: Path) -> str:
    """A name made of configuration, weights and tokenizer."""
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        if (path / name).is_file():
            with (path / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
