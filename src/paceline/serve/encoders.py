"""`EncoderHost`: an encoder behind the server's shell. It makes vectors of texts or judges pairs; it does not write."""

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paceline.core.errors import InputError
from paceline.core.files import MOST_SMALL_FILE_BYTES
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.door import DOOR
from paceline.engine.totals import Snapshot, Totals
from paceline.retrieve.encoder import ENCODER_BATCH_TEXTS, PairEncoder, SentenceEncoder
from paceline.serve.calls import HttpCall
from paceline.serve.errors import ApiError
from paceline.serve.pools import Pools, WorkerPool
from paceline.serve.server import ModelFigures, Server, unknown_model
from paceline.serve.settings import Settings

ENCODERS = (
    "bert",
    "roberta",
    "xlm-roberta",
    "mpnet",
    "distilbert",
    "electra",
    "deberta-v2",
    "nomic_bert",
    "modernbert",
)
"""Model types whose checkpoints are encoders."""
PAIR_HEAD = "ForSequenceClassification"
"""End of the name of an architecture that judges a pair of texts."""
MOST_CHARACTERS = 64
"""Characters a token at most of what is read at all."""


def encoder_at(model: Path | str | None) -> bool:
    """Does this folder hold an encoder? What is no folder, or cannot be read, is no encoder here."""
    config_file = Path(model or "") / "config.json"
    try:
        if not config_file.is_file() or config_file.stat().st_size > MOST_SMALL_FILE_BYTES:
            return False
        config = json.loads(config_file.read_text(encoding="utf-8"))
        names = [str(name) for name in config.get("architectures") or ()]
        return config.get("model_type") in ENCODERS and not any(name.endswith("ForCausalLM") for name in names)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return False


class EncoderHost:
    """A `ServedHost` of one encoder. Texts are computed in a thread, some at a time, client by client."""

    def __init__(self, path: Path, settings: Settings) -> None:
        """CheckpointError for a folder that holds no encoder which can be served."""
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        pairs = any(str(name).endswith(PAIR_HEAD) for name in config.get("architectures") or ())
        self.reader: PairEncoder | SentenceEncoder = PairEncoder(path) if pairs else SentenceEncoder(path)
        self.settings, self.created = settings, int(time.time())
        self.names = settings.served_model_name or (path.resolve().name,)
        self.pools = Pools(settings.queue_limit, settings.parted)
        self.work = WorkerPool("encoder", max(256, settings.queue_limit), large=256, parted=settings.parted)
        self.alive, self.max_requests = True, 1

    @property
    def model(self) -> str:
        return self.names[0]

    @property
    def max_len(self) -> int:
        return self.reader.longest

    def stuck(self) -> float:
        return 0.0

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(0, 0, 1, 0, 0, Totals())

    async def of(self, name: str | None) -> Server:
        self.check_model(name)
        message = f"{self.model} is an encoder: it writes no text. Use /v1/embeddings, /v1/rerank or /v1/score."
        raise ApiError(400, message, param="model", code="encoder")

    def check_model(self, name: str | None) -> None:
        if name is not None and name not in self.names:
            raise unknown_model(name, self.names)

    def cards(self) -> list[dict[str, Any]]:
        return [
            {
                "id": name,
                "object": "model",
                "created": self.created,
                "owned_by": "paceline",
                "max_model_len": self.max_len,
            }
            for name in self.names
        ]

    def figures(self) -> dict[str, ModelFigures]:
        return {}

    def first(self) -> AsyncLLM | None:
        return None

    async def warm_up(self) -> None:
        if isinstance(self.reader, PairEncoder):
            self.reader.judge([("Hello", "Hello")])
        else:
            self.reader.encode(["Hello"])

    # -- what an embedding request asks for --------------------------------------------------------------------------

    @property
    def width(self) -> int:
        return self.reader.width

    def check_places(self, count: int) -> None:
        """Raise ApiError 429 for a request that would find no place."""
        door = DOOR.get()
        if isinstance(door, HttpCall):
            door.check_places(count)

    def pooling(self, wish: str | None) -> str:
        """How vectors are made, empty where none are; ApiError for another wish."""
        wish = wish or self.settings.pooling
        if wish not in (None, self.reader.pooling):
            message = f"pooling is {wish!r}, but {self.model} was not trained with that; leave it out."
            raise ApiError(400, message, param="pooling")
        return self.reader.pooling

    async def vectors(self, texts: Sequence[str | list[int]], pooling: str, name: str) -> tuple[list[list[float]], int]:
        """A vector of each text, and their tokens."""
        if isinstance(self.reader, PairEncoder):
            message = f"{self.model} judges pairs of texts and makes no vectors; use /v1/rerank or /v1/score."
            raise ApiError(400, message, param="model", code="encoder")
        reader, made, count = self.reader, list[list[float]](), 0
        for part in self._parts([self._text(text, name) for text in texts]):
            await self._checked([(text,) for text in part], name)
            found, tokens = await self.work.run(partial(reader.read, part), sum(map(len, part)))
            made, count = made + found.tolist(), count + tokens
        return made, count

    async def scores(self, pairs: Sequence[tuple[str, str]], name: str) -> tuple[list[float], int]:
        """How well the texts of pairs go together, by an encoder that reads both at once, and their tokens."""
        assert isinstance(self.reader, PairEncoder)
        reader, made, count = self.reader, list[float](), 0
        for part in self._parts(pairs):
            await self._checked(part, name)
            size = sum(len(one) + len(two) for one, two in part)
            found, tokens = await self.work.run(partial(reader.judge, part), size)
            made, count = made + found.tolist(), count + tokens
        return made, count

    @staticmethod
    def _parts(items: Sequence[Any]) -> list[Sequence[Any]]:
        return [items[start : start + ENCODER_BATCH_TEXTS] for start in range(0, len(items), ENCODER_BATCH_TEXTS)]

    def _text(self, text: str | list[int], name: str) -> str:
        if not isinstance(text, str):
            raise ApiError(400, f"{name} has token ids, but {self.model} takes texts; send those.", param=name)
        return text

    async def _checked(self, texts: Sequence[tuple[str, ...]], name: str) -> None:
        """InputError for a text, or a pair, that is longer than the encoder reads."""
        longest = min(self.settings.max_prompt_tokens or self.reader.longest, self.reader.longest)
        most = longest * MOST_CHARACTERS
        if any(sum(map(len, each)) > most for each in texts):
            raise InputError(
                f"{name} has a text of more than {most} characters, but this encoder reads {longest} tokens."
            )
        sizes = await self.pools.texts.run(lambda: self.reader.lengths(texts), sum(len(t) for e in texts for t in e))
        if max(sizes, default=0) > longest:
            raise InputError(f"{name} has a text of {max(sizes)} tokens, but this encoder reads at most {longest}.")
