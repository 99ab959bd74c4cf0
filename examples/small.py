"""The small model of the examples: SmolLM2-135M where it can be had, else the bundled pair, which is often wrong."""

from typing import Any

from paceline import LLM, CheckpointError


def small(kind: Any = LLM, **options: Any) -> Any:
    """`LLM("smollm2", ...)`, or what `kind` names, such as AsyncLLM."""
    try:
        return kind("smollm2", **options)
    except CheckpointError as error:
        print(f"The demo pair answers: {error}")
        return kind(**options)
