"""From options to an engine: what is opened, and how often."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import safetensors

from paceline import LLM
from paceline.model import json_files


def test_loading_two_models_opens_each_file_once(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget, the packing, the head's and the companions' cards, and the weights themselves all ask."""
    seen: Counter[Path] = Counter()
    opens, parses = safetensors.safe_open, json_files.parsed

    def counted(file: Any, *args: Any, **more: Any) -> Any:
        seen[Path(file)] += 1
        return opens(file, *args, **more)

    def parsed(path: Path) -> dict[str, Any]:
        seen[path] += 1
        return parses(path)

    monkeypatch.setattr(safetensors, "safe_open", counted)
    monkeypatch.setattr(json_files, "parsed", parsed)
    LLM(*pair, "model", blocks=64).close()
    assert set(seen.values()) == {1}
    assert {path / name for path in pair for name in ("config.json", "model.safetensors")} <= set(seen)
