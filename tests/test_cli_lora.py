"""`paceline generate --lora`: the text of merged weights, with a draft of its own; a bad adapter gets a sentence."""

import json
from pathlib import Path

from tests.lora import configure, make_adapter, merge
from tests.test_cli import failure, run
from tests.tiny import tiny_checkpoint


def test_one_prompt_with_an_adapter(tmp_path: Path) -> None:
    base = tiny_checkpoint(tmp_path / "base", "llama", seed=1)
    adapter = make_adapter(tmp_path / "a", base)
    merged = merge(tmp_path / "merged", base, adapter)
    ask = ["generate", "Tom has 3", "--json", "--max-tokens", "8", "--ignore-eos", "--seed", "5"]
    ask += ["--temperature", "0.8", "--dtype", "float32", "--blocks", "64", "--nodes", "3"]

    def said(model: Path, *more: str) -> dict[str, object]:
        result = run(*ask, "--model", str(model), *more)
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))

    want = said(merged, "--drafter", "none")
    named = ["--draft", str(base), "--drafter", "model", "--adapter", "a", "--lora"]
    own = said(base, *named, f"a={adapter},draft={adapter}")
    assert own["token_ids"] == want["token_ids"] and own["acceptance_rate"] == 1.0, "its draft says what it says"
    configure(adapter, target_modules="(a+)+b")
    bad = run(*ask, "--model", str(base), "--adapter", "a", "--lora", f"a={adapter}")
    assert "repeats only single characters" in failure(bad)
