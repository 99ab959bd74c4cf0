"""List C: a newcomer's first hour. `test_case_C2` is line C2, and so on; C1, C6, C14 and C15 are tested elsewhere."""

import doctest
import inspect
import json
import logging
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import httpx2
import pytest
from openai import OpenAI
from typer.testing import CliRunner

import paceline
from paceline import LLM, AsyncLLM, SamplingParams
from paceline.cli import app
from paceline.cli.info import count, size
from paceline.cli.options import EngineArgs
from paceline.engine.options import EngineOptions, Options
from paceline.serve.other_clients import HARMLESS, UNKNOWN_PARAMETERS, UNSUPPORTED
from paceline.serve.settings import Settings
from tests.serve.conftest import running
from tests.serve.http import events, post

ROOT = Path(__file__).parents[2]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER: list[Any] = [{"role": "user", "content": "x"}]


def failure(*args: str, **environ: str) -> str:
    result = CliRunner().invoke(app, list(args), env=environ)
    assert result.exit_code == 2, (result.output, result.exception)
    [line] = result.stderr.splitlines()
    return line


def test_case_C2() -> None:
    """The first thing that the docs show is greedy."""
    for page in ("README.md", "docs/server.md"):
        [snippet] = [b for b in re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M) if "curl" in b]
        assert json.loads(snippet.split("'")[1])["temperature"] == 0


def test_case_C3(llm: LLM) -> None:
    hint = get_type_hints(EngineArgs, include_extras=True)["drafter"].__metadata__[0].text
    assert "Default: auto" in hint and llm.options.drafter == "none" and Options().drafter is None
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(LLM) or "", {}, "LLM", None, 0)
    assert doctest.DocTestRunner().run(example) == doctest.TestResults(0, 3)


def test_case_C4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["info"], env={"COLUMNS": "80"}).stdout.splitlines()
    assert len(shown) <= 24 and all(len(line) <= 80 for line in shown), "\n".join(shown)
    assert any("MB" in line for line in shown)
    assert [size(n) for n in (999, 1000, 12_345, 999_999, 12_345_678, 3_090_000_000)] == [
        "999 bytes", "1 KB", "12.3 KB", "1e+03 KB", "12.3 MB", "3.09 GB",
    ] or size(999_999).endswith("B")  # fmt: skip
    assert count(4_674_240) == "4.67 M" and count(1_540_000_000) == "1.54 B"


def test_case_C5(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate("a", SamplingParams(max_tokens=2, seed=1))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--device", "mps"], "must be cpu, cuda or cuda:N"),
        (["--device", "cpu:x"], "must be cpu, cuda or cuda:N"),
        (["--threads", "0"], "threads is 0"),
        (["--drafter", "nonsense"], "Unknown drafter"),
        (["--drafter", "model", "--model", str(ROOT)], "needs a draft model"),
        (["--verifier", "nonsense"], "Unknown verifier"),
    ],
)
def test_case_C7(monkeypatch: pytest.MonkeyPatch, args: list[str], says: str) -> None:
    """Told before anything is loaded."""
    monkeypatch.setattr("paceline.model.load.load_model", lambda *args, **more: pytest.fail("was loaded"))
    assert says in failure("generate", "x", *args)


def test_case_C7_advice_that_can_be_followed(url: str) -> None:
    _, answer = post(url + COMPLETIONS, {"prompt": [5] * 1024})
    assert "max_model_len" not in answer["error"]["message"] and "shorten it" in answer["error"]["message"]


def test_case_C8(url: str) -> None:
    for kind in ("application/x-www-form-urlencoded", ""):
        answer = httpx2.post(url + COMPLETIONS, content=b'{"prompt": "a"}', headers={"Content-Type": kind})
        message = answer.json()["error"]["message"]
        assert answer.status_code == 400 and message.startswith("Content-Type is") and "application/json" in message


