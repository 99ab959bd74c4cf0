"""Heads: what a directory becomes, what the networks are, and that an engine computes what training does."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from paceline import LLM, CheckpointError, RefusalError, SamplingParams
from paceline.cli import app
from paceline.core.errors import CapacityError
from paceline.draft.clover import Clover, CloverConfig, Mix
from paceline.draft.grow import HeadDrafter, RankChances, best
from paceline.draft.head import HEADS, Head, facts_of, method_of
from paceline.draft.hydra import Hydra, HydraConfig
from paceline.draft.int8 import shrink
from paceline.draft.layers import DenseTexts, whole
from paceline.draft.medusa import Medusa, MedusaConfig
from paceline.draft.sequoia import Shape
from paceline.draft.tree import Tree
from paceline.model.rotary import Rotary
from paceline.train.target import TrainingTarget
from tests.tiny import tiny_checkpoint

WIDTH, VOCAB = 32, 320
SIZES: dict[str, Any] = {
    "width": WIDTH,
    "vocab": VOCAB,
    "max_len": 512,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "ffn": 48,
}
KINDS: dict[str, Head] = {
    "medusa": Medusa(MedusaConfig(**SIZES, depth=3)),
    "medusa, own head": Medusa(MedusaConfig(**SIZES, depth=2, own_head=True, layers=2)),
    "hydra": Hydra(HydraConfig(**SIZES, depth=3)),
    "hydra, 40 words": Hydra(HydraConfig(**SIZES, depth=3, draft_vocab=40)),
    "hydra++": Hydra(HydraConfig(**SIZES, depth=3, layers=3, prefix=True)),
    "clover": Clover(CloverConfig(**SIZES, depth=4)),
    "clover 1": Clover(CloverConfig(**SIZES, depth=2, version=1, layers=1)),
}  # fmt: skip
KINDS["hydra, 40 words"].d2t.copy_(torch.arange(40) * 7)  # type: ignore[operator]  # every eighth token
PROMPTS = ["one two three one two three one", "the cat sat on the mat and the cat sat", "to be or not to be, to"]


@torch.no_grad()
def shaken(head: Head) -> Head:
    """With random weights on top of the first ones, which leave most of a network idle."""
    stream = torch.Generator().manual_seed(5)
    for _, weight in sorted(head.named_parameters()):
        weight.add_(torch.randn(weight.shape, generator=stream) * (0.3 * weight.shape[-1] ** -0.5))
    return head


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("heads") / "target", seed=1)


@pytest.fixture(scope="module", params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("head") / "head"
    shaken(KINDS[request.param]).save(path)
    return path


def greedy(tokens: int = 24, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, **more)


def texts(llm: LLM, params: SamplingParams, prompts: Any = PROMPTS) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(prompts, params, progress=False)]


def test_an_engine_computes_what_training_does(saved: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits at every place of every tree, in batches whose K/V of the head is paged and made bit by bit, are those
    of the head over the whole text at once."""
    seen: list[tuple[list[int], Tensor, int]] = []
    level = HeadDrafter._level

    def watched(self: Any, places: list[tuple[Tree, int]], logits: Tensor, tables: list[Tensor]) -> None:
        for row, (tree, place) in zip(logits, places):
            path = tree.path(place)
            seen.append(([*tree.ask.request.tokens, *path], row.clone(), len(path)))
        level(self, places, logits, tables)

    monkeypatch.setattr(HeadDrafter, "_level", watched)
    name = facts_of(saved).method
    with LLM(target, saved, dtype="float32", memory="100M", block_size=4, check=True, nodes=7) as llm:
        plain = texts(llm, greedy(drafter="none"))
        assert texts(llm, greedy(drafter=name)) == plain and llm.engine.drafters.errors == []
    head = HEADS.get(name).restored(_files(saved))  # type: ignore[attr-defined]
    whole = TrainingTarget(target, "float32")
    assert len(seen) > 50 and {depth for *_, depth in seen} >= {0, 1}
    for tokens, row, depth in seen[:: max(1, len(seen) // 40)]:
        want = by_definition(head, whole, tokens, depth)
        assert torch.allclose(row, want, atol=2e-3, rtol=1e-3), (name, depth, (row - want).abs().max())


def _files(path: Path) -> Any:
    from paceline.draft.head import HeadFiles

    return HeadFiles(path)


@torch.no_grad()
def by_definition(head: Head, target: TrainingTarget, tokens: list[int], depth: int) -> Tensor:
    """Logits at the end of `tokens`, of which the last `depth` are drafted."""
    from paceline.train.data import Sample
    from paceline.train.features import FeatureSource

    known = len(tokens) - depth
    text = tuple(tokens[:known])
    source = FeatureSource(target, [Sample(text, 1)], head.taps)
    hidden = source.batch([0]).hidden[head.taps[0]][0, : known - 1]
    embedded = target.embed(torch.tensor(tokens))
    context = hidden
    if head.kv_layers:
        from paceline.draft.layers import DraftLayer

        c = head.config
        attend = DenseTexts(
            1, known - 1, Rotary(DraftLayer.rope(c.head_dim, c.theta), torch.device("cpu"), torch.float32, 512)
        )
        context = head.enrich(hidden, embedded[1:known], attend)
    state = head.begin(context[-1:], embedded[known - 1 : known])
    for above in range(depth):
        state = head.extend(state, embedded[known + above : known + above + 1], above)
    return whole(head.logits(head.draft(state, depth), depth, target.head), head.words, VOCAB)[0]


@pytest.mark.parametrize("name", ["hydra++", "clover"])
def test_pressure_and_shared_prefixes_change_nothing(name: str, target: Path, tmp_path: Path) -> None:
    """Blocks for less than all, so that requests are pre-empted, and the same prompt again."""
    shaken(KINDS[name]).save(tmp_path / "head")
    with LLM(target, tmp_path / "head", dtype="float32", blocks=24, block_size=4, check=True, nodes=6) as llm:
        params = [greedy(40, drafter=d, seed=1) for d in ("none", name.strip("+ 0123456789"))]
        plain, drafted = (texts(llm, p, PROMPTS * 2) for p in params)
        assert plain == drafted and llm.engine.drafters.errors == []


@pytest.mark.parametrize("name", ["hydra, 40 words", "clover"])
def test_int8_on_disk_is_what_was_rounded(name: str, target: Path, tmp_path: Path) -> None:
    """A quarter of the bytes, each weight within half a step of its row, and served with the target's text."""
    head = shaken(KINDS[name])
    head.save(tmp_path)
    before = (tmp_path / "model.safetensors").stat().st_size
    assert shrink(tmp_path) < 0.4 * before
    again = type(head).restored(_files(tmp_path)).state_dict()
    for part, weight in head.state_dict().items():
        step = weight.abs().amax(-1, keepdim=True) / 127 if weight.dim() == 2 else torch.zeros(1)
        assert ((again[part] - weight).abs() <= 0.5 * step + 1e-7).all(), part
    assert any(not torch.equal(again[part], weight) for part, weight in head.state_dict().items())
    with LLM(target, tmp_path, dtype="float32", memory="100M", nodes=5) as llm:
        assert texts(llm, greedy(drafter=head.method)) == texts(llm, greedy(drafter="none"))
        assert llm.engine.drafters.errors == []


# -- the networks ------------------------------------------------------------------------------------------------------


def at_depth(head: Head, token: int, depth: int = 1) -> Tensor:
    stream = torch.Generator().manual_seed(0)
    context, table = torch.randn(1, WIDTH, generator=stream), torch.randn(VOCAB, WIDTH, generator=stream)
    state = head.begin(context, table[:1])
    for above in range(depth):
        state = head.extend(state, table[token : token + 1], above)
    return head.logits(head.draft(state, depth), depth, lambda out: out @ table.T)[0]


@pytest.mark.parametrize("name", KINDS)
def test_what_was_drafted_above_matters_to_all_but_medusa(name: str) -> None:
    head = shaken(KINDS[name])
    changed = not torch.equal(at_depth(head, 3), at_depth(head, 4))
    assert changed == (not name.startswith("medusa"))


def test_ungrounded_hydra_and_frozen_clover_are_blind() -> None:
    blind = shaken(Hydra(HydraConfig(**SIZES, grounded=False)))
    assert torch.equal(at_depth(blind, 3), at_depth(blind, 4))
    frozen = shaken(Clover(CloverConfig(**SIZES, recurrent=False)))
    stream = torch.randn(2, 1, 2 * WIDTH)
    assert torch.equal(
        frozen.extend(stream[0], stream[1][:, :WIDTH], 0)[:, :WIDTH], stream[0][:, :WIDTH]
    )  # fmt: skip


def test_untrained_heads_say_what_the_target_says() -> None:
    """Hydra's and Medusa's first weights leave the target's state as it is."""
    stream = torch.Generator().manual_seed(0)
    state, root = torch.randn(3, WIDTH, generator=stream), torch.randn(3, WIDTH, generator=stream)
    for head in (Medusa(MedusaConfig(**SIZES)), Hydra(HydraConfig(**SIZES, layers=3))):
        assert torch.allclose(head.draft(head.begin(state, root), 0), state, atol=1e-6)


def test_clovers_gates() -> None:
    mix = shaken_mix()
    h, e = torch.randn(5, WIDTH), torch.randn(5, WIDTH)
    assert mix.gate(h, e).shape == (5, 4) and mix.gate(h, e).abs().max() <= 1 + 1e-6
    torch.nn.init.zeros_(mix.v.weight)
    torch.nn.init.zeros_(mix.v.bias)
    assert torch.equal(mix(h, e), h)


@torch.no_grad()
def shaken_mix() -> Mix:
    mix = Mix(CloverConfig(**SIZES))
    for weight in mix.parameters():
        weight.add_(torch.randn(weight.shape))
    return mix


def test_clover_drafts_deeper_than_it_was_trained() -> None:
    head = shaken(KINDS["clover"])
    assert at_depth(head, 3, 7).isfinite().all()


def test_siblings_do_not_see_one_another() -> None:
    for head in map(shaken, KINDS.values()):
        stream = torch.Generator().manual_seed(0)
        state = head.begin(torch.randn(1, WIDTH, generator=stream), torch.randn(1, WIDTH, generator=stream))
        tokens = torch.randn(6, WIDTH, generator=stream)
        several = head.extend(state.expand(6, -1), tokens, 0)
        alone = torch.cat([head.extend(state, token[None], 0) for token in tokens])
        assert torch.allclose(several, alone, atol=1e-5)


# -- the shape of a tree -----------------------------------------------------------------------------------------------


def paths(shape: Shape, above: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    return [p for rank, below in enumerate(shape) for p in ((*above, rank), *paths(below, (*above, rank)))]


@pytest.mark.parametrize("nodes", [1, 2, 5, 9, 24])
def test_the_best_tree_has_the_likeliest_paths(nodes: int) -> None:
    chances = ((0.6, 0.2, 0.1), (0.5, 0.25, 0.05), (0.4, 0.1, 0.1))
    found = paths(best(nodes, chances))

    def worth(path: tuple[int, ...]) -> float:
        product = 1.0
        for depth, rank in enumerate(path):
            product *= chances[depth][rank]
        return product

    every = [(a,) for a in range(3)] + [(a, b) for a in range(3) for b in range(3)]
    every += [(a, b, c) for a in range(3) for b in range(3) for c in range(3)]
    assert len(found) == len(set(found)) == nodes
    assert sum(map(worth, found)) == pytest.approx(sum(sorted(map(worth, every), reverse=True)[:nodes]))


def test_chances_follow_what_was_accepted() -> None:
    chances = RankChances((), 2)
    for _ in range(300):
        chances.observe(0, 0, False)
        chances.observe(0, 1, True)
        chances.observe(1, 0, True)
        chances.review()
    assert chances.rates[1][0] > 0.9 and chances.rates[0][0] < 0.1
    assert all(a >= b for row in chances.rates for a, b in pairwise(row)), "ranks are filled in order"


# -- directories -------------------------------------------------------------------------------------------------------


def test_what_a_directory_is(saved: Path, target: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    assert method_of(saved) == config["speculators_model_type"] and config["hidden_size"] == WIDTH
    assert method_of(target) is None and method_of(saved / "nothing") is None


def test_a_head_is_seen_by_info(saved: Path, target: Path, tmp_path: Path) -> None:
    asked = ["info", "--model", str(target), "--dtype", "float32", "--draft"]
    told = CliRunner().invoke(app, [*asked, str(saved), "--json"])
    entry, facts = json.loads(told.output), facts_of(saved)
    assert entry["head"]["method"] == facts.method and entry["draft_refused"] is None
    assert entry["head"]["width"] == WIDTH
    able = {it["drafter"]: it["exact"] for it in entry["drafters"]}
    assert able[facts.method] is None and "draft model" in able["model"]
    Medusa(MedusaConfig(**{**SIZES, "width": 16})).save(tmp_path)
    told = CliRunner().invoke(app, [*asked, str(tmp_path)])
    assert told.exit_code == 2 and "the model has 32" in told.output + told.stderr


def test_auto_chooses_among_them(saved: Path, target: Path) -> None:
    with LLM(target, saved, dtype="float32", memory="100M") as llm:
        assert facts_of(saved).method in llm.engine.drafters.arms("auto", "exact")
        with pytest.raises(RefusalError, match="a draft model"):
            llm.generate("a", greedy(drafter="model"), progress=False)


@pytest.mark.parametrize(("change", "message"), [
    ({"hidden_size": 16}, "hidden states of 16 numbers, but the model has 32; train one for this model"),
    ({"vocab_size": 99}, "a vocabulary of 99 entries, but the model has 320"),
    ({"speculators_model_type": "crystal ball"}, "'crystal ball', which is not known; known are"),
    ({"depth": "four"}, "depth = 'four', but a int is expected"),
    ({"depth": 3}, "config and weights are of different heads"),
])  # fmt: skip
def test_a_head_that_does_not_fit_is_refused(
    change: dict[str, Any], message: str, target: Path, tmp_path: Path
) -> None:
    Medusa(MedusaConfig(**SIZES, depth=2)).save(tmp_path, **change)
    with pytest.raises(CheckpointError, match=message):
        LLM(target, tmp_path, dtype="float32", memory="100M")


def test_damaged_weights_are_refused(target: Path, tmp_path: Path) -> None:
    Medusa(MedusaConfig(**SIZES)).save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="cannot be read"):
        LLM(target, tmp_path, dtype="float32")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        LLM(target, tmp_path, dtype="float32")


def test_the_memory_budget_counts_it(target: Path, tmp_path: Path) -> None:
    needs = []
    for layers in (1, 40):
        path = tmp_path / str(layers)
        Hydra(HydraConfig(**SIZES, layers=layers, prefix=True)).save(path)
        with pytest.raises(CapacityError) as error:
            LLM(target, path, "hydra", dtype="float32", memory=1)
        needs.append(int(str(error.value).split("at least ")[1].split(" bytes")[0].replace(",", "")))
    assert needs[1] - needs[0] > 39 * 4 * WIDTH * WIDTH * 4


# -- the authors' layouts ----------------------------------------------------------------------------------------------


def as_medusa(head: Head) -> tuple[dict[str, Any], dict[str, Tensor]]:
    weights = {}
    for name, part in head.state_dict().items():
        kind, depth, *rest = name.split(".")
        if kind == "blocks":
            weights[".".join([depth, "0", *rest])] = part
        elif rest == ["weight"]:
            weights[f"{depth}.1.weight"] = part
    return {"medusa_num_heads": head.config.depth, "medusa_num_layers": 1, "base_model_name_or_path": "m"}, weights


def as_hydra(head: Hydra) -> tuple[dict[str, Any], dict[str, Tensor]]:
    weights = {"prefix_embeding_layer.embed_tokens.weight": torch.zeros(3, 3)}
    parts = {"straight": "1.res_connection", "bent": "1.linear"}
    for name, part in head.state_dict().items():
        kind, first, *rest = name.split(".")
        if kind == "depths" and rest[0] in parts:
            weights[f"hydra_mlp.{first}.{parts[rest[0]]}.{rest[1]}"] = part
        elif kind == "depths":
            weights[f"hydra_mlp.{first}.{2 * int(rest[1]) + 3}.linear.{rest[3]}"] = part
        elif kind == "output":
            weights[f"hydra_lm_head.{first}.1.{rest[0]}"] = part
        elif kind == "prefix":
            inner = {"q": "self_attn.", "k": "self_attn.", "v": "self_attn.", "o": "self_attn."}.get(first[0], "")
            inner = "" if "norm" in first else inner or "mlp."
            weights[f"prefix_embeding_layer.layers.0.{inner}{first}.{rest[0]}"] = part
        else:
            weights[f"prefix_embeding_layer.{name}"] = part
    config = {"hydra_num_heads": head.config.depth, "hydra_num_layers": head.config.layers, "head_dim": 8}
    return config, weights


@pytest.mark.parametrize("method", ["medusa", "hydra"])
def test_released_heads_are_read(method: str, target: Path, tmp_path: Path) -> None:
    more = {"depth": 2, "own_head": True}
    head: Any = Medusa(MedusaConfig(**SIZES, **more))
    if method == "hydra":
        head = Hydra(HydraConfig(**SIZES, **more, layers=3, prefix=True))
    shaken(head)
    config, weights = as_medusa(head) if method == "medusa" else as_hydra(head)
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save(weights, tmp_path / f"{method}_lm_head.pt")
    assert method_of(tmp_path) == method and facts_of(tmp_path).vocab == VOCAB
    found = type(head).restored(_files(tmp_path)).state_dict()
    for name, part in head.state_dict().items():
        if not (method == "medusa" and name.endswith("bias") and name.startswith("output")):
            assert torch.equal(found[name], part), name
    with LLM(target, tmp_path, dtype="float32", memory="100M", nodes=5) as llm:
        assert texts(llm, greedy(drafter=method)) == texts(llm, greedy(drafter="none"))
        used: Any = llm.engine.components[method]
        assert {file.suffix for file in used.weight_files} == {".json", ".pt"}, "the identity is that of the weights"
    (tmp_path / f"{method}_lm_head.pt").unlink()
    with pytest.raises(CheckpointError, match="restore it from its source"):
        method_of(tmp_path)
