"""JSON files of a model, bounded in depth."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from paceline.core.errors import CheckpointError
from paceline.model.opened import once

MOST_LEVELS = 64
"""Nesting of a JSON file of a model."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file as the caller's own object. Raises CheckpointError."""
    return deepcopy(once(path, lambda: parsed(path)))


def nested_beyond(content: Any, levels: int) -> bool:
    """Is a JSON value nested deeper than this? Counted without recursion."""
    row = [content]
    for _ in range(levels):
        row = [it for part in row if isinstance(part, dict | list)
               for it in (part.values() if isinstance(part, dict) else part)]  # fmt: skip
    return any(isinstance(it, dict | list) for it in row)


def parsed(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}; {instead(path.parent)}.") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON ({error}); download it again.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); give it to this user to read.") from None
    if nested_beyond(content, MOST_LEVELS):
        raise CheckpointError(f"{path} is nested deeper than {MOST_LEVELS} levels; download it again.")
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object; download it again.")
    return content


def instead(path: Path) -> str:
    """What to give where a directory is no model in Hugging Face layout."""
    if (path / "adapter_config.json").exists():
        return "it is an adapter: give it as --lora NAME=DIRECTORY, and the model that it changes as the model"
    return "give a Hugging Face model directory"
