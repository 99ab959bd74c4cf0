"""A small knowledge base, an encoder that needs no model, and retrieval at a time: the slow twin."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline import LLM, SamplingParams
from paceline.core.operations import Replace, Rewind, Submit
from paceline.retrieve import Retrieval
from paceline.retrieve.prompts import QuestionPrompts
from paceline.retrieve.retriever import Retriever

WIDTH = 32


class Hashed:
    """A text's vector is a sum of a random one for each of its character trigrams."""

    width = WIDTH

    def __init__(self, salt: str = "") -> None:
        self.salt, self.name = salt, f"hashed{salt}"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.stack([self._one(text) for text in texts])
        made: NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        return made

    def _one(self, text: str) -> NDArray[np.float64]:
        made = np.full(WIDTH, 1e-3)
        for at in range(len(text) - 2):
            seed = hashlib.blake2b((self.salt + text[at : at + 3]).encode(), digest_size=8).digest()
            made += np.random.default_rng(int.from_bytes(seed, "little")).standard_normal(WIDTH)
        return made


WORDS = "apple river stone Tom counts how many three four buys answer dog fox cloud green table seven sleeps print"


def folder(path: Path, files: int = 6, seed: int = 0) -> Path:
    """Texts of random words; two of them are the same."""
    path.mkdir(exist_ok=True)
    draw = np.random.default_rng(seed)
    for number in range(files):
        words = " ".join(draw.choice(WORDS.split(), 60))
        (path / f"{number}.txt").write_text(words, encoding="utf-8")
    (path / "twin.md").write_text((path / "0.txt").read_text(encoding="utf-8"), encoding="utf-8")
    return path


def one_at_a_time(
    llm: LLM, question: str, passages: Sequence[object], retriever: Retriever, params: SamplingParams, wish: Retrieval
) -> list[int]:
    """Retrieval at a time on one request that lives throughout: written token by token, `Replace` at each boundary."""
    prompts = QuestionPrompts(llm.text, question, passages, wish)  # type: ignore[arg-type]
    engine, params = llm.engine, params.resolve(llm.text.defaults)

    def passage(output: Sequence[int]) -> list[int]:
        [[(number, _)]] = retriever.search([retriever.query(prompts.query(output))], 1)
        return prompts.of(number)

    first = passage([])
    [request] = engine.apply(Submit(first, params, offset=len(prompts.bare) - len(first)))
    while request.finish is None:
        before = len(request.output)
        engine.step()
        now = len(request.output)
        assert now - before <= 1, "the twin is to meet every boundary"
        if now > before and now % wish.every == 0 and request.finish is None:
            engine.apply(Rewind(request.id, now))
            engine.apply(Replace(request.id, passage(request.output)))
    return list(request.output)
