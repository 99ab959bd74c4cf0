"""Smaller doors: prefill, templates from a file, several names, variables of the template, /docs."""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from openai import NotFoundError, OpenAI

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.core.errors import InputError
from paceline.serve.api_docs import BODY_EXAMPLES, described_once, openapi_document
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S
from tests.serve.conftest import DEMO, HERMES, running
from tests.serve.http import post

QUESTION = "Tom has 3 apples and buys 4 more. How many has he?"
TURN = {"role": "user", "content": QUESTION}


@pytest.mark.parametrize("prefix", ["Tom has", "Tom has ", "3 + 4 =\n"])
def test_a_prefilled_answer_goes_on(client: OpenAI, llm: LLM, prefix: str) -> None:
    text = llm.text.tokenizer.apply_chat_template(
        [TURN, {"role": "assistant", "content": prefix}], tokenize=False, continue_final_message=True
    )
    assert text.endswith(prefix)
    ids = llm.text.tokenizer.encode(text, add_special_tokens=False)
    (want,) = llm.generate([ids], SamplingParams(temperature=0, max_tokens=12), progress=False)
    made = client.chat.completions.create(
        model="demo",
        messages=[TURN, {"role": "assistant", "content": prefix}],  # type: ignore[list-item]
        temperature=0,
        max_tokens=12,
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    )
    assert made.choices[0].message.content == want.text


@pytest.mark.parametrize(
    ("messages", "more"),
    [([TURN], {}), ([TURN, {"role": "assistant", "content": ""}], {}),
     ([TURN, {"role": "assistant", "content": "a"}], {"add_generation_prompt": True})],
)  # fmt: skip
def test_what_cannot_go_on_is_refused(url: str, messages: list[Any], more: dict[str, Any]) -> None:
    status, answer = post(url + "/v1/chat/completions", {"messages": messages, "continue_final_message": True, **more})
    assert status == 400 and answer["error"]["param"] == "continue_final_message"


def test_a_template_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hermes.jinja"
    file.write_text(HERMES)
    llm = AsyncLLM(chat_template=file, **DEMO)
    try:
        with running(llm, Settings(served_model_name=("demo",))) as url:
            body = {"messages": [TURN], "chat_template_kwargs": {"enable_thinking": True}}
            made = post(url + "/tokenize", {"messages": [TURN]})[1]["tokens"]
            text = post(url + "/detokenize", {"tokens": made})[1]["prompt"]
            assert text == f"<|user|>\n{QUESTION}<|end|>\n<|assistant|>\n"
            thinking = post(url + "/v1/chat/completions", {**body, "max_tokens": 2})[1]
            assert thinking["usage"]["prompt_tokens"] == len(llm.llm.text.encode(text + "<think>\n"))
    finally:
        llm.close()


@pytest.mark.parametrize("source", [None, "{% if %}"])
def test_a_template_that_is_none_is_found_before_the_model_is_loaded(tmp_path: Path, source: str | None) -> None:
    file = tmp_path / "broken.jinja"
    if source is not None:
        file.write_text(source)
    with pytest.raises(InputError, match="chat_template"):
        LLM(chat_template=file, **DEMO)


def test_each_name_will_do_and_the_first_is_told(engine: AsyncLLM) -> None:
    with running(engine, Settings(served_model_name=("first", "gpt-4o"))) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        assert [model.id for model in client.models.list()] == ["first", "gpt-4o"]
        assert client.models.retrieve("gpt-4o").id == "gpt-4o"
        made = client.completions.create(model="gpt-4o", prompt="a", max_tokens=1)
        assert made.model == "first"
        with pytest.raises(NotFoundError, match="'first' or 'gpt-4o'"):
            client.completions.create(model="demo", prompt="a")


def test_docs_name_every_end_point_and_run_nothing(url: str) -> None:
    answer = httpx2.get(url + "/docs", timeout=PATIENCE_S)
    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200 and "script-src" not in policy and "default-src 'none'" in policy
    assert "<script" not in answer.text and not re.search(r"(src|href)=.https?:", answer.text)
    for path in httpx2.get(url + "/openapi.json", timeout=PATIENCE_S).json()["paths"]:
        assert f"<code>{path}</code>" in answer.text
    assert answer.text.count("<pre>curl ") == len(BODY_EXAMPLES)
    assert not iscoroutinefunction(openapi_document), "it takes long once, so it is made in a thread"


def test_the_description_is_made_once_for_all_who_ask_at_the_same_time() -> None:
    app, made = FastAPI(), list[int]()
    make = app.openapi

    def counted() -> dict[str, Any]:
        if app.openapi_schema is None:
            made.append(1)
            time.sleep(0.05)
        return make()

    app.openapi = counted  # type: ignore[method-assign]
    with ThreadPoolExecutor(8) as threads:
        assert len({str(each) for each in threads.map(lambda _: described_once(app), range(8))}) == 1
    assert made == [1]


def test_the_examples_of_docs_are_answered(url: str) -> None:
    for path, body in BODY_EXAMPLES.items():
        status, answer = post(url + path, json.loads(body))[:2]
        if path == "/infill":  # the demo model has no tokens for it
            assert status == 400 and "tokens" in str(answer), answer
        else:
            assert status == 200, path


def test_the_command_takes_several_names() -> None:
    env = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "serve", "--help"], capture_output=True, text=True, env=env
    )
    assert "--served-model-name" in done.stdout and "--chat-template" in done.stdout
