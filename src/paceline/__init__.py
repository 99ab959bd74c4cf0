"""Paceline: LLM inference where speculation just works. Propose cheaply, verify exactly, commit or roll back."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.core.errors import CapacityError, CheckpointError, InputError, PacelineError, RefusalError
    from paceline.core.grammar import Grammar
    from paceline.core.params import SamplingParams
    from paceline.core.request import SpecStats, TokenLogprob
    from paceline.engine.async_llm import AsyncLLM
    from paceline.engine.llm import LLM
    from paceline.engine.outputs import Chunk, Completion, RequestOutput

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLM",
    "CapacityError",
    "CheckpointError",
    "Chunk",
    "Completion",
    "Grammar",
    "InputError",
    "PacelineError",
    "RefusalError",
    "RequestOutput",
    "SamplingParams",
    "SpecStats",
    "TokenLogprob",
]

_HOMES = {
    "paceline.core.errors": ("CapacityError", "CheckpointError", "InputError", "PacelineError", "RefusalError"),
    "paceline.core.grammar": ("Grammar",),
    "paceline.core.params": ("SamplingParams",),
    "paceline.core.request": ("SpecStats", "TokenLogprob"),
    "paceline.engine.async_llm": ("AsyncLLM",),
    "paceline.engine.llm": ("LLM",),
    "paceline.engine.outputs": ("Chunk", "Completion", "RequestOutput"),
}


def __getattr__(name: str) -> Any:
    """Import torch with the first use of a public name, not with the package: `paceline --help` stays quick."""
    for home, names in _HOMES.items():
        if name in names:
            import importlib

            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
