"""Retrieval while an answer is written: passages that are guessed from a cache, and verified in batches (RaLMSpec)."""

from paceline.retrieve.answer import Answer, generate, knn_generate
from paceline.retrieve.datastore import Datastore
from paceline.retrieve.index import Index, build
from paceline.retrieve.knn import Knn
from paceline.retrieve.wish import Retrieval

__all__ = ["Answer", "Datastore", "Index", "Knn", "Retrieval", "build", "generate", "knn_generate"]
