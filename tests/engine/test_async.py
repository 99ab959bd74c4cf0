"""The asyncio face: the same verbs, many callers, cancellation."""

import asyncio
import dataclasses
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.core.errors import CheckpointError, InputError
from paceline.model.decoder import Decoder
from tests.patience import PATIENCE_S

PROMPTS = ["one two three one two three", "a cat", "to be or not to be, to"]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


@pytest.fixture
async def engine(pair: tuple[Path, Path]) -> AsyncIterator[AsyncLLM]:
    async with AsyncLLM(*pair, dtype="float32", memory="100M", block_size=4, check=True) as running:
        yield running


async def test_callers_share_the_engine_and_get_their_own(engine: AsyncLLM, llm: LLM) -> None:
    want = llm.generate(PROMPTS, GREEDY, progress=False)
    got = await asyncio.gather(*(engine.generate(p, GREEDY) for p in PROMPTS), engine.generate(PROMPTS, GREEDY))
    assert [o[0].token_ids for o in got[:3]] == [o.token_ids for o in want]
    assert [o.token_ids for o in got[3]] == [o.token_ids for o in want]
    message = [{"role": "user", "content": "hello"}]
    assert (await engine.chat(message, GREEDY))[0].token_ids == llm.chat(message, GREEDY, progress=False)[0].token_ids


async def test_stream_and_leaving_early(engine: AsyncLLM, llm: LLM) -> None:
    want = llm.generate(PROMPTS[0], GREEDY, progress=False)[0]
    chunks = [chunk async for chunk in engine.stream(PROMPTS[0], GREEDY)]
    assert "".join(c.text for c in chunks) == want.text
    stream = engine.stream(PROMPTS[1], dataclasses.replace(GREEDY, max_tokens=200))
    await anext(stream)
    await stream.aclose()
    assert (await engine.generate(PROMPTS[0], GREEDY))[0].token_ids == want.token_ids
    assert not engine.llm.engine.busy


def test_a_loop_that_closes_takes_nobody_along(pair: tuple[Path, Path], llm: LLM) -> None:
    engine = AsyncLLM(*pair, dtype="float32", memory="100M", block_size=4, check=True)

    async def leaves() -> None:
        task = asyncio.create_task(engine.generate(PROMPTS[1], dataclasses.replace(GREEDY, max_tokens=200)))
        while not engine.llm.engine.desk.running:
            await asyncio.sleep(0)
        asyncio.get_running_loop().stop()
        await task

    loop = asyncio.new_event_loop()
    with pytest.raises(RuntimeError, match="stopped before"):
        loop.run_until_complete(leaves())
    loop.close()
    want = llm.generate(PROMPTS[0], GREEDY, progress=False)[0]
    assert asyncio.run(engine.generate(PROMPTS[0], GREEDY))[0].token_ids == want.token_ids
    assert not engine.llm.engine.busy
    engine.close()


async def test_a_bad_request_harms_nobody(engine: AsyncLLM) -> None:
    good = asyncio.create_task(engine.generate(PROMPTS[0], GREEDY))
    with pytest.raises(InputError, match="empty"):
        await engine.generate([[]], GREEDY)
    assert len((await good)[0].token_ids) == 16


async def test_several_prompts_enter_together_or_not_at_all(engine: AsyncLLM, llm: LLM) -> None:
    ids = [llm.text.encode(p) for p in PROMPTS]
    with pytest.raises(InputError, match="empty"):
        await engine.submit([(ids[0], GREEDY), ([], GREEDY)])
    assert not engine.llm.engine.busy
    subscription = await engine.submit([(prompt, dataclasses.replace(GREEDY, n=2)) for prompt in ids])
    texts = [""] * 6
    while chunks := await subscription.news_to_come():
        for chunk in chunks:
            texts[chunk.index] += chunk.text
    want = llm.generate(PROMPTS, GREEDY, progress=False)
    assert texts == [out.text for out in want for _ in range(2)]


async def test_a_caller_that_leaves_at_the_door_leaves_nothing_behind(engine: AsyncLLM) -> None:
    entered = threading.Event()
    engine._inbox.put(lambda: entered.wait(10) and None)
    task = asyncio.create_task(engine.generate(PROMPTS[0], dataclasses.replace(GREEDY, max_tokens=400)))
    await asyncio.sleep(0.05)
    task.cancel()
    entered.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.generate(PROMPTS[1], GREEDY)
    assert not engine.llm.engine.busy


async def test_the_death_of_the_engine_reaches_every_caller(pair: tuple[Path, Path]) -> None:
    engine = AsyncLLM(*pair, dtype="float32", memory="100M")
    engine._thread.join(0)

    def dies() -> None:
        raise OSError("disk on fire")

    engine.llm.engine.step = dies  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError, match="engine thread died"):
        await engine.generate(PROMPTS[0], GREEDY)
    with pytest.raises(RuntimeError):
        await engine.generate(PROMPTS[0], GREEDY)


