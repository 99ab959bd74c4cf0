"""Fresh items of each kind: drawn from a seed, run twice in the sandbox, and kept if both runs said the same."""

from .make import Refused, generate

__all__ = ["Refused", "generate"]
