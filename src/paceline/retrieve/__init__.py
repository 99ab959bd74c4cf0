"""Retrieval while an answer is written: passages that are guessed from a cache, and verified in batches (RaLMSpec)."""

from paceline.retrieve.answer import RetrievalAnswer, generate, knn_generate
from paceline.retrieve.datastore import Datastore
from paceline.retrieve.index import PassageIndex, build
from paceline.retrieve.knn import Knn
from paceline.retrieve.wish import Retrieval

__all__ = ["Datastore", "Knn", "PassageIndex", "Retrieval", "RetrievalAnswer", "build", "generate", "knn_generate"]
