"""List B: what one client, or one file, did to all. `test_case_B1` is line B1, and so on; waiting times and memory
under load are those of bench/studies/hostile.py."""

import asyncio
import json
import logging
import os
import re
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

from paceline import AsyncLLM, SamplingParams
from paceline.core import grammar as grammar_module
from paceline.core.errors import CheckpointError, InputError
from paceline.core.grammar import Grammar, culprit
from paceline.engine.calibrate import kept
from paceline.engine.stop import Ending, Stopper
from paceline.model.checkpoint import read_config
from paceline.model.load import load_model
from paceline.native import build, store
from paceline.plan.cost import StepTimes
from paceline.serve.admission import Bodies, Hosts
from paceline.serve.body import parse
from paceline.serve.connections import MAX_HEADER_BYTES
from paceline.serve.errors import ApiError, brief
from paceline.serve.logs import HumanFormatter, JsonFormatter, brief_trace
from paceline.serve.metrics import grouped
from paceline.serve.pools import SMALL_PIECE_BYTES, WorkerPool
from paceline.serve.protocol import ChatRequest, CompletionRequest
from paceline.serve.run import bind
from paceline.serve.settings import Settings
from tests.model.test_load import edit_config
from tests.patience import PATIENCE_S
from tests.serve.conftest import DEMO, running
from tests.serve.http import post
from tests.serve.process import SERVE, spawned, threaded
from tests.serve.test_guard import connect
from tests.tiny import tiny_checkpoint

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "x"}]

