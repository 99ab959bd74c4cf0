"""Parts of the heads with attention of their own: layouts, the pool of features, sparse trees, merged attention."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from paceline.core.errors import CheckpointError, InputError
from paceline.core.forest import PROBE, ROOT, Forest, Law
from paceline.core.rows import RowsBuilder
from paceline.draft import eagle3, ppd
from paceline.draft.eagle3 import Eagle
from paceline.draft.eagle_shape import EagleShape, random_weights
from paceline.draft.head import HeadFiles, method_of
from paceline.draft.layers import ABSENT_LOGIT
from paceline.draft.longspec import merge, part
from paceline.engine.loop import Engine
from paceline.model.linear import plain
from tests.draft.attention import WithHead
from tests.lossless.cases import Wish
from tests.toy import Toy

FLOAT = plain(torch.float32, torch.device("cpu"))
SHAPE = EagleShape(8, 2, 1, 4, 16, 40, 20, 64, ("input:2", "input:3", "input:5"))


def said(head: Eagle) -> torch.Tensor:
    """What it says of a short text, with made-up features."""

    class Shared:
        def embed(self, token: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(token % 8, 8).float()

        def head(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden

    head.target = Shared()
    head.allocate(2, 4)
    builder = RowsBuilder()
    builder.add([3, 1, 4, 1, 5], [*range(5)], [0, 1], 0, want=[1, 2, 3, 4])
    rows = builder.build()
    rows.hidden = torch.randn(5, 8, generator=torch.Generator().manual_seed(2))
    return head.forward(rows).logits


def test_eagle3_directories_of_others_are_read(tmp_path: Path) -> None:
    """The layout of `speculators`, and that of released heads, with the weights that come along."""
    weights = random_weights(SHAPE, 4)
    d2t = torch.arange(20)
    more = {"d2t": d2t, "t2d": torch.arange(40) % 2 == 0, "embed_tokens.weight": torch.zeros(40, 8)}
    ours, released = tmp_path / "speculators", tmp_path / "released"
    for path in (ours, released):
        path.mkdir()
    save_file({**weights, **more}, ours / "model.safetensors")
    (ours / "config.json").write_text(json.dumps(SHAPE.written()))
    renamed = {name.replace("layers.0.", "midlayer."): it.contiguous() for name, it in weights.items()}
    save_file({**renamed, **more}, released / "model.safetensors")
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 20, "hidden_size": 8, "vocab_size": 40,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 16,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "num_hidden_layers": 1,
    }  # fmt: skip
    (released / "config.json").write_text(json.dumps(config))
    assert method_of(ours) == method_of(released) == "eagle3"
    assert Eagle.load(HeadFiles(released, 8), FLOAT).taps == ("input:2", "input:4", "input:5")
    (released / "config.json").write_text(json.dumps({**config, eagle3.TAP_LAYERS_KEY: [2, 3, 5]}))
    one, other = (Eagle.load(HeadFiles(path), FLOAT) for path in (ours, released))
    assert one.taps == other.taps == ("input:2", "input:3", "input:5") and EagleShape.read(SHAPE.written()) == SHAPE
    logits = said(one)
    assert torch.equal(logits, said(other)) and logits.isfinite().all()
    known = torch.arange(20) + d2t
    assert (logits[:, known] > ABSENT_LOGIT).all() and (logits > ABSENT_LOGIT).sum() == logits.shape[0] * 20
    del weights["norm.weight"]
    save_file(weights, ours / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"norm.weight of the EAGLE head is missing"):
        Eagle.load(HeadFiles(ours), FLOAT)


@pytest.mark.parametrize("head", ["eagle3", "falcon"])
def test_the_pool_holds_the_features_of_the_text(head: str) -> None:
    """Also of rows that others drafted, that moved, and that were found in the prefix cache."""
    engine: Engine = WithHead(head=head, nodes={head: 3, "ngram": 4}, block_size=2, max_requests=3).engine()
    pool: Any = engine.components[head]

    def wish(prompt: list[int], **changes: Any) -> Any:
        from paceline.core.params import SamplingParams

        params = {"temperature": 0.0, "seed": 1, "max_tokens": 24, "ignore_eos": True, "drafter": head, **changes}
        return Wish(prompt, SamplingParams(**params).resolve({}))

    requests = [engine.submit(w.prompt, w.params)[0] for w in (wish([1, 2, 3, 4, 5, 6]), wish([1, 2, 3, 4, 0]))]
    checked = 0
    for again in range(2):
        while engine.busy:
            engine.step()
            for request in requests:
                lease: Any = request.lease
                if lease is None:
                    continue
                count = lease.frontier[head]
                states = [Toy.state(lease.tokens[: i + 1]) for i in range(count)]
                want = pool.fuse([torch.tensor(states, dtype=torch.float32)]) if count else torch.empty(0, 2)
                torch.testing.assert_close(pool.features[lease.slots(0, count)], want)
                checked += count
        if not again:
            requests = engine.submit([1, 2, 3, 4, 5, 6], wish([0]).params)
    assert checked > 100 and requests[0].stats.cached == 4 and not engine.drafters.errors


def test_sparse_trees_keep_their_budget() -> None:
    chances = ((0.6, 0.2, 0.1), (0.5, 0.15, 0.05), (0.4, 0.1, 0.05))
    before = -1.0
    for rows in (3, 5, 8, 12, 20, 32, 48):
        gained, trees = ppd.plan(chances, rows)
        assert gained >= before - 1e-6 and len(trees) == 3
        before = gained
        for state, tree in enumerate(trees, start=1):
            chains = dict(tree)
            assert len(tree) - 1 + sum(chains.values()) <= rows and chains[()] == 3 and min(chains.values()) >= 1
            assert all(len(path) <= state and (not path or path[:-1] in chains) for path in chains)
    assert ppd.size(chances, 48, 1.0) == 3 and ppd.size(chances, 48, 0.0) == 48
    assert 3 < ppd.size(chances, 48, 0.02) < 48


def test_ids_that_were_lent_are_for_probes_alone() -> None:
    forest = Forest()
    forest.add(0, 9, ROOT, law=Law.POINT, role=PROBE)
    forest.check({0}, 7, lent=3)
    with pytest.raises(InputError, match=r"token in \[0, 9\)"):
        forest.check({0}, 7, lent=2)
    forest = Forest()
    forest.add(0, 9, ROOT, law=Law.POINT)
    with pytest.raises(InputError, match=r"token in \[0, 7\)"):
        forest.check({0}, 7, lent=3)


def test_merged_spans_are_dense_attention() -> None:
    stream = torch.Generator().manual_seed(0)
    q, keys, values = (torch.randn(n, h, 8, generator=stream) for n, h in ((5, 4), (23, 2), (23, 2)))
    whole = part(q, keys, values, 0.3)
    spans = [part(q, keys[i : i + 9], values[i : i + 9], 0.3) for i in (0, 9, 18)]
    torch.testing.assert_close(merge(merge(spans[0], spans[1]), spans[2]), whole, rtol=1e-5, atol=1e-5)


def test_longspec_keeps_no_more_of_a_longer_text() -> None:
    kept = []
    for length in (6, 40):
        engine = WithHead(head="longspec", max_requests=1, row_budget=8).engine()
        [request] = engine.submit([1, 2, 3] * (length // 3), Wish([], _params()).params)
        most = 0
        while engine.busy:
            engine.step()
            slots = engine.drafters.slots.get("longspec", {})
            most = max([most, *(it.kv.numel() for it in slots.values())])
        assert request.output and not engine.drafters.errors
        kept.append(most)
    assert kept[0] == kept[1] == 5 * 2 * 1 * 2


def _params() -> Any:
    from paceline.core.params import SamplingParams

    return SamplingParams(temperature=0.0, seed=1, max_tokens=6, ignore_eos=True, drafter="longspec").resolve({})
