"""Fine-tunes in one engine: each text is that of its own model, bit for bit, whatever stands beside it in the batch."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.core.errors import InputError, PacelineError, RefusalError
from paceline.core.operations import Park, Resume
from paceline.model.load import load_model
from paceline.model.native import NativeDecoder
from paceline.native.build import library
from tests.lora import make_adapter
from tests.zoo import LAYERS, family_of_tunes, tuned

SMALL: dict[str, Any] = {"blocks": 96, "max_requests": 16, "weights_cache": False, "check": True}
PROMPTS = [[5, 9, 200, 17, 33, 8, 9, 200, 17, 60, 61, 62, 63, 64, 65, 66, 67, 68, 5, 9, 200], [5, 9, 200, 17, 9]]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, seed=7, max_tokens=12, ignore_eos=True)
NAMES = ("base", "a", "b", "c")
Texts = list[list[int]]


@pytest.fixture(scope="module")
def tunes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    made: dict[str, dict[str, Path]] = {}

    def of(family: str) -> dict[str, Path]:
        if family not in made:
            made[family] = family_of_tunes(tmp_path_factory.mktemp(family), family)
        return made[family]

    return of


def engine(paths: dict[str, Path], **options: Any) -> LLM:
    zoo = {name: path for name, path in paths.items() if name != "base"}
    return LLM(paths["base"], zoo=zoo, **{"dtype": "float32", "drafter": "none", **SMALL, **options})


def texts(llm: LLM, wishes: list[SamplingParams], prompts: Texts = PROMPTS) -> list[Texts]:
    """Of each wish the texts of all prompts, all in one batch."""
    outs = llm.generate([p for _ in wishes for p in prompts], [w for w in wishes for _ in prompts], progress=False)
    ids = [list(out.token_ids) for out in outs]
    return [ids[i : i + len(prompts)] for i in range(0, len(ids), len(prompts))]


def named(wish: SamplingParams, *names: str) -> list[SamplingParams]:
    return [replace(wish, adapter="" if name == "base" else name) for name in names]


def alone(path: Path, wish: SamplingParams, **options: Any) -> Texts:
    """Texts of one model by itself."""
    with LLM(path, **{"dtype": "float32", "drafter": "none", **SMALL, **options}) as llm:
        return texts(llm, [wish])[0]


@pytest.mark.parametrize(
    ("family", "dtype", "drafter"),
    [
        ("llama", "float32", "none"), ("llama", "bfloat16", "none"), ("llama", "bfloat16", "ngram"),
        ("llama", "float32", "early_exit"), ("gemma2", "bfloat16", "none"), ("mixtral", "float32", "ngram"),
        pytest.param("phi3", "bfloat16", "ngram", marks=pytest.mark.full),
        pytest.param("qwen2", "bfloat16", "swift", marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_each_text_is_that_of_its_own_model(
    tunes: Callable[[str], dict[str, Path]], family: str, dtype: str, drafter: str
) -> None:
    """All four in one batch, greedy and drawn, with drafts and without; and chains that are put together of them."""
    paths = tunes(family)
    with engine(paths, dtype=dtype, drafter=drafter, nodes=None if drafter == "none" else 3) as llm:
        for wish in (GREEDY, DRAWN):
            got = texts(llm, named(wish, *NAMES))
            want = [alone(paths[name], wish, dtype=dtype) for name in NAMES]
            assert got == want and len({str(it) for it in got}) > len(NAMES) - 2
        table = llm.engine.model.chains  # type: ignore[attr-defined]
        assert table.parted and table.passes > table.parted / 2
        half = LAYERS // 2
        chains = [f"base[0:{half}]+a[{half}:{LAYERS}]", f"a[0:{half}]+base[{half}:{LAYERS}]", f"c[0:1] + b[1:{LAYERS}]"]
        same, turned, mixed = texts(llm, named(GREEDY, *chains))
        assert same == alone(paths["a"], GREEDY, dtype=dtype) and turned == alone(paths["base"], GREEDY, dtype=dtype)
        assert mixed not in (same, turned)


@pytest.mark.skipif(library() is None, reason="this machine has no native decoder")
@pytest.mark.parametrize("drafter", ["none", "ngram", "auto"])
def test_texts_of_one_chain_are_drawn_several_tokens_a_call(
    drafter: str, tunes: Callable[[str], dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy and drawn, by it alone and by the base; one token a call where both are there."""
    paths, whose = tunes("llama"), list[tuple[NativeDecoder, int]]()
    plain = NativeDecoder.run

    def counted(self: NativeDecoder, rows: Any, passes: int, *args: Any) -> Any:
        if self.chains is None:
            whose.append((self, passes))
        return plain(self, rows, passes, *args)

    monkeypatch.setattr(NativeDecoder, "run", counted)
    chain = f"a[0:3]+b[3:{LAYERS}]"
    with engine(paths, dtype="bfloat16", drafter=drafter) as llm:
        for wish in (GREEDY, DRAWN):
            mixed = texts(llm, named(wish, "a", "base", chain))
            assert not whose
            for name, want in zip(("a", chain), (mixed[0], mixed[2])):
                assert texts(llm, named(wish, name)) == [want]
                assert max((passes for _, passes in whose), default=0) > 1, name
                whose.clear()
            assert texts(llm, named(wish, "base")) == [mixed[1]] and not whose


