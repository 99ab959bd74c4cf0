import gc
import json
import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from typer.testing import CliRunner, Result

from paceline.bench import perplexity as module
from paceline.bench.perplexity import Perplexity, ScoredText, perplexity, read_items, tokens_of
from paceline.cli import app
from paceline.core.errors import InputError, RefusalError
from paceline.engine.build import build
from paceline.engine.loop import Engine
from paceline.engine.options import Options
from paceline.engine.text import Text
from paceline.native.build import library
from tests.tiny import CORPUS, tiny_checkpoint

LINES: list[dict[str, Any]] = [
    {"question": "Tom has 3 apples and buys 4 more. How many?", "answer": "3 + 4 = 7. The answer is 7."},
    {"task_id": "x/0", "prompt": "def add(a, b):\n", "canonical_solution": "    return a + b\n", "test": ""},
    {"prompt": "The quick brown fox jumps over the lazy dog."},
    {"prompt": CORPUS},
]
native = pytest.mark.skipif(library() is None, reason="this machine has no AVX2, or no compiler")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)), encoding="utf-8")
    return path


def options(target: Path, **more: Any) -> Options:
    return Options(target, **{"dtype": "float32", "blocks": 600, "threads": 1, **more})


def oracle(target: Path, pairs: list[tuple[list[int], int]]) -> tuple[float, int]:
    """(perplexity, tokens) by transformers' own loss; labels before each text's index do not count."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    total, count = 0.0, 0
    for ids, first in pairs:
        labels = torch.tensor([[-100] * first + ids[first:]])
        scored = len(ids) - first
        with torch.inference_mode():
            total += model(input_ids=torch.tensor([ids]), labels=labels).loss.item() * scored
        count += scored
    return math.exp(total / count), count


def by_hand(target: Path) -> list[tuple[list[int], int]]:
    """Token ids of LINES, and where the scored ones begin."""
    tokenizer = Text(target).tokenizer

    def user(words: str) -> list[int]:
        return list(tokenizer.encode(f"<bos><user>{words}<eos><assistant>", add_special_tokens=False))

    pairs = []
    for line in LINES:
        prompt = user(line.get("question") or line["prompt"])
        answer = tokenizer.encode(line.get("answer", line.get("canonical_solution", "")), add_special_tokens=False)
        pairs.append((prompt + list(answer), len(prompt) if answer else 1))
    return pairs


def test_equals_the_loss_of_transformers(target: Path, texts: Path) -> None:
    """Answers alone where there are answers: scoring their prompts too would be another figure."""
    found, pairs = perplexity(options(target), texts, 9), by_hand(target)
    expected, tokens = oracle(target, pairs)
    assert found.values == {"float32": pytest.approx(expected, rel=1e-5)} and found.ratio is None
    assert (found.texts, found.tokens, found.cut) == (4, tokens, 0)
    unmasked, more = oracle(target, [(ids, 1) for ids, _ in pairs])
    assert more > tokens and abs(unmasked / expected - 1) > 1e-2


def test_the_first_texts_alone(target: Path, texts: Path) -> None:
    found, (expected, tokens) = perplexity(options(target), texts, 1), oracle(target, by_hand(target)[:1])
    assert (found.texts, found.tokens) == (1, tokens) and tokens == len(Text(target).encode(LINES[0]["answer"]))
    assert found.values["float32"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=native)])
def test_passes_of_any_size_give_the_same_figure(
    dtype: str, target: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The native decoder's rows have the same bits in every pass."""
    passes: list[int] = []
    run = Engine._run
    monkeypatch.setattr(
        Engine,
        "_run",
        lambda engine, plan, begun: (passes.append(sum(i.given for i in plan.items)), run(engine, plan, begun))[1],
    )
    whole = perplexity(options(target, dtype=dtype), texts, 9)
    assert len(passes) == len(LINES)
    passes.clear()
    cut = perplexity(options(target, dtype=dtype, row_budget=7), texts, 9)
    assert len(passes) > 4 * len(LINES) and max(passes) == 7
    assert cut.tokens == whole.tokens
    assert cut.values[dtype] == pytest.approx(whole.values[dtype], rel=1e-5 if dtype == "float32" else 1e-12)


def test_texts_are_cut_at_the_context_and_counted(target: Path, texts: Path) -> None:
    pairs = by_hand(target)
    longest = len(pairs[0][0]) - 3
    assert pairs[0][1] < longest and len(pairs[3][0]) > longest, "one answer and one prompt are too long"
    found = perplexity(options(target, max_model_len=longest + 1), texts, 9)
    expected, tokens = oracle(target, [(ids[:longest], first) for ids, first in pairs])
    assert found.cut == sum(len(ids) > longest for ids, _ in pairs) and 2 <= found.cut < 4
    assert found.tokens == tokens and found.longest == longest
    assert found.values["float32"] == pytest.approx(expected, rel=1e-5)
    assert f"Cut to {longest} tokens: {found.cut} texts." in found.summary()


def test_a_text_that_just_fits_is_not_cut(target: Path, texts: Path) -> None:
    length = len(by_hand(target)[0][0])
    assert perplexity(options(target, max_model_len=length + 1), texts, 1).cut == 0
    assert perplexity(options(target, max_model_len=length), texts, 1).cut == 1


def test_no_token_to_score(target: Path, texts: Path) -> None:
    with pytest.raises(InputError, match="no text has one to score"):
        perplexity(options(target, max_model_len=4), texts, 1)


