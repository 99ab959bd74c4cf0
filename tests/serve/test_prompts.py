"""Prompts are encoded beside the event loop."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline import AsyncLLM
from paceline.engine.detokenize import Detokenizer
from paceline.engine.text import Text
from tests.serve.http import post, send

TEXT = "naïve 東京 🙂 def f(x): return 12345 " * 40


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("encode", "/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("render", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
    ],
)
def test_others_are_answered_while_a_prompt_is_encoded(
    url: str, engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch, name: str, path: str, body: dict[str, object]
) -> None:
    text, began, go_on = engine.llm.text, threading.Event(), threading.Event()
    usual = getattr(text, name)

    def slow(*args: object, **more: object) -> list[int]:
        began.set()
        assert go_on.wait(30)
        ids: list[int] = usual(*args, **more)
        return ids

    monkeypatch.setattr(text, name, slow)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, url + path, body)
        assert began.wait(30)
        assert send(url + "/version")[0] == 200
        assert not waiting.done()
        go_on.set()
        assert waiting.result()[0] == 200


def test_a_tokenizer_serves_several_threads(engine: AsyncLLM) -> None:
    """The pool encodes while the engine decodes."""
    text: Text = engine.llm.text
    want = text.encode(TEXT)

    def decode(_: int) -> str:
        detokenizer = Detokenizer(text.tokenizer)
        return "".join(map(detokenizer.push, want)) + detokenizer.finish()

    with ThreadPoolExecutor(4) as pool:
        encoded = pool.map(lambda _: text.encode(TEXT), range(40))
        decoded = pool.map(decode, range(8))
        assert all(ids == want for ids in encoded)
        assert all(back == TEXT for back in decoded)