@pytest.mark.skipif(library() is None, reason="this machine has no native decoder")
def test_fine_tunes_in_int8(tunes: Callable[[str], dict[str, Path]]) -> None:
    paths = tunes("llama")
    with engine(paths, dtype="bfloat16", quantize="int8") as llm:
        got = texts(llm, named(DRAWN, *NAMES))
    assert got == [alone(paths[name], DRAWN, dtype="bfloat16", quantize="int8") for name in NAMES]


def test_a_mixed_chain_is_the_model_of_these_layers(tunes: Callable[[str], dict[str, Path]], tmp_path: Path) -> None:
    """Beside a checkpoint that was put together by hand."""
    from safetensors.torch import load_file, save_file

    paths = tunes("llama")
    whole = tuned(tmp_path / "hand", (), 0)
    parts = {name: load_file(paths[name] / "model.safetensors") for name in ("b", "c")}
    made = {
        key: parts["c" if any(f"layers.{i}." in key for i in (2, 3)) or key in ("model.norm.weight", "lm_head.weight")
                   else "b"][key]
        for key in parts["b"]
    }  # fmt: skip
    save_file(made, whole / "model.safetensors", {"format": "pt"})
    with engine(paths) as llm:
        [got] = texts(llm, named(GREEDY, "b[0:2]+c[2:4]"))
    assert got == alone(whole, GREEDY)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_is_a_block(tunes: Callable[[str], dict[str, Path]], tmp_path: Path, dtype: str) -> None:
    """Named for all layers it is the adapter; for some, it is neither adapter nor base, in a batch with the adapter."""
    paths = tunes("llama")
    lora = make_adapter(tmp_path / "lora", paths["base"], 3)
    with engine(paths, dtype=dtype, lora={"low": lora}) as llm:
        wishes = named(GREEDY, "low", f"low[0:{LAYERS}]", "low[0:2]+base[2:4]", "low[0:2]+a[2:4]", "base", "a")
        whole, chain, half, with_a, base, a = texts(llm, wishes)
        assert whole == chain and base == alone(paths["base"], GREEDY, dtype=dtype)
        assert len({str(it) for it in (whole, half, with_a, base, a)}) == 5
        for name, want in (("low[0:2]+a[2:4]", with_a), ("low[0:2]+base[2:4]", half)):
            assert texts(llm, named(GREEDY, name)) == [want]


def test_chains_have_their_own_keys_and_values(tunes: Callable[[str], dict[str, Path]]) -> None:
    """The same prompt by several models: none finds what another has left; the same chain by another name does."""
    paths = tunes("llama")
    with engine(paths) as llm:
        for name in (*NAMES, *NAMES):
            wish = named(GREEDY, name)
            assert texts(llm, wish)[0] == alone(paths[name], GREEDY), name
        cached = llm.engine.desk.totals.cached
        texts(llm, named(GREEDY, f"a[0:{LAYERS}]"), PROMPTS[:1])
        assert llm.engine.desk.totals.cached - cached == 16


def test_a_parked_request_goes_on_by_its_own_chain(tunes: Callable[[str], dict[str, Path]]) -> None:
    paths = tunes("llama")
    want = alone(paths["a"], DRAWN)[0]
    with engine(paths) as one, engine(paths) as other, engine({"base": paths["base"], "b": paths["b"]}) as without:
        [request] = one.engine.submit(PROMPTS[0], replace(DRAWN, adapter="a"))
        while len(request.output) < 5:
            one.engine.step()
        packed = one.engine.apply(Park(request.id))
        with pytest.raises(InputError, match="load it first"):
            without.engine.apply(Resume(packed))
        [moved] = other.engine.apply(Resume(packed))
        while moved.finish is None:
            other.engine.step()
        assert list(moved.output) == want


