"""Entry points of installed packages: found, used by an engine, and refused in one sentence where they are broken."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

PAGE = Path(__file__).parents[2] / "docs" / "add-a-drafter.md"
REPEAT = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[0]
POLICIES = """
from paceline.cache.eviction import LRU
from paceline.schedule.orders import fcfs

def mine(blocks):
    return LRU()

def latest():
    return lambda requests, now: fcfs(requests, now)[::-1]

def whole(order, row_budget):
    from paceline.schedule.prefill_first import PrefillFirst
    return PrefillFirst(order, row_budget)
"""
USE = """
from paceline import LLM, SamplingParams
params = SamplingParams(temperature=0, max_tokens=16)
with LLM(drafter="none", dtype="float32") as llm:
    plain = llm.generate("1 1 1 1", params)[0]
with LLM(drafter="repeat", eviction="mine", order="latest", schedule="whole", dtype="float32") as llm:
    mine = llm.generate("1 1 1 1", params)[0]
assert plain.text == mine.text and mine.stats.drafted > 0
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Lies as an installed one does: modules, and metadata that names them."""
    (tmp_path / "plug_repeat.py").write_text(REPEAT)
    (tmp_path / "plug_policies.py").write_text(POLICIES)
    points(
        tmp_path, drafters="repeat = plug_repeat:RepeatDrafter", evictions="mine = plug_policies:mine",
        orders="latest = plug_policies:latest", schedules="whole = plug_policies:whole",
    )  # fmt: skip
    return tmp_path


def points(path: Path, **groups: str) -> None:
    info = path / "plug-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(f"[paceline.{group}]\n{line}" for group, line in groups.items()))


def run(path: Path, code: str) -> "subprocess.CompletedProcess[str]":
    code = f"import sys; sys.path.insert(0, {str(path)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)


def test_an_installed_package_adds_a_drafter_and_policies(package: Path) -> None:
    done = run(package, USE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"drafters": "ngram = plug_own:Own"}, "The drafter 'ngram' is there twice, as paceline.draft.ngram."),
        ({"drafters": "own = plug_none:Own"}, "The drafter 'own' of plug cannot be loaded (ModuleNotFoundError"),
        ({"drafters": "other = plug_repeat:RepeatDrafter"}, "registers no drafter 'other'"),
        ({"evictions": "lru = plug_policies:mine"}, "The eviction 'lru' is there twice"),
    ],
)
def test_what_is_wrong_is_one_sentence(package: Path, groups: dict[str, str], words: str) -> None:
    (package / "plug_own.py").write_text(REPEAT.replace('"repeat"', '"ngram"').replace("RepeatDrafter", "Own"))
    points(package, **groups)
    name = next(iter(groups))
    ask = "from paceline.draft import DRAFTERS; DRAFTERS.names()"
    if name == "evictions":
        ask = "from paceline.cache.policies import policy; policy('unknown')"
    done = run(package, ask)
    assert done.returncode == 1 and words in done.stderr.splitlines()[-1]
