"""Real files: the text of transformers on the same numbers in float32, and the tokenizer of the original.

They lie in $PACELINE_REAL, as NAME.gguf with a directory NAME of the same model for transformers.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize

from paceline import LLM, SamplingParams
from paceline.engine.text import Text
from paceline.model.gguf.tensors import GgufTensors
from tests.model.gguf.files import interleave

REAL = Path(os.environ.get("PACELINE_REAL", "../real"))
LARGE = [pytest.param(name, marks=pytest.mark.full) for name in ("qwen05", "qwen15")]
QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Write an SQL query for the five most expensive products of each category.",
    "A train travels 180 km in two hours. How far does it travel in five hours?",
    "Explain in two sentences why the sky is blue.",
    "Give me a JSON object with the name, age and city of a fictional person.",
    "Translate to German: The weather is nice today.",
    "List three uses of a paper clip.",
    "Was ist 12 mal 12?",
    "Continue: Once upon a time there was a small dragon who",
)
LENGTH = 64


def real(name: str) -> tuple[Path, Path]:
    file, directory = REAL / f"{name}.gguf", REAL / name
    if not file.is_file() or not directory.is_dir():
        pytest.skip(f"{file} and {directory} are not both there (PACELINE_REAL)")
    return file, directory


@pytest.mark.parametrize("name", ["smollm2", *LARGE])
def test_tokenizer(name: str) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    file, directory = real(name)
    ours, theirs = Text(file), AutoTokenizer.from_pretrained(directory)
    if name == "smollm2":  # its own tokenizer.json cuts digits apart, which the directory's made from the file lacks
        cuts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    root = Path(__file__).parents[3]
    texts = [*(root / "docs" / "log.md").read_text(encoding="utf-8").split("\n\n")[:200], *QUESTIONS]
    texts += [
        "  a\n\n\tb\r\n ",
        "Größe, naïve, 東京, 🙂 e\u0301 ½ Ⅷ ² 12345 1,234.5",
        "I'M we'll don't",
        "",
        " ",
        "\u3000a\u00a0b",
    ]
    texts += ["<|im_start|>user\nhi<|im_end|>\n", "def f(x):\n    return x**2  # done\n\n\n"]
    for text in texts:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    assert ours.tokenizer.get_vocab() == theirs.get_vocab()
    assert ours.tokenizer.special_tokens_map == theirs.special_tokens_map
    messages = [{"role": "user", "content": "Hi"}]
    asked = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.chat(messages) == theirs.encode(asked)


def oracle(file: Path, directory: Path) -> Any:
    """Transformers' model in float32, of the numbers that the `gguf` package reads."""
    from transformers import AutoModelForCausalLM

    tensors, theirs = GgufTensors(file), {tensor.name: tensor for tensor in GGUFReader(file).tensors}
    untied = {"tie_word_embeddings": "output.weight" not in theirs}
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **untied).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            stem, _, end = name.rpartition(".")
            found = theirs[f"{tensors.names[stem]}.{end}"]
            wide = torch.from_numpy(dequantize(found.data, found.tensor_type).copy()).view(weight.shape)
            if tensors.interleaved and (part := stem.rpartition(".")[2]) in ("q_proj", "k_proj"):
                heads = model.config.num_attention_heads if part == "q_proj" else model.config.num_key_value_heads
                head_dim = len(wide) // heads
                order = interleave(torch.arange(head_dim), 1, head_dim).argsort()
                wide = wide.view(heads, head_dim, -1)[:, order].reshape(weight.shape)
            weight.copy_(wide)
    return model


def greedy(model: Any, ids: list[int], ends: frozenset[int]) -> list[int]:
    """Tokens up to LENGTH or an end."""
    with torch.no_grad():
        out = model.generate(
            torch.tensor([ids]), max_new_tokens=LENGTH, do_sample=False, eos_token_id=sorted(ends), pad_token_id=0
        )
    return list(out[0, len(ids) :].tolist())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) for name in ("smollm2", "qwen05", "qwen15")]
)
def test_greedy_text_is_that_of_transformers(name: str) -> None:
    file, directory = real(name)
    llm = LLM(file, drafter="ngram", dtype="float32", memory="10G", max_model_len=1024, weights_cache=False)
    prompts = [llm.text.chat([{"role": "user", "content": question}]) for question in QUESTIONS]
    outs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=LENGTH), progress=False)
    ends = llm.text.eos()
    ours = [list(out.token_ids) for out in outs]
    del llm
    model = oracle(file, directory)
    theirs = [greedy(model, ids, ends) for ids in prompts]
    alike = [mine == other for mine, other in zip(ours, theirs)]
    print(f"{name}: {sum(alike)} of {len(alike)} texts equal, {sum(map(len, ours))} tokens")
    assert all(alike)


@pytest.mark.full
@pytest.mark.timeout(0)
def test_file_and_directory_write_the_same_text() -> None:
    file, directory = real("smollm2")
    texts = []
    for model in file, directory:
        llm = LLM(model, drafter="ngram", memory="2G", weights_cache=False)
        prompts = [llm.text.chat([{"role": "user", "content": question}]) for question in QUESTIONS]
        texts.append([out.text for out in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=LENGTH))])
    assert texts[0] == texts[1]