@pytest.mark.skipif(library() is None, reason="this machine has no native decoder")
def test_what_is_equal_is_in_memory_once(tunes: Callable[[str], dict[str, Path]]) -> None:
    """Of a native model, with its packed matrices: those of two decoders are the same objects where weights are, also
    when they were loaded one by one; and they leave memory with the last that has them."""
    paths = tunes("llama")
    base, a = (load_model(paths[name], cache=False) for name in ("base", "a"))
    assert isinstance(base, NativeDecoder) and isinstance(a, NativeDecoder)
    for layer, (mine, its) in enumerate(zip(base.matrices(), a.matrices(), strict=True)):
        same = [one is other for one, other in zip(mine, its, strict=True)]
        changed = LAYERS // 2 <= layer < LAYERS
        assert not any(same) if changed else all(same), layer
    assert base.weights.embedding is a.weights.embedding
    from paceline.model.parts import _shared

    kept = weakref.ref(base.matrices()[0][0])
    del base, mine, its
    gc.collect()
    assert kept() is not None
    before = len(_shared)
    del a
    gc.collect()
    assert kept() is None and len(_shared) < before


def test_chains_that_cannot_be_are_refused(tunes: Callable[[str], dict[str, Path]]) -> None:
    paths = tunes("llama")
    with engine(paths) as llm:
        for name, words in (
            ("a[0:2]", "ends at layer 2"), ("a[0:2]+b[3:4]", "layer 2 comes next"), ("a[1:4]", "layer 0 comes next"),
            ("a[0:9]", "ends at layer 9"), ("x[0:4]", "no model 'x'"), ("a[2:2]+a[0:4]", "layer 0 comes next"),
            ("a[0:0]+a[0:4]", "has no layer"), ("a[0:2]+", "no adapter"), ("+[0:4]", "no part of a chain"),
            ("a[-1:4]", "no part of a chain"), ("a[0:2]+" * 80 + "a[0:4]", "64 parts"), ("a" * 4000 + "[0:4]", "4,000"),
        ):  # fmt: skip
            with pytest.raises(PacelineError, match=words) as caught:
                llm.generate([[1, 2, 3]], replace(GREEDY, adapter=name), progress=False)
            assert "\n" not in str(caught.value)
        assert texts(llm, named(GREEDY, "a"))[0] == alone(paths["a"], GREEDY)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden": 96}, "another width"), ({"vocab": 400}, "another vocabulary"),
        ({"num_hidden_layers": 3}, "3 layers"),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "position scheme"),
        ({"rms_norm_eps": 1e-3}, "config"),
    ],
)  # fmt: skip
def test_models_that_are_no_fine_tunes_are_refused(
    tunes: Callable[[str], dict[str, Path]], tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    other = tuned(tmp_path / "other", (), 0, **config)
    with pytest.raises(RefusalError, match=words):
        engine({"base": tunes("llama")["base"], "other": other})


def test_a_fine_tune_that_ends_its_texts_in_another_way_is_refused(
    tunes: Callable[[str], dict[str, Path]], tmp_path: Path
) -> None:
    other = tuned(tmp_path / "other", (), 0)
    (other / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    with pytest.raises(RefusalError, match="ends its texts with"):
        engine({"base": tunes("llama")["base"], "other": other})


@pytest.mark.parametrize("name", ["a[0:1]", "x+y", " ", "base"])
def test_names_that_chains_could_not_tell_apart_are_refused(tunes: Callable[[str], dict[str, Path]], name: str) -> None:
    with pytest.raises(InputError, match="cannot be the name"):
        LLM(tunes("llama")["base"], zoo={name: tunes("llama")["a"]}, dtype="float32", **SMALL)


def test_many_chains_are_forgotten_one_by_one(
    tunes: Callable[[str], dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.engine import adapters

    monkeypatch.setattr(adapters, "MOST_CHAINS", 3)
    paths = tunes("llama")
    with engine(paths, max_loras=4) as llm:
        for first in range(1, LAYERS):
            for name in ("a", "b", "c"):
                texts(llm, named(GREEDY, f"{name}[0:{first}]+base[{first}:{LAYERS}]"), PROMPTS[1:])
        held = llm.engine.session.adapters.named
        assert sum("[" in it for it in held) == 3 and {"a", "b", "c"} <= {*held}
        assert texts(llm, named(GREEDY, *NAMES)) == [alone(paths[name], GREEDY) for name in NAMES]


def test_memory_counts_what_differs(tunes: Callable[[str], dict[str, Path]], monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.model import blockzoo
    from paceline.model.blockzoo import delta_bytes

    monkeypatch.setattr(blockzoo, "MIN_BLOB_BYTES", 1 << 10)
    paths = tunes("llama")
    assert delta_bytes(paths["base"], paths["base"], 4) == 0
    sizes = {name: delta_bytes(paths["base"], paths[name], 4) for name in ("a", "c")}
    assert 0 < sizes["a"] * 2 == sizes["c"]
