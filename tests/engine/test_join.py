"""Branches that are joined: the text goes on as it would behind one pass under the training mask."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline import LLM, SamplingParams
from paceline.core.errors import InputError, RefusalError
from paceline.core.operations import Abort, Branch, Extend, Fork, Join, Park, Replace, Resume, Rewind
from paceline.core.request import Request
from paceline.simulate.log import Event
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from tests.reason.dense import Text, logits, tokens
from tests.tiny import tiny_checkpoint

PROMPT = [11, 45, 23, 87, 200, 31, 64, 9, 150, 77, 21]
GREEDY = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)
STEPS = 2000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    return tiny_checkpoint(root / "target", seed=1), tiny_checkpoint(root / "draft", seed=2, layers=1)


@pytest.fixture(scope="module")
def dense(pair: tuple[Path, Path]) -> Any:
    return AutoModelForCausalLM.from_pretrained(pair[0], attn_implementation="eager", dtype=torch.float32).eval()


def engine_of(pair: tuple[Path, Path], **changes: Any) -> Any:
    options = {"dtype": "float32", "blocks": 200, "block_size": 4, "check": True, "max_requests": 8, "row_budget": 64}
    return LLM(*pair, **{**options, **changes}).engine


def until(engine: Any, done: Callable[[], bool]) -> None:
    for _ in range(STEPS):
        if done():
            return
        engine.step()
    raise AssertionError("it does not end")


def grow(engine: Any, request: Request, length: int) -> None:
    """Let an output have exactly so many tokens."""
    until(engine, lambda: len(request.output) >= length)
    if len(request.output) > length:
        engine.apply(Rewind(request.id, length))


def branch(engine: Any, request: Request, headers: list[list[int]], lengths: list[int]) -> list[Request]:
    """Branches that begin with these tokens, and have so many all in all when they end."""
    made = list[Request]()
    for header, length in zip(headers, lengths, strict=True):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        made += engine.apply(Branch(request.id, 1, params))
        engine.apply(Extend(made[-1].id, header))
    return made


def ended(engine: Any, branches: list[Request]) -> None:
    until(engine, lambda: all(child.finish for child in branches))


def own(child: Request) -> list[int]:
    """The tokens that a branch adds."""
    return child.tokens[child.common :]


def nested(engine: Any, wish: SamplingParams = GREEDY) -> tuple[Request, Text]:
    """Two blocks, one in the other's second branch; the text before the conclusion's own tokens."""
    [request] = engine.submit(PROMPT, wish)
    grow(engine, request, 6)
    before = list(request.tokens)
    one, two, three = branch(engine, request, [[5, 6], [7], [8, 9, 10]], [9, 40, 14])
    grow(engine, two, 6 + 5)
    inside = list(two.tokens[two.common :])
    parts = branch(engine, two, [[15], [16, 17]], [7, 12])
    ended(engine, parts)
    engine.apply(Join(two.id, [child.id for child in parts], [18, 19]))
    ended(engine, [one, two, three])
    size = sum(len(own(child)) for child in parts)
    behind = Text(own(two)[len(inside) + size :])
    block = Text(inside, [Text(own(child)) for child in parts], behind)
    engine.apply(Join(request.id, [one.id, two.id, three.id], [20, 21, 22]))
    return request, Text(before, [Text(own(one)), block, Text(own(three))], Text([20, 21, 22]))


def follows(dense: Any, request: Request, text: Text) -> None:
    """The tokens behind the join are the greedy ones of one dense forward."""
    start = len(tokens(text))
    assert text.behind is not None and request.tokens[:start] == tokens(text)
    text.behind.before += request.tokens[start:]
    best = logits(dense, text).argmax(-1).tolist()
    assert best[start - 1 : -1] == request.tokens[start:] and len(request.tokens) > start


@pytest.mark.parametrize("drafter", ["none", "model", "ngram", "topk", "auto"])
def test_a_joined_text_goes_on_as_behind_one_pass_under_the_training_mask(
    pair: tuple[Path, Path], dense: Any, drafter: str
) -> None:
    engine = engine_of(pair, drafter=drafter)
    log = list[Event]()
    record(engine, log.append)
    request, text = nested(engine)
    until(engine, lambda: request.finish is not None)
    follows(dense, request, text)
    assert replay(log).difference is None
    assert engine.cache.room() == engine.cache.num_blocks and not engine.desk.branches
    assert not engine.drafters.errors


def test_the_logits_behind_a_join_are_those_of_the_dense_pass(pair: tuple[Path, Path], dense: Any) -> None:
    engine = engine_of(pair, drafter="none")
    request, text = nested(engine)
    rows, forward = [], engine.model.forward

    def watched(passed: Any) -> Any:
        out = forward(passed)
        rows.append((passed.count, out.logits))
        return out

    engine.model.forward = watched
    engine.step()
    [(count, found)] = rows
    assert count == 3  # the conclusion's header: nothing is computed again
    wanted = logits(dense, text)[-1]
    assert torch.allclose(found[-1], wanted, atol=1e-5), (found[-1] - wanted).abs().max()