# -- B1 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CompletionRequest, {"prompt": [1] * 100_000 + ["x"]}),
        (CompletionRequest, {"prompt": [[1]] * 1000 + [["x"] * 1000]}),
        (CompletionRequest, {"prompt": ["x"] * 100 + [1] * 100_000}),
        (CompletionRequest, {"prompt": "a", **{f"k{i}": 1 for i in range(10_000)}}),
        (CompletionRequest, {"prompt": "a", "logit_bias": {str(i): "x" for i in range(10_000)}}),
        (CompletionRequest, {"prompt": "a", "bad_words": [["x"] * 1000] * 256}),
        (CompletionRequest, {"prompt": "a", "stop": [1] * 10_000}),
        (CompletionRequest, {"prompt": "a", "allowed_tokens": ["x"] * 10_000}),
        (ChatRequest, {"messages": [1] * 10_000}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "text"}] * 10_000}]}),
        (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [{}] * 10_000}]}),
        (ChatRequest, {"messages": USER, "tools": [{}] * 100}),
    ],
)
def test_case_B1(model: Any, body: dict[str, Any]) -> None:
    """Validation ends at the first fault: a handful of complaints, however many there are."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() <= 4
    with pytest.raises(ApiError) as told:
        parse(json.dumps(body).encode(), model)
    assert len(told.value.message) < 400


def test_case_B1_more_parts_than_tokens() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for messages in (
        USER * 2000,
        [{"role": "user", "content": [{"type": "text", "text": "x"}] * 2000}],
        [*USER, {"role": "assistant", "tool_calls": [call] * 2000}],
    ):
        with pytest.raises(ApiError, match="2000 parts"):
            parse(json.dumps({"messages": messages}).encode(), ChatRequest, 1024)


def test_case_B1_what_is_quoted_is_short() -> None:
    for value in ("x" * 10**6, [1] * 10**6, {"a": ["b" * 10**6]}, 10**1000, b"x" * 10**6):
        assert len(brief(value)) <= 60


# -- B2 ----------------------------------------------------------------------------------------------------------------


def test_case_B2(url: str) -> None:
    """What a request makes the engine do has bounds, and is prepared elsewhere."""
    for more, name in (
        ({"bad_words": ["he " * 10**5]}, "bad_words"),
        ({"bad_words": [[5] * n for n in range(1, 101)]}, "bad_words"),
        ({"stop": ["a" * 10_000]}, "stop"),
        ({"allowed_tokens": [5] * 10_000}, "allowed_tokens"),
        ({"prompt": [5] * 1000, "echo": True, "logprobs": 20, "n": 128}, "logprobs"),
    ):
        status, answer = post(url + COMPLETIONS, {"prompt": "a", **more})
        assert (status, answer["error"]["param"]) == (400, name), answer


def test_case_B2_words_are_spelt_before_the_engine(url: str, engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    words = engine.llm.engine.judge.sampler._words
    usual = words.encode
    assert usual is not None

    def encode(text: str) -> Any:
        threads.append(threading.current_thread().name)
        return usual(text)

    monkeypatch.setattr(words, "encode", encode)
    assert post(url + COMPLETIONS, {"prompt": "a", "bad_words": ["he"], "n": 8, "max_tokens": 1})[0] == 200
    assert threads and not any("engine" in name for name in threads)


def test_case_B2_stop_strings_cost_no_more_than_their_text() -> None:
    stop = "ab" * 2000 + "c"
    ending = Ending(stop)
    assert [ending.feed(piece) for piece in ("xab", "ab" * 1000, "x", "abab")] == [2, 2002, 0, 4]
    slow = lambda text: next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)  # noqa: E731
    text = ""
    fast = Ending(stop)
    for piece in ("ab" * 30, "a", "ac", "ab", "b" * 3, "abab"):
        text += piece
        assert fast.feed(piece) == slow(text)
    request: Any = SimpleNamespace(
        shift=0, params=SamplingParams(stop=["aab"], ignore_eos=True), max_tokens=99, eos=frozenset(), output=[]
    )
    stopper = Stopper(request, SimpleNamespace(push=lambda token: "ab"[token], finish=lambda: ""))  # type: ignore[arg-type]
    assert [stopper.push(token) for token in (0, 0, 0, 1)] == [None, None, None, "stop"] and stopper.text() == "a"


def test_case_B2_health_is_red_while_no_step_is_made() -> None:
    llm = AsyncLLM(**DEMO)
    real, go_on = llm.llm.engine.step, threading.Event()

    def stuck() -> Any:
        assert go_on.wait(60)
        return real()

    with running(llm, Settings(stall_timeout=0.2)) as url, httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
        assert client.get("/health").status_code == 200
        llm.llm.engine.step = stuck  # type: ignore[method-assign]
        task = threading.Thread(target=post, args=(url + COMPLETIONS, {"prompt": "a", "max_tokens": 2}))
        task.start()
        while (red := client.get("/health")).status_code == 200:
            time.sleep(0.02)
        assert red.json()["error"]["code"] == "engine_stalled" and client.get("/ready").status_code == 503
        assert client.post(COMPLETIONS, json={"prompt": "a"}).status_code == 503
        go_on.set()
        task.join()
        assert client.get("/health").status_code == 200
    llm.close()


def test_case_B2_the_process_ends_though_a_step_does_not() -> None:
    code = """
        import sys, time
        from paceline import AsyncLLM
        from paceline.serve.run import bind, run
        from paceline.serve.settings import Settings

        llm = AsyncLLM(dtype="float32", blocks=600)
        llm.llm.engine.step = lambda: time.sleep(3600)
        sock, tell = bind("127.0.0.1", 0), lambda url: print(f"at {url}/v1", flush=True)
        code = run(llm, Settings(drain_timeout=0.1), sock, tell)
        llm.close(0.1)
        sys.exit(code)
    """
    import textwrap

    with spawned("-c", textwrap.dedent(code)) as (_, child):
        child.terminate()
        child.wait(60)


# -- B3, B6, B8 --------------------------------------------------------------------------------------------------------


def test_case_B3(url: str, engine: AsyncLLM) -> None:
    """Compiled grammars are kept by bytes, and what failed is not kept."""
    grammars = engine.llm.engine.judge.sampler.grammars
    for i in range(4):
        grammar = Grammar("regex", "(a{1000}){1000}e" + "f" * i)
        body = {"prompt": "a", "max_tokens": 8, "grammar": {"kind": "regex", "text": grammar.text}}
        assert post(url + COMPLETIONS, body)[0] == 400
        assert grammar not in {kept for _, kept in grammars._kept}
    assert sum(it.bytes for it in grammars._kept.values()) <= 128 << 20 and not grammars.full()


def test_case_B3_a_grammar_has_a_size() -> None:
    for kind, text in (("regex", "a" * 200_000), ("lark", 'start: "a"' + " " * 200_000), ("json_schema", "{}" * 10**5)):
        with pytest.raises(InputError, match="at most"):
            Grammar(kind, text)  # type: ignore[arg-type]


def test_case_B6(monkeypatch: pytest.MonkeyPatch) -> None:
    """The culprit is looked for in a bounded time."""
    leaf = {"type": "string", "description": "a field of some form"}
    schema: dict[str, Any] = {"properties": {f"f{i}": leaf for i in range(900)}}
    schema["properties"]["f899"] = {"type": "string", "pattern": "(?=x)"}
    clock = iter(range(10**6))
    monkeypatch.setattr(grammar_module, "monotonic", lambda: next(clock) * grammar_module.SEARCH_S / 10)
    faults: list[str] = []
    usual = grammar_module.fault
    monkeypatch.setattr(grammar_module, "fault", lambda source, *more: faults.append(source) or usual(source, *more))  # type: ignore[func-returns-value]
    assert culprit(schema, "no") == ("", "no") and len(faults) <= 10
    with pytest.raises(InputError, match="cannot be enforced"):
        Grammar("json_schema", json.dumps(schema))


async def test_case_B6_small_work_does_not_wait_for_large() -> None:
    pool, go_on, begun = WorkerPool("tests", most=4, large=2), threading.Event(), threading.Event()

    def large() -> str:
        begun.set()
        assert go_on.wait(60)
        return "large"

    first = asyncio.ensure_future(pool.run(large, SMALL_PIECE_BYTES + 1))
    second = asyncio.ensure_future(pool.run(large, SMALL_PIECE_BYTES + 1))
    await asyncio.sleep(0)
    assert await pool.run(lambda: "small", 5) == "small"
    with pytest.raises(ApiError) as caught:
        await pool.run(large, SMALL_PIECE_BYTES + 1)
    assert caught.value.status == 429 and caught.value.headers == {"Retry-After": "2"}
    second.cancel()
    go_on.set()
    assert await first == "large"
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)
    assert await pool.run(lambda: "again", SMALL_PIECE_BYTES + 1) == "again"
    pool.close()


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_case_B8(tools_client: Any, caplog: pytest.LogCaptureFixture) -> None:
    url = str(tools_client.base_url).removesuffix("/v1/")
    for levels in (60, 200, 450):
        schema = nested(levels)
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        call = {
            "id": "c",
            "type": "function",
            "function": {"name": "f", "arguments": '{"a":' * levels + "1" + "}" * levels},
        }
        for more in (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
            {"tools": [tool], "tool_choice": "required"},
            {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tools": [tool]},
            {"chat_template_kwargs": {"x": schema}},
            {"grammar": {"kind": "json_schema", "text": json.dumps(schema)}},
            {"metadata": schema},
            {"messages": [*USER, {"role": "assistant", "tool_calls": [call]}, *USER]},
        ):
            status, answer = post(url + CHAT, {"messages": USER, "max_tokens": 2, **more})
            assert status in (200, 400), (levels, more.keys(), answer)
            if status == 400 and "messages" not in more:
                assert "deeply" in answer["error"]["message"]
    assert not [record for record in caplog.records if record.exc_info]


# -- B4, B11 -----------------------------------------------------------------------------------------------------------

ROPE = {"rope_type": "default", "rope_theta": 1e4}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 256}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 256}
CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"rope_parameters": {**ROPE, "partial_rotary_factor": 2000}}, "partial_rotary_factor"),
    ({"rope_parameters": {**ROPE, "partial_rotary_factor": 4.0}}, "partial_rotary_factor"),
    ({"rope_parameters": {**ROPE, "partial_rotary_factor": 0.4}}, "partial_rotary_factor"),
    ({"rope_parameters": {**ROPE, "partial_rotary_factor": -1}}, "partial_rotary_factor"),
    ({"rope_parameters": {**ROPE, "partial_rotary_factor": "x"}}, "partial_rotary_factor"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": -1}}, "rope_theta"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": float("nan")}}, "rope_theta"),
    ({"rope_parameters": {**YARN, "rope_theta": 1}}, "rope_theta"),
    ({"rope_parameters": {**YARN, "factor": 0}}, "factor"),
    ({"rope_parameters": {**YARN, "original_max_position_embeddings": 0}}, "original_max_position_embeddings"),
    ({"rope_parameters": {**LONG, "long_factor": [1.0], "short_factor": [1.0] * 4}}, "long_factor"),
    ({"rope_parameters": {**LONG, "long_factor": [0.0] * 4, "short_factor": [1.0] * 4}}, "long_factor"),
    ({"rope_parameters": {**ROPE, "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.5, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 64}}, "low_freq_factor"),
    ({"head_dim": -8}, "head_dim"),
    ({"head_dim": 7}, "partial_rotary_factor"),
    ({"head_dim": 10**6}, "head_dim"),
    ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ({"num_key_value_heads": 0}, "num_key_value_heads"),
    ({"num_attention_heads": -4}, "num_attention_heads"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ({"num_hidden_layers": 0}, "num_hidden_layers"),
    ({"vocab_size": -1}, "vocab_size"),
    ({"vocab_size": 2**40}, "vocab_size"),
    ({"hidden_size": 0}, "hidden_size"),
    ({"intermediate_size": -64}, "intermediate_size"),
    ({"max_position_embeddings": -1}, "max_position_embeddings"),
    ({"max_position_embeddings": 10**15}, "max_position_embeddings"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
    ({"model_type": []}, "model_type"),
    ({"model_type": None}, "model_type"),
    ({"architectures": "x", "model_type": "zzz"}, "architectures"),
    ({"quantization_config": [1]}, "quantization_config"),
    ({"rope_parameters": 5}, "config.json"),
    ({"hidden_act": []}, "config.json"),
    ({"hidden_size": "wide"}, "config.json"),
    ({"hidden_size": 32.5}, "config.json"),
]  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("c") / "m", vocab=96, with_tokenizer=False)


@pytest.fixture
def config(checkpoint: Path) -> Any:
    """Reads the config with changes; the file is put back."""
    file = checkpoint / "config.json"
    before = file.read_text()

    def read(changes: dict[str, Any]) -> Any:
        file.write_text(before)
        return read_config(edit_config(checkpoint, **changes))

    yield read
    file.write_text(before)


@pytest.mark.parametrize(("changes", "named"), CONFIGS, ids=lambda value: str(value)[:60])
def test_case_B4_and_B11(config: Any, changes: dict[str, Any], named: str) -> None:
    """Whatever a config.json says: one sentence that names file and field."""
    with pytest.raises(CheckpointError) as caught:
        config(changes)
    message = str(caught.value)
    assert named in message and "\n" not in message and message.endswith(".")


def test_case_B4_windows_and_caps(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "m", "gemma2", vocab=96, with_tokenizer=False)
    for changes, named in (
        ({"sliding_window": -4}, "sliding_window"), ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ({"attn_logit_softcapping": -1.0}, "attn_logit_softcapping"), ({"layer_types": ["full_attention"]},
         "layer_types"),
        ({"final_logit_softcapping": "x"}, "final_logit_softcapping"),
    ):  # fmt: skip
        before = (path / "config.json").read_text()
        with pytest.raises(CheckpointError, match=named):
            read_config(edit_config(path, **changes))
        (path / "config.json").write_text(before)


@pytest.mark.parametrize(
    "index",
    [
        "{}", "[]", "{", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "[" * 100_000,
        '{"weight_map": {"a": "../../etc/passwd"}}', '{"weight_map": {"a": "/etc/model.safetensors"}}',
        '{"weight_map": {"a": "b.bin"}}',
    ],
)  # fmt: skip
def test_case_B11_an_index(tmp_path: Path, index: str) -> None:
    path = tiny_checkpoint(tmp_path / "m", vocab=96, with_tokenizer=False)
    (path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        load_model(path)


@pytest.mark.parametrize("content", ["[" * 100_000, "[1]", "nul", '{"a":'])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_case_B11_files_that_are_no_objects(tmp_path: Path, name: str, content: str) -> None:
    from paceline import LLM

    path = tiny_checkpoint(tmp_path / "m")
    (path / name).write_text(content)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        LLM(path, dtype="float32", memory="100M")


@pytest.mark.parametrize("content", ["{}", "[]", '{"model": {"type": "BPE"}}', "[" * 5000])
def test_case_B11_a_tokenizer(tmp_path: Path, content: str) -> None:
    from paceline.engine.text import Text

    path = tiny_checkpoint(tmp_path / "m")
    (path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="No usable tokenizer"):
        Text(path)


# -- B5 ----------------------------------------------------------------------------------------------------------------


def test_case_B5(url: str, engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that cannot fit is refused before a token of it is looked for."""
    text = engine.llm.text
    usual = text.encode
    monkeypatch.setattr(text, "encode", lambda it: pytest.fail("was encoded") if len(it) > 100_000 else usual(it))
    for path, body in (
        (COMPLETIONS, {"prompt": "he said " * 100_000}),
        (COMPLETIONS, {"prompt": ["a", "he said " * 100_000]}),
        ("/tokenize", {"prompt": "he said " * 100_000}),
        (CHAT, {"messages": [{"role": "user", "content": "he said " * 100_000}]}),
        ("/tokenize", {"messages": [{"role": "user", "content": "he said " * 100_000}]}),
        ("/detokenize", {"tokens": [5] * 100_000}),
    ):
        status, answer = post(url + path, body)
        assert status == 400 and "context holds" in answer["error"]["message"]


