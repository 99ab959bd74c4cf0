"""Fine-tunes over HTTP: named as models, chains of them too, many at once; one sentence for what cannot be."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from paceline import LLM, SamplingParams
from tests.engine.test_zoo import SMALL
from tests.serve.process import spawned
from tests.serve.test_slots import ask
from tests.zoo import LAYERS, family_of_tunes

HALF = LAYERS // 2
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
WISH: dict[str, Any] = {"prompt": "Tom has a dog", "max_tokens": 10, "temperature": 0, "ignore_eos": True}


def test_the_command_serves_fine_tunes_and_chains(tmp_path: Path) -> None:
    """`paceline serve --zoo`, with drafts: each text is that of the model alone, asked one by one and all at once."""
    paths = family_of_tunes(tmp_path)
    want = {}
    for name, path in paths.items():
        with LLM(path, dtype="float32", drafter="none", **SMALL) as llm:
            [out] = llm.generate([WISH["prompt"]], GREEDY, progress=False)
            want[name] = out.text
    want |= {f"base[0:{HALF}]+a[{HALF}:{LAYERS}]": want["a"], f"a[0:{HALF}] + base[{HALF}:{LAYERS}]": want["base"]}
    assert len({*want.values()}) == 4
    args = [part for name in "abc" for part in ("--zoo", f"{name}={paths[name]}")]
    serve = ["-m", "paceline", "serve", str(paths["base"]), "--port", "0", "--dtype", "float32", "--blocks", "200"]
    with spawned(*serve, "--drafter", "ngram", "--max-requests", "8", *args) as (address, child):
        cards = ask(address, "/v1/models", method="GET")[1]["data"]
        assert [(card["id"], card.get("parent")) for card in cards] == [("base", None), *((it, "base") for it in "abc")]

        def say(name: str) -> str:
            status, answer = ask(address, "/v1/completions", {**WISH, "model": name})
            assert status == 200 and answer["model"] == name, answer
            return str(answer["choices"][0]["text"])

        for name in want:
            assert say(name) == want[name], name
        names = [*want] * 3
        with ThreadPoolExecutor(8) as callers:
            for name, text in zip(names, callers.map(say, names)):
                assert text == want[name], name
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
        for name, status, words in (
            ("a[0:2]", 400, "ends at layer 2"), ("x[0:4]", 400, "no model 'x'"),
            ("a[2:4]+b[0:2]", 400, "layer 0 comes"),
            ("d", 404, "not served"), ("a[0:2", 404, "not served"), (f"a[0:{10**9}]", 400, "no part of a chain"),
        ):  # fmt: skip
            for door, body in (("/v1/completions", WISH), ("/v1/chat/completions", chat)):
                got = ask(address, door, {**body, "model": name})
                assert got[0] == status and words in got[1]["error"]["message"], got
        assert len(ask(address, "/v1/models", method="GET")[1]["data"]) == 4
        assert child.poll() is None


def test_models_of_a_fleet_share_what_is_equal(tmp_path: Path) -> None:
    """`paceline serve --models` with a fine-tune of its own process' other model, and a zoo in one of them."""
    paths = family_of_tunes(tmp_path)
    (tmp_path / "models.toml").write_text(
        f'[models.base]\nmodel = "{paths["base"]}"\n[models.one]\nmodel = "{paths["a"]}"\nzoo = ["b={paths["b"]}"]\n'
        f'[models.two]\nmodel = "{paths["base"]}"\nzoo = ["c={paths["c"]}"]\n'
    )
    serve = ["-m", "paceline", "serve", "--models", str(tmp_path / "models.toml"), "--port", "0", "--blocks", "100"]
    with spawned(*serve, "--dtype", "float32", "--drafter", "none") as (address, _):
        texts = {}
        for name in ("base", "one", "c", f"c[0:{HALF}]+base[{HALF}:{LAYERS}]", f"one[0:{HALF}]+a[{HALF}:{LAYERS}]"):
            status, answer = ask(address, "/v1/completions", {**WISH, "model": name})
            texts[name] = answer["choices"][0]["text"] if status == 200 else answer["error"]["message"]
        assert len({texts[it] for it in ("base", "one", "c")}) == 3
        assert texts[f"c[0:{HALF}]+base[{HALF}:{LAYERS}]"] not in (texts["c"], texts["base"])
        assert "no model" in texts[f"one[0:{HALF}]+a[{HALF}:{LAYERS}]"]