async def test_the_engine_thread_alone_computes(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A second thread that computed on all cores would slow it down for good: OpenMP keeps a team for each."""
    threads: set[str] = set()
    forward = Decoder.forward

    def watched(self: Decoder, *args: Any) -> Any:
        threads.add(threading.current_thread().name)
        return forward(self, *args)

    build = LLM.__init__

    def built(self: LLM, *args: Any, **options: Any) -> None:
        threads.add(threading.current_thread().name)
        build(self, *args, **options)

    monkeypatch.setattr(Decoder, "forward", watched)
    monkeypatch.setattr(LLM, "__init__", built)
    async with AsyncLLM(*pair, dtype="float32", memory="100M") as running:
        await running.generate(PROMPTS[0], GREEDY)
    assert threads == {"paceline-engine"}


async def test_a_model_that_cannot_be_loaded_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        AsyncLLM(tmp_path / "none")


async def test_whole_is_one_chunk_a_sample(engine: AsyncLLM, llm: LLM) -> None:
    wish = dataclasses.replace(GREEDY, n=2, temperature=1.0, seed=3)
    want = llm.generate(PROMPTS[0], wish, progress=False)[0]
    ids = engine.llm.ids(PROMPTS[0])
    for whole in (True, False):
        subscription = await engine.submit([(ids, wish)], whole=whole)
        chunks = []
        while news := await subscription.news_to_come():
            chunks.extend(news)
        assert (len(chunks) == 2) is whole
        for completion in want.outputs:
            mine = [chunk for chunk in chunks if chunk.index == completion.index]
            assert "".join(chunk.text for chunk in mine) == completion.text
            assert [t for chunk in mine for t in chunk.token_ids] == completion.token_ids


LEFT_OPEN = """
import asyncio, sys, torch
from paceline import AsyncLLM, SamplingParams
from paceline.draft.online import Adapter, learn

adapter = Adapter(torch.nn.Linear(32, 64, bias=False), 32)
adapter.add(torch.randn(64, 32), torch.zeros(64, dtype=torch.int64), torch.ones(64))
learn(adapter, 0.3)

async def main():
    llm = AsyncLLM(*sys.argv[1:], dtype="float32", memory="100M")
    wishes = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    asked = [await llm.submit([([5] * 40, wishes)]) for _ in range(4)]
    await asked[0].news_to_come()
    globals()["kept"] = llm
    raise ValueError("the caller's own fault")

asyncio.run(main())
"""


def test_a_process_ends_as_it_would_without_the_engine(pair: tuple[Path, Path]) -> None:
    """Nobody closes the engine: its thread, and one that learns, end before the interpreter, which would abort."""
    command = [sys.executable, "-c", LEFT_OPEN, *map(str, pair)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1 and done.stderr.endswith("ValueError: the caller's own fault\n"), done.stderr


async def test_parked_samples_tell_who_follows_them_and_go_on_elsewhere(
    engine: AsyncLLM, pair: tuple[Path, Path], llm: LLM
) -> None:
    params = SamplingParams(temperature=0.8, seed=4, n=3, max_tokens=24, ignore_eos=True, logprobs=1)
    ids = llm.text.encode(PROMPTS[0])
    want = llm.generate([ids], params, progress=False)[0].outputs
    async with AsyncLLM(pair[0], dtype="float32", memory="100M", block_size=4, check=True) as other:
        for tokens in (0, 1, 9):
            texts, done = [""] * 3, dict[int, Any]()
            subscription = await engine.submit([(ids, params)])
            while any(len(r.output) < tokens for r in subscription.requests):
                for chunk in await subscription.news_to_come():
                    texts[chunk.index] += chunk.text
            packed = await asyncio.wait_for(engine.park(subscription), 20)
            while chunks := await asyncio.wait_for(subscription.news_to_come(), 20):
                for chunk in chunks:
                    texts[chunk.index] += chunk.text
                    assert chunk.done is None or chunk.done.finish_reason in ("parked", "length")
            subscription = await other.resume(packed)
            while chunks := await asyncio.wait_for(subscription.news_to_come(), 20):
                for chunk in chunks:
                    texts[chunk.index] += chunk.text
                    done[chunk.index] = chunk.done
            assert texts == [sample.text for sample in want]
            assert [done[i].token_ids for i in range(3)] == [sample.token_ids for sample in want]
            near = [[(e.token, pytest.approx(e.logprob, abs=1e-4)) for e in s.logprobs or []] for s in want]
            assert [[(e.token, e.logprob) for e in done[i].logprobs] for i in range(3)] == near
        assert not engine.llm.engine.busy and not other.llm.engine.busy
        assert other.llm.engine.cache.room() == other.llm.engine.cache.num_blocks
        with pytest.raises(InputError, match="damaged"):
            await other.resume([packed[0] or b"", (packed[1] or b"")[:-9] + bytes(9)])
        assert not other.llm.engine.busy and not other.llm.engine.session.requests