async def test_case_B5_no_work_for_who_finds_no_place_or_has_gone(
    engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, encoded = engine.llm.text, []
    go_on, usual = threading.Event(), text.encode

    def slow(prompt: str) -> Any:
        encoded.append(prompt)
        assert go_on.wait(30)
        return usual(prompt)

    with running(engine, Settings(queue_limit=0, request_timeout=0.5)) as url:
        monkeypatch.setattr(text, "encode", slow)
        body = {"prompt": [f"p{i}" for i in range(9)], "max_tokens": 1}
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
            assert (await client.post(COMPLETIONS, json=body)).status_code == 408
            go_on.set()
            await asyncio.sleep(0.3)
            assert encoded == ["p0"], "the others are not begun after the time is up"
    with running(engine, Settings(queue_limit=0)) as url:
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client, asyncio.timeout(PATIENCE_S):
            full = asyncio.create_task(
                client.post(COMPLETIONS, json={"prompt": [[5]], "n": 64, "max_tokens": 900, "ignore_eos": True})
            )
            while not engine.snapshot.running:
                await asyncio.sleep(0.01)
            late = await client.post(COMPLETIONS, json={"prompt": "late"})
            assert late.status_code == 429 and "late" not in encoded
            full.cancel()


def test_case_B5_bodies_have_room_together() -> None:
    bodies = Bodies(100)
    with bodies.share() as one:
        one.add(60)
        with bodies.share() as two, pytest.raises(ApiError) as caught:
            two.add(60)
        assert caught.value.status == 429
    assert bodies.size == 0


# -- B7, B12, B13 ------------------------------------------------------------------------------------------------------


def test_case_B7(engine: AsyncLLM, caplog: pytest.LogCaptureFixture) -> None:
    """Half heads end, and keep nobody out meanwhile."""
    settings = Settings(max_connections=8, head_timeout=1.0)
    with threaded(engine, settings) as (url, _), caplog.at_level(logging.WARNING, "paceline"):
        port = int(url.rsplit(":", 1)[1])
        halves = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
        for half in halves:
            with suppress(OSError):
                half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: ")
        for _ in range(3):
            assert httpx2.get(f"{url}/health", timeout=PATIENCE_S).status_code == 200
        for half in halves:
            half.settimeout(20)
            try:
                answer = half.recv(1000)
            except ConnectionError:
                answer = b""
            assert answer == b"" or answer.startswith((b"HTTP/1.1 408", b"HTTP/1.1 503"))
            half.close()
        with socket.create_connection(("127.0.0.1", port)) as large:
            large.settimeout(20)
            large.sendall(
                b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * (MAX_HEADER_BYTES // 8 + 2000)
            )
            assert large.recv(1000).startswith(b"HTTP/1.1 431")
    assert "connections were ended" in caplog.text


def test_case_B7_a_slow_head_and_a_kept_connection_are_served(engine: AsyncLLM) -> None:
    with threaded(engine, Settings(head_timeout=20.0)) as (url, _), connect(url) as sock:
        for _ in range(2):
            for piece in (b"GET /version HTTP/1.1\r\nHo", b"st: localhost\r\n", b"\r\n"):
                sock.sendall(piece)
                time.sleep(0.05)
            said = sock.recv(1000)
            while b"}" not in said and (more := sock.recv(1000)):  # head and body may come apart
                said += more
            assert said.startswith(b"HTTP/1.1 200") and said.endswith(b"}")


def test_case_B7_a_body_that_does_not_come(engine: AsyncLLM) -> None:
    with running(engine, Settings(body_timeout=0.3)) as url, connect(url) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        answer = sock.recv(1000)
        while b"body" not in answer and (more := sock.recv(1000)):  # head and body may come apart
            answer += more
        assert answer.startswith(b"HTTP/1.1 408") and b"body" in answer


def test_case_B7_under_few_files() -> None:
    """190 half heads under a limit of 200 files: others are still served."""
    code = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200));"
        f"sys.argv = {['paceline', *SERVE[2:]]!r}; runpy.run_module('paceline', run_name='__main__')"
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 1024)), hard))
    with spawned("-c", code, PACELINE_HEAD_TIMEOUT="30") as (url, child):
        port = int(url.rsplit(":", 1)[1])
        halves = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(190)]
        for half in halves:
            with suppress(OSError):
                half.sendall(b"GET /v1/")
        assert httpx2.get(f"{url}/health", timeout=PATIENCE_S).status_code == 200 and child.poll() is None
        for half in halves:
            half.close()


