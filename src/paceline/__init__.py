"""Paceline: LLM inference where speculation just works. Propose cheaply, verify exactly, commit or roll back."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.core.grammar import Grammar
    from paceline.core.params import SamplingParams
    from paceline.engine.async_llm import AsyncLLM
    from paceline.engine.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "Grammar", "SamplingParams"]

_HOMES = {
    "LLM": "paceline.engine.llm",
    "AsyncLLM": "paceline.engine.async_llm",
    "Grammar": "paceline.core.grammar",
    "SamplingParams": "paceline.core.params",
}


def __getattr__(name: str) -> Any:
    """Import torch with the first use of a public name, not with the package: `paceline --help` stays quick."""
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")