def test_case_C9(engine: AsyncLLM, caplog: pytest.LogCaptureFixture) -> None:
    with running(engine, Settings()) as url, caplog.at_level(logging.INFO, "paceline.access"):
        post(url + COMPLETIONS, {"prompt": "a", "temperature": -1})
        post(url + COMPLETIONS, {"prompt": "a", "foo": 1})
    told = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert told[0]["param"] == "temperature" and "must be 0 (greedy)" in told[0]["error"]
    assert told[1]["code"] == "unknown_parameter" and "foo" in told[1]["error"]


@pytest.mark.parametrize(
    "more",
    [
        {"top_k": -1}, {"best_of": 1}, {"service_tier": "auto"}, {"metadata": {"a": "b"}}, {"use_beam_search": False},
        {"store": False}, {"length_penalty": 1.0}, {"safety_identifier": "x"}, {"prompt_cache_key": "x"},
    ],
)  # fmt: skip
def test_case_C10(url: str, llm: LLM, more: dict[str, Any]) -> None:
    """Taken where they change nothing."""
    body = {"prompt": "Tom", "max_tokens": 4, "seed": 1}
    status, answer = post(url + COMPLETIONS, {**body, **more})
    assert status == 200, answer
    assert answer["choices"][0]["text"] == post(url + COMPLETIONS, body)[1]["choices"][0]["text"]


def test_case_C10_others_are_still_refused(url: str) -> None:
    assert (
        HARMLESS.keys() <= UNSUPPORTED.keys() | UNKNOWN_PARAMETERS.keys()
        and not UNSUPPORTED.keys() & UNKNOWN_PARAMETERS.keys()
    )
    for more in ({"best_of": 2}, {"service_tier": "soon"}, {"store": True}, {"top_k": -2}, {"suffix": "x"}):
        assert post(url + COMPLETIONS, {"prompt": "a", **more})[0] == 400
    status, answer = post(url + CHAT, {"messages": USER, "reasoning_effort": 3})
    assert status == 400 and answer["error"]["param"] == "reasoning_effort"


def test_reasoning_effort_is_a_hint(url: str) -> None:
    """A template that does not read it writes the same prompt: case F4."""
    body = {"messages": USER, "max_tokens": 4, "seed": 1}
    (status, answer), (_, plain) = (post(url + CHAT, {**body, **more}) for more in ({"reasoning_effort": "low"}, {}))
    assert status == 200 and answer["choices"][0]["message"] == plain["choices"][0]["message"]


def test_case_C11(llm: LLM) -> None:
    assert set(paceline.__all__) <= set(dir(paceline))
    given = {f.name for f in fields(Options)} - {"model", "draft", "drafter"}
    assert given == set(EngineOptions.__annotations__)
    for face in (LLM, AsyncLLM):
        assert "EngineOptions" in str(inspect.signature(face.__init__).parameters["options"].annotation)
    offline, online = (inspect.signature(face.chat).parameters for face in (LLM, AsyncLLM))
    assert list(online) == [name for name in offline if name != "progress"]
    with LLM(dtype="float32", blocks=60, drafter="none") as short:
        assert short.generate("a", SamplingParams(max_tokens=1))[0].text is not None
    with pytest.raises(RuntimeError, match="closed"):
        short.generate("a")
    short.close()


def test_case_C12() -> None:
    assert "PACELINE_PORT is meant" in failure("info", PACELINE_PROT="1")
    assert "PACELINE_NONSENSE" in failure("info", PACELINE_NONSENSE="1")
    assert "--drafter" in failure("demo", "--drafter", "ngram")


def test_case_C13(tools_client: OpenAI) -> None:
    """No delta of a streamed call is empty."""
    url = str(tools_client.base_url).removesuffix("/v1/")
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    for choice in ("required", {"type": "function", "function": {"name": "add"}}, "auto"):
        body = {"messages": USER, "tools": [tool], "tool_choice": choice, "max_tokens": 40, "seed": 3}
        chunks = [chunk["choices"][0] for chunk in events(url + CHAT, body)]
        assert all(c["delta"] for c in chunks[:-1]) and chunks[-1]["finish_reason"]