def test_case_B12() -> None:
    """The second server on a port is told before it loads anything, also while the first still loads."""
    first = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    with pytest.raises(InputError, match=f"port {port}"):
        bind("127.0.0.1", port)
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "serve", "--port", str(port), "--model", "/nowhere"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    first.close()
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and str(port) in done.stderr


@pytest.mark.parametrize(
    ("host", "ok"),
    [
        ("localhost", True), ("localhost:8000", True), ("127.0.0.1:8000", True), ("[::1]:8000", True), ("::1", False),
        ("127.1.2.3", True), ("LocalHost.", True), ("a.localhost", True), ("evil.example", False), ("", True),
        ("127.0.0.1.evil.example", False), ("localhost.evil.example:8000", False),
        ("10.0.0.1", False), ("[evil", False),
    ],
)  # fmt: skip
def test_case_B13(host: str, ok: bool) -> None:
    hosts = Hosts("127.0.0.1", False, ())
    if ok:
        hosts.check(host)
    else:
        with pytest.raises(ApiError) as caught:
            hosts.check(host)
        assert caught.value.status == 403
    for told_otherwise in (
        Hosts("0.0.0.0", False, ()),
        Hosts("127.0.0.1", True, ()),
        Hosts("127.0.0.1", False, ("*",)),
    ):
        told_otherwise.check(host)


