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
    "LLM": "engine.llm",
    "AsyncLLM": "engine.async_llm",
    "Grammar": "core.grammar",
    "SamplingParams": "core.params",
    **dict.fromkeys(("SpecStats", "TokenLogprob"), "core.request"),
    **dict.fromkeys(("Chunk", "Completion", "RequestOutput"), "engine.outputs"),
    **dict.fromkeys(("CapacityError", "CheckpointError", "InputError", "PacelineError", "RefusalError"), "core.errors"),
}


def __getattr__(name: str) -> Any:
    """Import torch with the first use of a public name, not with the package: `paceline --help` stays quick."""
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"paceline.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
