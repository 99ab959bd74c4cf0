"""`paceline chat --url`: the same session, with a model that a server holds."""

import pytest
from typer.testing import CliRunner

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.cli import app
from paceline.cli.answer import Screen
from paceline.cli.chat import ChatSession
from paceline.cli.partner import Remote
from paceline.core.errors import InputError
from paceline.serve.settings import Settings
from tests.serve.conftest import running


def test_a_session_over_http(url: str, llm: LLM) -> None:
    said = "Tom has 3 apples\n/stats\n/drafter\n/set max_tokens 4\n/set top_p 0\n/drafter kindly\nAnd 4 more?\n/exit\n"
    done = CliRunner().invoke(app, ["chat", "--url", url, "--temperature", "0", "--max-tokens", "12"], input=said)
    assert done.exit_code == 0, done.stderr
    messages = [{"role": "user", "content": "Tom has 3 apples"}]
    (want,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=12), progress=False)
    assert done.stdout.startswith(want.text + "\n")
    for words in (f"demo at {url}", "12 tokens in", "drafter: auto (of ", "max_tokens=4", "Unknown drafter 'kindly'"):
        assert words in done.stderr, words


def test_the_whole_conversation_is_sent_and_coloured(url: str, llm: LLM) -> None:
    session = ChatSession(
        Remote(url), SamplingParams(temperature=0, max_tokens=16, drafter="model"), Screen(), "Be brief."
    )
    seen: list[str | None] = []
    session.screen.show = lambda chunk: seen.extend(who for _, who in chunk.pieces)  # type: ignore[method-assign]
    session.hear("Tom has 3 apples")
    session.hear("And 4 more?")
    (want,) = llm.chat(session.messages[:-1], SamplingParams(temperature=0, max_tokens=16), progress=False)
    assert session.messages[-1]["content"] == want.text and {None, "model"} <= set(seen)
    assert session.answers[1].result.stats.tau > 1


def test_what_cannot_be_reached_is_said(url: str, engine: AsyncLLM) -> None:
    for given, words in (("localhost:1", "must begin with http"), ("http://127.0.0.1:1", "cannot be reached")):
        with pytest.raises(InputError, match=words):
            Remote(given)
    with pytest.raises(InputError, match="serves demo"):
        Remote(url, "another")
    done = CliRunner().invoke(app, ["chat", "--url", url, "--threads", "1"], input="")
    assert done.exit_code == 2 and "threads shapes an engine" in done.stderr
    with running(engine, Settings(served_model_name=("demo",), api_keys=("secret",))) as guarded:
        with pytest.raises(InputError, match="API key"):
            Remote(guarded)
        assert Remote(guarded, key="secret").model == "demo"