def test_case_B13_over_http(url: str, engine: AsyncLLM) -> None:
    assert httpx2.get(f"{url}/v1/models", headers={"Host": "evil.example"}).status_code == 403
    assert httpx2.get(f"{url}/v1/models").status_code == 200
    with running(engine, Settings(allowed_hosts=("my.example",))) as other:
        assert httpx2.get(f"{other}/v1/models", headers={"Host": "my.example:80"}).status_code == 200
        assert httpx2.get(f"{other}/v1/models", headers={"Host": "evil.example"}).status_code == 403


# -- B9 ----------------------------------------------------------------------------------------------------------------


def record(message: str, **fields: Any) -> logging.LogRecord:
    it = logging.LogRecord("paceline.access", logging.INFO, "", 0, "%s", (message,), None)
    it.fields = fields
    return it


@pytest.mark.parametrize("formatter", [HumanFormatter(), JsonFormatter()])
@pytest.mark.parametrize("control", ["\r\n", "\n", "\x1b[2J", "\x7f", "\x85", "\u2028", "\x00", "\ud800"])
def test_case_B9(formatter: logging.Formatter, control: str) -> None:
    """What a client sends begins no line and steers no terminal."""
    line = formatter.format(record(f"GET /a{control}12:00:00 ERROR forged", id=f"x{control}y", path=f"/a{control}b"))
    assert line.isprintable() and "forged" in line
    line.encode()


