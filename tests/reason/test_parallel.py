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
from paceline.core.errors import InputError, RefusalError
from paceline.reason.parallel import Parallel, ParallelSettings, conversation, lines
from paceline.reason.runner import BASE, Runner
from paceline.reason.tags import TAG, TAG_NAMES, TagParser, read, trained
from tests.tiny import TEMPLATE, tiny_checkpoint
from tests.tiny import trained as tokenizer_of

WISH = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True, seed=3)
PROMPT = [30, 31, 32, 33, 34, 35, 36, 37, 38, 39]
GOAL = "<Parallel><Goal><Outline>{a}: one</Outline><Outline>{b}: two</Outline><Outline>{c}: more</Outline></Goal>"


def made(path: Path, special: bool) -> Path:
    """A tiny model whose tokenizer has the tags as special tokens, or spells them."""
    tiny_checkpoint(path, seed=5, with_tokenizer=False, max_position_embeddings=2048)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=type(tokenizer_of(300)).from_str(tokenizer_of(300).to_str()),
        bos_token="<bos>", eos_token="<eos>", pad_token="<pad>",
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    if special:
        tags = [f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/")]
        tokenizer.add_special_tokens({"additional_special_tokens": tags})
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("special"), True)


@pytest.fixture(scope="module")
def spelling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("spelled"), False)


class Script:
    """A processor that makes any model write blocks: free tokens, and at set places the text of tags. A pure function
    of the output."""

    def __init__(self, tokenizer: Any, depth: int = 1, ends: int | None = None) -> None:
        """`ends`: what the second path ends with in place of its tag, a token; -1: nothing."""
        self.tokenizer, self.depth, self.ends = tokenizer, depth, ends
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
    parser = TagParser(script.tokenizer)
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
        if number == "2" and script.ends is not None:
            return [script.ends] if since >= 8 and script.ends >= 0 else []
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
    parser = TagParser(script.tokenizer)
    return [tag for token in output for tag in parser.feed(token)]


def write(llm: LLM, script: Script, wish: SamplingParams = WISH, **settings: Any) -> tuple[Any, Parallel]:
    runner, policy = Runner({BASE: llm.engine}), Parallel(ParallelSettings(mode="tags", **settings))
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


