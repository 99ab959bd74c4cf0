"""Parallel writing: what a model writes in tags equals one dense pass under the training mask; limits, faults, ends."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from paceline import LLM, SamplingParams
from paceline.reason.parallel import Parallel, Settings
from paceline.reason.runner import BASE, Runner
from paceline.reason.tags import NAMES, TAG, Parser, read, trained
from tests.tiny import TEMPLATE, tiny_checkpoint
from tests.tiny import trained as tokenizer_of

WISH = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True, seed=3)
PROMPT = [30, 31, 32, 33, 34, 35, 36, 37, 38, 39]
GOAL = "<Parallel><Goal><Outline>{a}: one</Outline><Outline>{b}: two</Outline><Outline>{c}: more</Outline></Goal>"


@pytest.fixture(scope="module", params=["special", "spelled"])
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny_checkpoint(tmp_path_factory.mktemp(request.param), seed=5, with_tokenizer=False, max_position_embeddings=2048)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=type(tokenizer_of(300)).from_str(tokenizer_of(300).to_str()),
        bos_token="<bos>", eos_token="<eos>", pad_token="<pad>",
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    if request.param == "special":
        tags = [f"<{slash}{name}>" for name in NAMES for slash in ("", "/")]
        tokenizer.add_special_tokens({"additional_special_tokens": tags})
    tokenizer.save_pretrained(path)
    return path


class Script:
    """A processor that makes any model write blocks: free tokens, and at set places the text of tags. A pure function
    of the output."""

    def __init__(self, tokenizer: Any, depth: int = 1, outlines: int = 3) -> None:
        self.tokenizer, self.depth = tokenizer, depth
        self.free = torch.full((320,), float("-inf"))
        for token in range(320):
            text = tokenizer.decode([token])
            if text and not set("<>\ufffd") & set(text):
                self.free[token] = 0.0

    def ids(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return found

    def wanted(self, output: Sequence[int]) -> list[int]:
        """What must come next, where it is set."""
        return wanted(self, tuple(output))

    def __call__(self, prompt: Any, output: Any, logits: torch.Tensor) -> torch.Tensor:
        if ahead := self.wanted(output):
            mask = torch.full_like(logits, float("-inf"))
            mask[ahead[0]] = 0.0
            return logits.new_zeros(len(logits)) + mask
        return logits + self.free.to(logits.dtype)


@lru_cache(maxsize=100_000)
def wanted(script: Script, output: tuple[int, ...]) -> list[int]:
    if output and (ahead := wanted(script, output[:-1])) and len(ahead) > 1:
        return ahead[1:]  # within a text that was begun
    parser = Parser(script.tokenizer)
    for token in output:
        parser.feed(token)
    open_ = [each.tag.name for each in parser.stack]
    since = len(output) - 1 - max((t.last for t in _tags(script, output)), default=-1)
    level = open_.count("Path")
    inner = TAG.split(parser.text)[-1]
    number = inner.partition(":")[0] if open_ and open_[-1] == "Path" else ""
    if not open_:
        done = "</Parallel>" in parser.text
        return script.ids(GOAL.format(a=1, b=2, c=3)) if not done and since >= 4 else []
    if open_[-1] == "Path":
        nest = number.endswith("2") and level < script.depth and "Conclusion" not in parser.text.split("<Path>2:")[-1]
        if nest and since >= 6:
            return script.ids(GOAL.format(a=f"{number}.1", b=f"{number}.2", c=f"{number}.3"))
        last = {"1": 7, "2": 13, "3": 10}.get(number[-1:], 5)
        return script.ids("</Path>") if since >= last else []
    if open_[-1] == "Parallel":
        block = parser.stack[-1]
        if block.paths < len(block.outlines):
            return script.ids(f"<Path>{block.outlines[block.paths].id}:")
        if not parser.text.endswith("</Conclusion>"):
            return script.ids("<Conclusion>")
        return script.ids("</Parallel>")
    return script.ids("</Conclusion>") if open_[-1] == "Conclusion" and since >= 5 else []


def _tags(script: Script, output: Sequence[int]) -> list[Any]:
    parser = Parser(script.tokenizer)
    return [tag for token in output for tag in parser.feed(token)]


def write(llm: LLM, script: Script, wish: SamplingParams = WISH, **settings: Any) -> tuple[Any, Parallel]:
    runner, policy = Runner({BASE: llm.engine}), Parallel(Settings(mode="tags", **settings))
    [request] = runner.submit(PROMPT, replace(wish, processors=(script,)), policy)
    for _ in range(3000):
        if request.finish is not None:
            break
        runner.step()
    assert request.finish is not None and request.error is None, request.error
    assert not llm.engine.busy and not llm.engine.desk.branches and not llm.engine.session.requests
    assert llm.engine.cache.room() == llm.engine.cache.num_blocks
    return request, policy


def engine_of(model: Path, **changes: Any) -> LLM:
    options = {"dtype": "float32", "blocks": 600, "block_size": 4, "check": True, "drafter": "none"}
    return LLM(model, **{**options, **changes})


def is_trained(model: Path, script: Script, output: list[int]) -> int:
    """Every free token is the likeliest of one dense pass under the training mask. Tokens of the longest path."""
    dense = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager", dtype=torch.float32).eval()
    tokens = [*PROMPT, *output]
    found = read(script.tokenizer, tokens)
    positions, sees = trained(found, len(tokens))
    mask = torch.full((len(tokens),) * 2, torch.finfo(torch.float32).min).masked_fill(torch.tensor(sees), 0.0)
    with torch.no_grad():
        logits = dense(
            input_ids=torch.tensor([tokens]), position_ids=torch.tensor([positions]), attention_mask=mask[None, None]
        ).logits[0]
    checked = 0
    for at in range(len(output)):
        before = [*output[:at]]
        previous = len(PROMPT) + at - 1
        if script.wanted(before):
            continue
        checked += 1
        assert int((logits[previous] + script.free).argmax()) == output[at], at
    assert checked > 40
    return max(positions) + 1 - len(PROMPT)


@pytest.mark.parametrize("depth", [1, 2])
def test_what_is_written_in_tags_is_the_text_of_the_training_mask(model: Path, depth: int) -> None:
    llm = engine_of(model)
    script = Script(llm.text.tokenizer, depth)
    request, policy = write(llm, script, replace(WISH, max_tokens=330 if depth == 1 else 440), depth=2)
    longest = is_trained(model, script, request.output)
    assert policy.report["blocks"] == depth and policy.report["branches"] == 3 * depth
    assert policy.report["critical_path"] == longest < policy.report["tokens"] == len(request.output)
    assert policy.report["passes"] <= 1.25 * longest


def test_speculation_changes_no_text(model: Path) -> None:
    texts = []
    for drafter in ("none", "ngram", "suffix"):
        llm = engine_of(model, drafter=drafter)
        request, _ = write(llm, Script(llm.text.tokenizer, 2), replace(WISH, max_tokens=440))
        texts.append(request.output)
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("limit", [{"depth": 1}, {"fan_out": 2}])
def test_a_block_beyond_a_limit_is_written_in_sequence(model: Path, limit: dict[str, int]) -> None:
    llm = engine_of(model)
    script = Script(llm.text.tokenizer, 2)
    request, policy = write(llm, script, replace(WISH, max_tokens=440), **limit)
    assert policy.report["sequential"] >= 1 and policy.report["blocks"] == (1 if "depth" in limit else 0)
    assert len(read(llm.text.tokenizer, request.output)) == 2
