"""Retrieval while an answer is written: passages that are guessed from a cache, and verified in batches (RaLMSpec)."""

from paceline.retrieve.answer import Answer, generate
from paceline.retrieve.index import Index, build
from paceline.retrieve.wish import Retrieval

__all__ = ["Answer", "Index", "Retrieval", "build", "generate"]
