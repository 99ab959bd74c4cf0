"""The public face: what is exported, that it is documented and typed, and that the examples run."""

import doctest
import gc
import inspect
import subprocess
import sys
import weakref
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import get_type_hints

import pytest

import paceline
from paceline import LLM, AsyncLLM, InputError, PacelineError, SamplingParams
from paceline.engine import llm as home
from paceline.engine.options import EngineOptions, Options
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S
from tests.python_page import PAGE, page, undocumented
from tests.serve.conftest import running

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = [
    "LLM", "AsyncLLM", "CapacityError", "CheckpointError", "Chunk", "Completion", "Grammar", "InputError",
    "PacelineError", "RefusalError", "RequestOutput", "SamplingParams", "SpecStats", "TokenLogprob",
]  # fmt: skip
GREEDY = SamplingParams(temperature=0, max_tokens=8)


def test_the_names_that_tab_finds() -> None:
    assert paceline.__all__ == NAMES
    assert set(NAMES) <= set(dir(paceline))
    assert all(inspect.isclass(getattr(paceline, name)) for name in NAMES)
    assert all(issubclass(getattr(paceline, name), PacelineError) for name in NAMES if name.endswith("Error"))
    assert files("paceline").joinpath("py.typed").is_file()


def test_options_are_those_of_the_engine() -> None:
    own = {f.name for f in fields(Options)} - {"model", "draft", "drafter"}
    assert get_type_hints(EngineOptions).keys() == own
    hints, freer = get_type_hints(Options), {"lora", "zoo", "substitute"}  # mappings and paths, too
    assert {name: hints[name] for name in own - freer} == {
        name: hint for name, hint in get_type_hints(EngineOptions).items() if name not in freer
    }
    for face in (LLM, AsyncLLM):
        shown = inspect.signature(face).parameters
        assert {f.name: f.default for f in fields(Options)} == {name: p.default for name, p in shown.items()}
    with pytest.raises(TypeError, match="colour"):
        LLM(colour=1)  # type: ignore[call-arg]


def test_every_field_is_documented_and_the_page_is_that() -> None:
    assert undocumented() == []
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.python_page writes it"


def test_the_example_of_help_runs() -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(home.LLM, "LLM", globs={})
    assert doctest.DocTestRunner().run(example).failed == 0


def test_both_faces_have_the_same_verbs() -> None:
    for verb in ("generate", "chat", "stream", "embed"):
        offline, online = (inspect.signature(getattr(face, verb)) for face in (LLM, AsyncLLM))
        names = [name for name in offline.parameters if name != "progress"]
        assert names == list(online.parameters), verb
    conversation = [{"role": "user", "content": "Tom has 3 apples"}]
    with LLM(dtype="float32") as llm:
        (want,), several = llm.chat(conversation, GREEDY), llm.chat([conversation] * 2, GREEDY)
        vectors = llm.embed(["a", "b"])
    assert [answer.text for answer in several] == [want.text] * 2

    async def ask() -> None:
        async with AsyncLLM(dtype="float32") as online:
            (got,), both = await online.chat(conversation, GREEDY), await online.chat([conversation] * 2, [GREEDY] * 2)
            assert [got.text, *(answer.text for answer in both)] == [want.text] * 3
            with pytest.raises(InputError, match="2 prompts but 3"):
                await online.generate(["a", "b"], [GREEDY] * 3)
            assert await online.embed(["a", "b"]) == vectors

    import asyncio

    asyncio.run(ask())


def test_closed_is_closed_and_the_memory_is_free(capfd: pytest.CaptureFixture[str]) -> None:
    llm = LLM(dtype="float32")
    stream = llm.stream("Once upon a time", SamplingParams(max_tokens=200))
    next(stream)
    held = weakref.ref(llm.engine.model)
    llm.generate("a", GREEDY)
    assert capfd.readouterr() == ("", ""), "no terminal, no progress"
    llm.close()
    llm.close()
    stream.close()
    gc.collect()
    assert held() is None
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("a")


def test_the_example_of_tools() -> None:
    llm = AsyncLLM(chat_template=EXAMPLES / "tools.jinja")
    try:
        with running(llm, Settings()) as url:
            command = [sys.executable, EXAMPLES / "tools.py", f"{url}/v1"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    finally:
        llm.close()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("calls add {'a': ") and "\nsays " in done.stdout