@pytest.mark.parametrize(
    ("which", "depth", "most"),
    [("model", 2, 270), ("spelling", 1, 330), pytest.param("spelling", 2, 560, marks=pytest.mark.full)],
)
def test_what_is_written_in_tags_is_the_text_of_the_training_mask(
    which: str, depth: int, most: int, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(which)
    llm = engine_of(path)
    script = Script(llm.text.tokenizer, depth)
    written, policy = write(llm, script, replace(WISH, max_tokens=most), depth=2)
    longest = is_trained(path, script, written.output)
    assert policy.report["blocks"] == depth and policy.report["branches"] == 3 * depth
    assert policy.report["critical_path"] == longest < policy.report["tokens"] == len(written.output)
    assert policy.report["passes"] <= 1.25 * longest


@pytest.mark.parametrize("drafter", ["ngram", pytest.param("suffix", marks=pytest.mark.full)])
def test_speculation_changes_no_text(model: Path, drafter: str) -> None:
    texts = []
    for each in ("none", drafter):
        llm = engine_of(model, drafter=each)
        request, _ = write(llm, Script(llm.text.tokenizer, 2), replace(WISH, max_tokens=270))
        texts.append(request.output)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("limit", [{"depth": 1}, {"fan_out": 2}])
def test_a_block_beyond_a_limit_is_written_in_sequence(model: Path, limit: dict[str, int]) -> None:
    llm = engine_of(model)
    script = Script(llm.text.tokenizer, 2)
    request, policy = write(llm, script, replace(WISH, max_tokens=270), **limit)
    assert policy.report["sequential"] >= 1 and policy.report["blocks"] == (1 if "depth" in limit else 0)
    assert len(read(llm.text.tokenizer, request.output)) == 2


def texts(llm: LLM, output: Sequence[int]) -> list[str]:
    """Texts of the paths of an output."""
    tokens = list(output)
    return [
        llm.text.tokenizer.decode(tokens[a:b]) for block in read(llm.text.tokenizer, tokens) for a, b in block.paths
    ]


def test_a_branch_that_stops_or_never_stops_is_closed(model: Path) -> None:
    found = []
    for ends in (None, 1, -1):
        llm = engine_of(model)
        request, _ = write(llm, Script(llm.text.tokenizer, 1, ends), replace(WISH, max_tokens=200), branch_tokens=90)
        found.append(texts(llm, request.output))
    plain, stopped, endless = found
    assert plain[0] == stopped[0] == endless[0] and plain[2] == stopped[2] == endless[2]
    assert all(path[1].endswith("</Path>") for path in found) and len(plain[1]) < len(endless[1])
    assert "<eos>" not in stopped[1]


def test_limits_end_the_text_where_they_say(model: Path) -> None:
    llm = engine_of(model)
    script = Script(llm.text.tokenizer)
    whole, _ = write(llm, script, replace(WISH, max_tokens=300))
    cut, _ = write(llm, script, replace(WISH, max_tokens=30))
    assert cut.output == whole.output[:30] and cut.finish == "length"
    limited, policy = write(llm, script, WISH, path_tokens=256)
    assert policy.report["critical_path"] == 256 and policy.report["why"] == "path_tokens"
    assert limited.output[:300] == whole.output[: len(limited.output)]
    piece = whole.text[60:70]
    stopped, _ = write(llm, script, replace(WISH, max_tokens=300, stop=piece))
    assert stopped.text == whole.text[: whole.text.index(piece)] and stopped.finish == "stop"


def test_texts_do_not_depend_on_who_is_served_beside_them(model: Path) -> None:
    """Four answers at once, with blocks for one."""
    wish = replace(WISH, max_tokens=220)
    llm = engine_of(model)
    script = Script(llm.text.tokenizer)
    alone, _ = write(llm, script, wish, branch_tokens=70)
    llm = engine_of(model, blocks=130, max_requests=6)
    runner = Runner({BASE: llm.engine})
    wish = replace(wish, processors=(script,))
    made = [runner.submit(PROMPT, wish, Parallel(ParallelSettings(mode="tags", branch_tokens=70)))[0] for _ in range(4)]
    while any(request.finish is None for request in made):
        runner.step()
    assert [request.error for request in made] == [None] * 4
    assert all(request.output == alone.output for request in made)
    assert llm.engine.snapshot().totals.preemptions
    assert llm.engine.cache.room() == llm.engine.cache.num_blocks


@pytest.mark.parametrize("early", [False, True])
def test_a_prompted_branch_is_what_its_beginning_alone_goes_on_with(early: bool) -> None:
    llm = LLM(dtype="float32", blocks=600, drafter="none", check=True)
    messages = [{"role": "user", "content": "How does one wash a car?"}]
    rendered, asked = conversation(llm.text, messages), list[list[int]]()

    def render(extra: str) -> Any:
        done = rendered(extra)
        asked.append(done.result())
        return done

    settings = ParallelSettings(fan_out=3, branch_tokens=45, early=early)
    runner, policy = Runner({BASE: llm.engine}), Parallel(settings, render)
    [request] = runner.submit(llm.text.chat(messages), SamplingParams(temperature=0, max_tokens=300), policy)
    beside = 0
    while request.finish is None:
        runner.step()
        assert policy.planned is not None
        beside += policy.root is not None and bool(policy.root.block) and policy.planned.finish is None
    assert (beside > 0) is early, "branches are written beside the outline"
    level, written = policy.level, sum(len(tokens) for name, tokens in policy.root.parts if name)  # type: ignore[union-attr]
    assert level.kept == written > 0 and level.proposed == len(policy.outline)
    assert 0 < level.expensive <= policy.report["passes"] and level.cheap_s > 0
    assert request.error is None and len(asked) == 2 and policy.report["branches"] == len(policy.outline) > 1
    assert policy.root is not None
    said, checked = {name: tokens for name, tokens in policy.root.parts if name}, 0
    for number, title in enumerate(policy.outline, 1):
        begun = f"{'' if number == 1 else chr(10)}{number}. {title}:"
        ids = llm.text.tokenizer.encode(begun, add_special_tokens=False)
        most = max(1, 45 - len(ids))
        [alone] = llm.generate([[*asked[1], *ids]], SamplingParams(temperature=0, max_tokens=most), progress=False)
        assert said[str(number)][: len(ids)] == ids
        line = llm.text.tokenizer.decode(said[str(number)][len(ids) :])
        assert alone.text.startswith(line) and (len(alone.token_ids) == most or alone.text[len(line)] == "\n")
        checked += bool(line)
    assert checked > 1 and llm.engine.cache.room() == llm.engine.cache.num_blocks


@pytest.mark.parametrize("early", [False, True])
def test_a_model_that_ends_at_once_says_nothing(early: bool) -> None:
    llm = LLM(dtype="float32", blocks=300, drafter="none", check=True)
    messages = [{"role": "user", "content": "How does one wash a car?"}]
    [end] = llm.engine.session.eos
    wish = SamplingParams(temperature=0, max_tokens=200, logit_bias={end: 100.0})
    runner, policy = (
        Runner({BASE: llm.engine}),
        Parallel(ParallelSettings(early=early), conversation(llm.text, messages)),
    )
    [request] = runner.submit(llm.text.chat(messages), wish, policy)
    while request.finish is None:
        runner.step()
    assert (request.error, request.finish, request.text) == (None, "stop", "")
    assert policy.report["branches"] == 0 and llm.engine.cache.room() == llm.engine.cache.num_blocks


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    for settings in (
        {"mode": "tags", "early": True},
        {"fan_out": 1},
        {"fan_out": 65},
        {"depth": 0},
        {"path_tokens": 9},
        {"conclusion": ""},
    ):
        with pytest.raises(InputError):
            ParallelSettings(**settings)  # type: ignore[arg-type]
    windows = LLM(tiny_checkpoint(tmp_path, "mistral"), dtype="float32", blocks=20)
    with pytest.raises(RefusalError, match="window"):
        Runner({BASE: windows.engine}).submit(PROMPT, WISH, Parallel(ParallelSettings(mode="tags")))
    demo = LLM(blocks=20)
    with pytest.raises(InputError, match="needs a conversation"):
        Runner({BASE: demo.engine}).submit(PROMPT, WISH, Parallel())


def test_outlines_are_lines() -> None:
    import re

    language = re.compile(lines(4))
    assert language.fullmatch("1. Cost\n2. Safety first") and language.fullmatch("1. aaa\n2. bbb\n3. ccc\n4. ddd")
    for bad in (
        "1. Cost",
        "1. Cost\n3. Safety",
        "1. Cost\n2. a: b",
        "1. aaa\n2. bbb\n3. ccc\n4. ddd\n5. eee",
        "1. aaa\n2.  b",
    ):
        assert not language.fullmatch(bad)


def test_the_recipe_trains_on_texts_of_the_grammar(model: Path) -> None:
    import importlib.util
    import random

    path = Path(__file__).parents[2] / "recipes" / "branches" / "train.py"
    spec = importlib.util.spec_from_file_location("branches_recipe", path)
    assert spec is not None and spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    rng = random.Random(0)
    for _ in range(50):
        question, answer, wanted = recipe.problem(rng)
        assert recipe.total(answer) == wanted and question.startswith("Work out ")
    assert recipe.total("<Conclusion>7</Conclusion>") is None and recipe.total("The total is 7 or so.") is None
    for end in ("<|im_end|>", ".<|im_end|>", ".\n<|endoftext|>", ""):
        assert recipe.total(f"The total is 6. No: The total is -42{end}") == -42
    asked = [recipe.problem(random.Random(recipe.MEASURED)) for _ in range(2)]
    assert asked[0] == asked[1] != recipe.problem(random.Random(1))
    tokenizer, tiny = recipe.with_tags(model)
    tokens, start, positions, sees = recipe.example(tokenizer, random.Random(1))
    [block] = read(tokenizer, tokens)
    firsts = [first for first, _ in block.paths]
    assert len(firsts) > 1 and {positions[first] for first in firsts} == {positions[block.goal] + 1}
    assert start <= block.goal and not sees[firsts[1], firsts[0]] and sees[block.conclusion, firsts[0]]
    assert bool(torch.isfinite(tiny(**recipe.batch(tokenizer, random.Random(1), 2)).loss))
