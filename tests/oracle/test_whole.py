"""Each family through the engine: 40 greedy tokens as transformers writes them, the same under seven drafters, and
every node of a tree of 64."""

from pathlib import Path
from random import Random

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.model.spec import Delta
from tests.oracle.cases import BLOCK, Case, Oracle, load, text
from tests.oracle.rows import Chunk, feed, lay_out
from tests.oracle.test_rule import options
from tests.tiny import FAMILIES, MORE, tiny_checkpoint

ANSWER, NODES = 40, 64
DRAFTERS = ("none", "ngram", "suffix", "lookahead", "model", "topk", "ngram+topk")
QUICK = ("gemma4_text", "glm4_moe_lite")
"""Families of a quick run."""
EVERY = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.full) for name in (*FAMILIES, *MORE)]


def made(path: Path, family: str) -> Path:
    return tiny_checkpoint(path, family, layers=3, **options(family))


@pytest.mark.parametrize("family", EVERY)
def test_greedy_answers(family: str, tmp_path: Path) -> None:
    path, prompt = made(tmp_path, family), text(3, 24)
    oracle = Oracle(path).model
    with torch.no_grad():
        expected = oracle.generate(
            torch.tensor([prompt]), max_new_tokens=ANSWER, do_sample=False, eos_token_id=None, pad_token_id=2
        )[0, len(prompt) :].tolist()
    llm = LLM(path, path, dtype="float32", block_size=8, blocks=120, prefix_cache=False)
    for drafter in DRAFTERS:
        params = SamplingParams(temperature=0.0, max_tokens=ANSWER, drafter=drafter, ignore_eos=True)
        [output] = llm.generate([prompt], params, progress=False)
        assert output.token_ids == expected, drafter
    assert not llm.engine.drafters.errors
    llm.close()


@pytest.mark.parametrize("family", EVERY)
def test_every_node_of_a_large_tree(family: str, tmp_path: Path) -> None:
    """A node's logits are those of the text that it ends."""
    path, stream = made(tmp_path, family), Random(len(family))
    decoder = load(path, Case(family))
    oracle, tokens = Oracle(path), text(4, 37)
    delta = any(isinstance(it, Delta) for it in decoder.spec.recurrences)
    near = 1e-3 if delta else 1e-4  # transformers solves the delta rule in chunks, in float32
    parents = [-1, *(stream.randrange(max(-1, node - 9), node) for node in range(1, NODES))]
    tree = [stream.randrange(96) for _ in range(NODES)]
    feed(decoder, tokens[:36], range(30), BLOCK, [])
    rows = lay_out([Chunk(range(30), 36, tokens[36:], tree, parents)], BLOCK)
    found = decoder.forward(rows).logits[1:]
    inner = {*parents}
    for leaf in (node for node in range(NODES) if node not in inner):
        way, node = list[int](), leaf
        while node >= 0:
            way, node = [node, *way], parents[node]
        expected = oracle.logits([*tokens, *(tree[it] for it in way)])[len(tokens) :]
        torch.testing.assert_close(found[way], expected, rtol=near, atol=near)
