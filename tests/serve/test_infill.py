"""`suffix` of completions, /infill and Ollama's `suffix`, with a tokenizer that has the tokens of Qwen2.5-Coder."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from paceline import AsyncLLM
from paceline.engine.pair import DEMO as DEMO_PAIR
from paceline.serve.fim import FIM_FAMILIES
from paceline.serve.settings import Settings
from tests.serve.conftest import DEMO, running
from tests.serve.http import events, post

TOKENS = {"<|user|>": "<|fim_prefix|>", "<|assistant|>": "<|fim_suffix|>", "<|pad|>": "<|fim_middle|>"}
BEFORE, BEHIND = "Tom has 3 apples and buys ", " more. He has 7 apples."
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AsyncLLM, str]]:
    """The demo model, whose tokens of a conversation have the names of those that fill in; the engine and its URL."""
    path = tmp_path_factory.mktemp("coder") / "target"
    shutil.copytree(DEMO_PAIR / "target", path)
    for file in path.glob("*.json"):
        text = file.read_text(encoding="utf-8")
        for old, new in TOKENS.items():
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")
    llm = AsyncLLM(path, **DEMO)
    with running(llm, Settings(served_model_name=("coder",))) as url:
        yield llm, url
    llm.close()


def by_hand(llm: AsyncLLM, before: str, behind: str) -> list[int]:
    tokenizer = llm.llm.text.tokenizer
    one, two, three = map(tokenizer.convert_tokens_to_ids, TOKENS.values())
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in (before, behind)]
    return [*llm.llm.text.encode(""), one, *ids[0], two, *ids[1], three]


def test_each_door_puts_the_gap_between_its_tokens(coder: tuple[AsyncLLM, str]) -> None:
    llm, url = coder
    ids = by_hand(llm, BEFORE, BEHIND)
    want = post(url + "/v1/completions", {"prompt": ids, **GREEDY})[1]
    text, count = want["choices"][0]["text"], want["usage"]["prompt_tokens"]
    assert text and count == len(ids)
    made = post(url + "/v1/completions", {"prompt": BEFORE, "suffix": BEHIND, **GREEDY})[1]
    assert made["choices"][0]["text"] == text and made["usage"]["prompt_tokens"] == count
    two = post(url + "/v1/completions", {"prompt": ["x", BEFORE], "suffix": BEHIND, **GREEDY})[1]
    assert two["choices"][1]["text"] == text
    body = {"input_prefix": BEFORE[:-5], "prompt": BEFORE[-5:], "input_suffix": BEHIND, "temperature": 0}
    whole = post(url + "/infill", {**body, "n_predict": 12})[1]
    assert (whole["content"], whole["tokens_evaluated"], whole["stop"]) == (text, count, True)
    pieces = streamed(url + "/infill", {**body, "n_predict": 12})
    assert "".join(piece["content"] for piece in pieces) == text and pieces[-1]["stop_type"] == whole["stop_type"]
    options = {"temperature": 0, "num_predict": 12}
    ollama = {"model": "coder", "prompt": BEFORE, "suffix": BEHIND, "stream": False, "options": options}
    assert post(url + "/api/generate", ollama)[1]["response"] == text
    assert "insert" in post(url + "/api/show", {"model": "coder"})[1]["capabilities"]


def streamed(url: str, body: dict[str, Any]) -> list[Any]:
    import json
    import urllib.request

    data = json.dumps({**body, "stream": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})) as answer:
        return [json.loads(part.removeprefix(b"data: ")) for part in answer.read().split(b"\n\n") if part]


def test_a_streamed_completion_fills_in_as_well(coder: tuple[AsyncLLM, str]) -> None:
    url = coder[1] + "/v1/completions"
    body = {"prompt": BEFORE, "suffix": BEHIND, **GREEDY}
    text = "".join(part["choices"][0]["text"] for part in events(url, body))
    assert text == post(url, body)[1]["choices"][0]["text"]


def test_other_files_stand_before_the_gap(coder: tuple[AsyncLLM, str]) -> None:
    llm, url = coder
    others = [{"filename": "a.py", "text": "x = 1"}, {"text": "y = 2"}]
    body = {"input_prefix": "a", "input_suffix": "b", "n_predict": 1}
    plain, more = (post(url + "/infill", {**body, **each})[1] for each in ({}, {"input_extra": others}))
    extra = "".join(f"\n\n--- snippet ---\n\n{each['text']}" for each in others)
    assert more["tokens_evaluated"] == plain["tokens_evaluated"] + sum(
        len(llm.llm.text.tokenizer.encode(part, add_special_tokens=False))
        for part in (extra[: len(extra) // 2], extra[len(extra) // 2 :])
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "suffix": "b"}),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
        ("/api/generate", {"model": "demo", "prompt": "a", "suffix": "b"}),
    ],
)
def test_a_model_without_these_tokens_says_so(url: str, path: str, body: dict[str, Any]) -> None:
    status, answer = post(url + path, body)
    said = answer["error"] if path.startswith("/api") else answer["error"]["message"]
    assert status == 400 and "no tokens to fill in with, such as <|fim_middle|>" in said and said.count(". ") == 0


def test_echo_and_several_answers_are_refused(coder: tuple[AsyncLLM, str]) -> None:
    status, answer = post(coder[1] + "/v1/completions", {"prompt": "a", "suffix": "b", "echo": True})
    assert status == 400 and answer["error"]["param"] == "echo"
    status, answer = post(coder[1] + "/infill", {"input_prefix": "a", "n": 2})
    assert status == 400 and answer["error"]["param"] == "n"
    assert post(coder[1] + "/v1/completions", {"prompt": "a", "suffix": "", "max_tokens": 1})[0] == 200


def test_families_have_three_names_each() -> None:
    names = [(each.prefix, each.suffix, each.middle) for each in FIM_FAMILIES]
    assert len({name for three in names for name in three}) == 3 * len(names)