def test_a_prompt_without_a_template(target: Path) -> None:
    """The answer gets no <bos> of its own."""
    text = Text(target)
    text.tokenizer.chat_template = None
    text.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    ids, first = tokens_of(text, ScoredText("Tom has", " 3 apples"))
    assert text.decode(ids[:first]) == "<bos>Tom has" and text.decode(ids[first:]) == " 3 apples"
    assert tokens_of(text, ScoredText("Tom has", None)) == (text.encode("Tom has"), 1)


def test_logits_that_are_not_finite(tmp_path: Path, texts: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = tiny_checkpoint(tmp_path / "broken") / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(InputError, match="float32 model's logits are not finite"):
        perplexity(options(weights.parent), texts, 1)


def test_never_two_models_at_once(target: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in that ignores quantize, so that it runs everywhere, and leaves a cycle as a library may."""
    alive: list[weakref.ref[Any]] = []
    asked: list[str | None] = []

    def watched(wish: Options) -> tuple[Engine, Text]:
        assert all(ref() is None for ref in alive), "the model before this one is still held"
        asked.append(wish.quantize)
        engine, text = build(replace(wish, quantize=None))
        alive.append(weakref.ref(engine.model))
        knot: list[Any] = [engine]
        knot.append(knot)
        return engine, text

    monkeypatch.setattr(module, "build", watched)
    gc.disable()  # only what the code itself frees counts
    try:
        found = perplexity(options(target, quantize="int8"), texts, 2)
    finally:
        gc.enable()
    assert asked == ["int8", "none"] and list(found.values) == ["int8", "float32"] and found.ratio == 1


def test_summary() -> None:
    pair = Perplexity(60, 9412, 0, 511, {"int8": 18.917, "bfloat16": 18.906})
    said = "Perplexity over 60 texts, 9,412 tokens: int8 18.917, bfloat16 18.906 (+0.06 %)."
    assert pair.summary() == said
    one = Perplexity(1, 1, 1, 511, {"float32": 2.0})
    assert one.summary() == "Perplexity over 1 text, 1 token: float32 2.000. Cut to 511 tokens: 1 text."


def test_answers_of_the_lines(texts: Path, tmp_path: Path) -> None:
    answers = [line.get("answer") or line.get("canonical_solution") for line in LINES]
    assert [item.answer for item in read_items(texts, 9)] == answers
    path = tmp_path / "odd.jsonl"
    path.write_text('\n{"prompt": "a", "answer": null}\n\n{"question": "b", "answer": 4}', encoding="utf-8")
    assert read_items(path, 1) == [ScoredText("a", None)]
    with pytest.raises(InputError, match="line 4 has an answer that is not a text"):
        read_items(path, 2)
    with pytest.raises(InputError, match="num_prompts is -1"):
        read_items(path, -1)


# -- the command -----------------------------------------------------------------------------------------------------


def run(target: Path, *args: str) -> Result:
    return CliRunner().invoke(
        app, ["bench", "--model", str(target), "--blocks", "600", "--threads", "1", "--perplexity", *args]
    )


@native
def test_int8_and_bfloat16_are_printed_and_written(target: Path, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = run(target, "--quantize", "int8", "--prompts", str(texts), "--num-prompts", "3", "--json", str(out))
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert {"machine", "versions", "args"} <= written.keys() and written["args"]["quantize"] == "int8"
    figures = written["perplexity"]
    int8, half = figures["values"]["int8"], figures["values"]["bfloat16"]
    assert result.stdout == (
        f"Perplexity over 3 texts, {figures['tokens']} tokens: int8 {int8:.3f}, bfloat16 {half:.3f} "
        f"({(int8 / half - 1) * 100:+.2f} %).\n"
    )
    expected, tokens = oracle(target, by_hand(target)[:3])
    assert half == pytest.approx(expected, rel=0.02) and int8 == pytest.approx(expected, rel=0.1)
    assert int8 != half and figures["ratio"] == int8 / half and figures["tokens"] == tokens


def test_one_number_without_quantize(target: Path, texts: Path) -> None:
    result = run(target, "--dtype", "float32", "--prompts", str(texts))
    expected, tokens = oracle(target, by_hand(target))
    assert result.stdout == f"Perplexity over 4 texts, {tokens} tokens: float32 {expected:.3f}.\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "give --prompts FILE.jsonl"),
        (["--prompts", "TEXTS", "--peers", "x"], "leave out --peers"),
        (["--prompts", "TEXTS", "--profile"], "leave out --profile"),
        (["--prompts", "TEXTS", "--plot", "p.svg"], "leave out --plot"),
        (["--prompts", "TEXTS", "--methods", "all"], "leave out --methods"),
        (["--prompts", "TEXTS", "--max-tokens", "128"], "leave out --max-tokens"),
        (["--prompts", "TEXTS", "--draft", "x"], "leave out --draft"),
        (["--prompts", "TEXTS", "--num-prompts", "0"], "num_prompts is 0"),
        (["--prompts", "TEXTS", "--dtype", "float32", "--quantize", "int8"], "dtype bfloat16, not float32"),
    ],
)
def test_refusals(target: Path, texts: Path, args: list[str], says: str) -> None:
    result = run(target, *(str(texts) if word == "TEXTS" else word for word in args))
    assert result.exit_code == 2 and says in result.stderr and result.stdout == ""


def test_quantisation_that_cannot_run_is_refused(target: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.model.linear.library", lambda: None)
    with pytest.raises(RefusalError, match="AVX2"):
        perplexity(options(target, dtype="bfloat16", quantize="int8"), texts, 1)