def test_case_B9_a_trace_is_short() -> None:
    try:
        raise ValueError("x" * 10**5)
    except ValueError:
        it = record("failed")
        it.exc_info = sys.exc_info()
    assert len(HumanFormatter().format(it)) < 10_000 and len(JsonFormatter().format(it)) < 20_000
    assert brief_trace("short") == "short"


def test_case_B9_over_http(engine: AsyncLLM, caplog: pytest.LogCaptureFixture) -> None:
    with running(engine, Settings()) as url, caplog.at_level(logging.INFO, "paceline.access"):
        httpx2.get(f"{url}/a%0d%0a12:00:00%20INFO%20forged" + "x" * 5000)
        for names in ("suffix+ngram", "ngram|suffix", "suffix|ngram", "lookahead+ngram", "stand|ngram"):
            wish = {"prompt": "a", "max_tokens": 3, "ignore_eos": True, "speculation": {"drafter": names}}
            assert httpx2.post(url + COMPLETIONS, json=wish, timeout=PATIENCE_S).status_code == 200
        metrics = httpx2.get(f"{url}/metrics").text
    for it in caplog.records:
        line = HumanFormatter().format(it)
        assert line.isprintable() and len(line) < 1000
    labels = set(re.findall(r'drafter="([^"]*)"', metrics))
    assert not labels & {"suffix+ngram", "lookahead+ngram"} and {"a+b"} <= labels
    assert grouped({"ngram": 1, "b+c": 2, "c+d": 3, "a|b+c": 4, "ngram+topk": 5}) == {
        "ngram": [1], "a+b": [2, 3], "a|b": [4], "ngram+topk": [5],
    }  # fmt: skip


