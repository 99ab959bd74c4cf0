"""The runner and the seam, with the smallest policy: two models in turn, a number of tokens each."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, InputError, RefusalError, SamplingParams
from paceline.core.grammar import Grammar
from paceline.core.operations import Abort, Extend, Submit
from paceline.engine.loop import Engine
from paceline.reason.level import Level
from paceline.reason.runner import BASE, Runner, Script, Stage
from tests.tiny import tiny_checkpoint

PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=40, ignore_eos=True).resolve({})


class Turns:
    """Engines in turn, `burst` tokens each."""

    name, kind, deadline_s = "turns", "turns", None

    def __init__(self, burst: int, *names: str) -> None:
        self.burst, self.names, self.report, self.level = burst, names, dict[str, Any](), Level()

    def check(self, params: SamplingParams, engines: Mapping[str, Engine]) -> None:
        pass

    def script(self, stage: Stage) -> Script:
        text, turn = stage.transcript, 0
        while text.open:
            name = self.names[turn % len(self.names)]
            engine, turn = stage.engines[name], turn + 1
            most = len(text.tokens) + min(self.burst, text.left)
            wish = replace(stage.params, max_tokens=most, seed=text.request.seed)
            [request] = engine.apply(Submit(text.prompt, wish))
            try:
                if text.tokens:
                    engine.apply(Extend(request.id, list(text.tokens)))
                yield from stage.written(request)
                text.add(request.output[len(text.tokens) :], name)
            finally:
                if request.finish is None:
                    engine.apply(Abort(request.id))

    def ended(self, stage: Stage) -> None:
        self.report["segments"] = stage.transcript.shown()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, LLM]]:
    root = tmp_path_factory.mktemp("pair")
    base, small = tiny_checkpoint(root / "a", seed=1), tiny_checkpoint(root / "b", seed=2, layers=1)
    made = {BASE: load(base), "small": load(small)}
    yield made
    for llm in made.values():
        llm.close()


def load(path: Path) -> LLM:
    return LLM(path, dtype="float32", blocks=60, block_size=4, check=True, drafter="ngram")


def runner(pair: Mapping[str, LLM]) -> Runner:
    return Runner({name: llm.engine for name, llm in pair.items()})


def finish(runner: Runner) -> None:
    while runner.busy:
        runner.step()


def test_one_model_in_turns_writes_its_own_text(pair: Mapping[str, LLM]) -> None:
    prompt = pair[BASE].ids("hello world")
    [want] = pair[BASE].generate([prompt], PARAMS)
    for burst in (1, 3, 7, 40):
        it = runner(pair)
        [got] = it.submit(prompt, PARAMS, Turns(burst, BASE))
        finish(it)
        assert (got.output, got.text, got.finish) == (want.token_ids, want.text, "length")


def test_segments_are_the_text(pair: Mapping[str, LLM]) -> None:
    it, policy = runner(pair), Turns(5, "small", BASE)
    [got] = it.submit(pair[BASE].ids("hello world"), PARAMS, policy)
    finish(it)
    assert "".join(s["text"] for s in policy.report["segments"]) == got.text
    assert [s["author"] for s in policy.report["segments"]] == ["small", BASE] * 4
    assert sum(s["tokens"] for s in policy.report["segments"]) == 40


def test_an_aborted_answer_leaves_nothing(pair: Mapping[str, LLM]) -> None:
    it = runner(pair)
    for steps in range(1, 12):
        [got] = it.submit(pair[BASE].ids("hello"), PARAMS, Turns(4, "small", BASE))
        for _ in range(steps):
            it.step()
        it.abort(got)
        assert got.finish == "abort" and not it.busy
        for llm in pair.values():
            assert not llm.engine.busy
            llm.engine.cache.check_integrity()
            assert llm.engine.snapshot().used == 0


def test_what_cannot_be_kept_is_refused(pair: Mapping[str, LLM]) -> None:
    it, prompt = runner(pair), pair[BASE].ids("hello")
    with pytest.raises(InputError, match="one answer"):
        it.submit(prompt, replace(PARAMS, n=2), Turns(4, BASE))
    with pytest.raises(RefusalError, match="grammar"):
        it.submit(prompt, replace(PARAMS, grammar=Grammar("regex", "a+"), ignore_eos=False), Turns(4, BASE))
    with pytest.raises(RefusalError, match="logprobs"):
        it.submit(prompt, replace(PARAMS, logprobs=1), Turns(4, BASE))
    with pytest.raises(RefusalError, match="order"):
        it.submit(prompt, replace(PARAMS, priority=2), Turns(4, BASE))
    assert not it.busy
