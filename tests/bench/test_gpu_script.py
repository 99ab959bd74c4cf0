"""The script for a GPU, rehearsed: Triton's interpreter, a toy, every stage."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed; it comes with torch for CUDA")
ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_every_stage_leaves_its_result(tmp_path: Path) -> None:
    environment = {**os.environ, "GPU_TOY": "1", "PYTHON": sys.executable}
    subprocess.run([ROOT / "bench" / "gpu.sh", tmp_path], env=environment, check=True, timeout=900)
    stages = [json.loads(line) for line in (tmp_path / "stages.jsonl").read_text().splitlines()]
    failed = {each["stage"]: (tmp_path / f"{each['stage']}.txt").read_text()[-1500:] for each in stages if each["code"]}
    assert not failed, failed
    names = ["environment", "tests", "lossless", "bf16", "int4", "pair", "vllm", "table"]
    assert [each["stage"] for each in stages] == names
    table = (tmp_path / "table.md").read_text()
    assert "Texts equal to plain decoding: 2 of 2." in table and "| 8 | tree |" in table
    for name in ("bf16", "int4"):
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert [each["rows"] for each in found["passes"]] == [1, 2, 8, 1] and found["passes"][0]["of_limit"] > 0


def test_a_stage_that_fails_stops_nothing(tmp_path: Path) -> None:
    """No model, no time: the others have run, and the table says what there is."""
    script = (ROOT / "bench" / "gpu.sh").read_text()
    head, tail = script.split(': > "$OUT/stages.jsonl"')
    calls = (
        'stage bad 5 false\nstage slow 1 sleep 50\nstage good 5 echo ok\nstage table 60 "$PYTHON" -m bench.gpu table\n'
    )
    short = tmp_path / "bench" / "gpu.sh"
    short.parent.mkdir()
    short.write_text(head.replace('cd "$(dirname "$0")/.."', f'cd "{ROOT}"') + ': > "$OUT/stages.jsonl"\n' + calls)
    assert "stage table" in tail
    environment = {**os.environ, "GPU_TOY": "1", "PYTHON": sys.executable}
    subprocess.run(["bash", short, tmp_path / "out"], env=environment, check=True, timeout=120)
    codes = [json.loads(line)["code"] for line in (tmp_path / "out" / "stages.jsonl").read_text().splitlines()]
    assert codes == [1, 124, 0, 0] and "| slow | 124 |" in (tmp_path / "out" / "table.md").read_text()