def test_case_B9_combinations_have_a_number(engine: AsyncLLM, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engine.drafters.MOST_DRAFTERS", len(engine.llm.engine.drafters.cards))
    wish = {"prompt": "a", "speculation": {"drafter": "ngram|stand|lookahead"}}
    status, answer = post(url + COMPLETIONS, wish)
    assert status == 400 and "too many combinations" in answer["error"]["message"]


# -- B10 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    ["[]", "", "{", "5", '{"target": {}, "rest": {}, "drafts": {}, "speed": 1, "seen": 1}', "null", "[" * 100_000],
)
def test_case_B10(tmp_path: Path, content: str) -> None:
    """A table that cannot be used is measured again."""
    path = tmp_path / "times.json"
    path.write_text(content)
    assert kept(path) is None
    store.write(path, json.dumps(StepTimes().dump()))
    assert kept(path) is not None and [it.name for it in tmp_path.iterdir()] == ["times.json"]
    for name, value in (("speed", "x"), ("speed", -1), ("seen", None), ("speed", float("nan"))):
        path.write_text(json.dumps(StepTimes().dump() | {name: value}))
        assert kept(path) is None


def test_case_B10_files_of_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "times.json"
    path.write_text(json.dumps(StepTimes().dump()))
    path.chmod(0o666)
    assert kept(path) is None
    path.chmod(0o644)
    assert kept(path) is not None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if path.stat().st_uid != 0:
        assert kept(path) is None
    found = path.stat()
    monkeypatch.setattr(Path, "stat", lambda self, **more: SimpleNamespace(st_uid=999, st_mode=found.st_mode))
    assert store.distrust(path) == "it belongs to another user"


def test_case_B10_a_directory_that_everybody_may_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("PACELINE_CACHE", str(shared))
    own = store.home()
    assert own != shared and stat.S_IMODE(own.stat().st_mode) == 0o700
    sticky = tmp_path / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    monkeypatch.setenv("PACELINE_CACHE", str(sticky))
    assert store.home() == sticky


def test_case_B10_a_library_that_does_not_load_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, empty = tmp_path / "whole.so", tmp_path / "decoder.so"
    empty.write_bytes(b"")
    made: list[Path] = []

    def built(machine: tuple[str, ...]) -> Path:
        if not empty.exists():
            made.append(empty)
            return Path("libc.so.6")
        return empty

    monkeypatch.setattr(build, "built", built)
    assert build.loaded() is not None and made == [empty] and not whole.exists()
