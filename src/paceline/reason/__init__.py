"""Above tokens: what writes an answer with several models, branches or retrievals, proposed cheaply and verified."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.reason.cues import Cues
    from paceline.reason.ensemble import Ensemble, PolicyAnswer
    from paceline.reason.mentor import MentorSettings
    from paceline.reason.steps import StepSettings

__all__ = ["Cues", "Ensemble", "MentorSettings", "PolicyAnswer", "StepSettings"]
_HOMES = {
    "Cues": "cues",
    "Ensemble": "ensemble",
    "PolicyAnswer": "ensemble",
    "MentorSettings": "mentor",
    "StepSettings": "steps",
}


def __getattr__(name: str) -> Any:
    """Import torch with the first use of a name, not with the package."""
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"paceline.reason.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'paceline.reason' has no attribute {name!r}")
