"""Adapters: the text of merged weights under every drafter, each request by one version, bad files refused."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.bench.random_lora import random_lora
from paceline.core.errors import CapacityError, InputError, PacelineError
from paceline.core.operations import Park, Resume
from paceline.core.rows import RowsBuilder
from paceline.draft import DRAFTERS
from paceline.engine.adapters import Adapters
from paceline.model.checkpoint import read_config
from paceline.model.lora import LoraWeights, fused, interleaved, read_lora
from paceline.model.lora_places import lora_places
from tests.tiny import tiny_checkpoint

FAMILIES = ("llama", "phi3", "mixtral", "qwen2_moe", "lfm2")
SMALL: dict[str, Any] = {"blocks": 128, "max_requests": 8, "weights_cache": False, "check": True}
PROMPT = [5, 9, 200, 17, 33, 8, 9, 200, 17, 60, 61, 62, 63, 64, 65, 66, 67, 68, 5, 9, 200]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, seed=7, max_tokens=16, ignore_eos=True)


def make_adapter(path: Path, model: Path, seed: int = 0, rank: int = 4, **config: Any) -> Path:
    """A random adapter that changes what a tiny model says."""
    return random_lora(path, model, seed, rank, 0.2, **{"lora_alpha": 2 * rank, **config})


def merge(path: Path, model: Path, adapter: Path) -> Path:
    """The model with an adapter in its weights."""
    path.mkdir(parents=True)
    for file in model.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(model / "model.safetensors")
    for name, (down, up) in read_lora(adapter, read_config(model)).modules.items():
        tensors[f"{name}.weight"] = tensors[f"{name}.weight"] + up @ down
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    """{base, draft, a, b, merged} of a family."""
    made: dict[str, dict[str, Path]] = {}

    def of(family: str) -> dict[str, Path]:
        if family not in made:
            at = tmp_path_factory.mktemp(family)
            base = tiny_checkpoint(at / "base", family)
            a, b = (make_adapter(at / name, base, seed) for seed, name in enumerate("ab"))
            draft = tiny_checkpoint(at / "draft", "llama", seed=3)
            made[family] = {"base": base, "draft": draft, "a": a, "b": b, "merged": merge(at / "merged", base, a)}
        return made[family]

    return of


def texts(llm: LLM, *asked: SamplingParams, prompt: list[int] = PROMPT) -> list[list[int]]:
    return [out.token_ids for out in llm.generate([prompt] * len(asked), list(asked), progress=False)]


def under_all_drafters(llm: LLM, want: dict[str, list[list[int]]]) -> list[str]:
    """Drafters whose texts are not those of `want` ({adapter: greedy, drawn}). AssertionError for few drafters."""
    asked, wrong = 0, list[str]()
    for drafter in DRAFTERS.names():
        wishes = [replace(p, drafter=drafter, adapter=name) for name in want for p in (GREEDY, DRAWN)]
        try:
            got = texts(llm, *wishes)
        except PacelineError:
            continue
        asked += 1
        if got != [text for pair in want.values() for text in pair]:
            wrong.append(drafter)
    assert asked >= 3
    return wrong


@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_is_that_of_merged_weights_under_every_drafter(
    models: Callable[[str], dict[str, Path]], family: str
) -> None:
    at = models(family)
    with LLM(at["merged"], dtype="float32", drafter="none", **SMALL) as llm:
        merged = texts(llm, GREEDY, DRAWN)
    with LLM(at["base"], dtype="float32", drafter="none", **SMALL) as llm:
        plain = texts(llm, GREEDY, DRAWN)
    assert merged[0] != plain[0]
    lora = {"a": at["a"], "b": at["b"]}
    with LLM(at["base"], at["draft"], "none", dtype="float32", lora=lora, **SMALL) as llm:
        other = texts(llm, *(replace(p, adapter="b") for p in (GREEDY, DRAWN)))
        assert other[0] not in (merged[0], plain[0])
        assert not under_all_drafters(llm, {"": plain, "a": merged, "b": other})


def no_slots(patch: pytest.MonkeyPatch) -> None:
    """A defect: rows forget their adapter."""
    add = RowsBuilder.add
    patch.setattr(RowsBuilder, "add", lambda self, *args, **more: add(self, *args, **{**more, "adapter": 0}))


def one_slot(patch: pytest.MonkeyPatch) -> None:
    """A defect: all rows of a pass have the adapter of the first."""
    build = RowsBuilder.build

    def wrong(self: RowsBuilder, *args: Any, **more: Any) -> Any:
        self._segments = [each._replace(adapter=self._segments[0].adapter) for each in self._segments]
        return build(self, *args, **more)

    patch.setattr(RowsBuilder, "build", wrong)


def one_name(patch: pytest.MonkeyPatch) -> None:
    """A defect: K/V of an adapter has the name of the model's own."""
    key = Adapters.key
    patch.setattr(Adapters, "key", lambda self, tenant, name, now=None: (tenant, *key(self, tenant, name, now)[1:]))


@pytest.mark.parametrize("plant", [no_slots, one_slot, one_name])
def test_planted_defects_are_seen(
    models: Callable[[str], dict[str, Path]], plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    at = models("llama")
    lora = {"a": at["a"], "b": at["b"]}
    with LLM(at["base"], at["draft"], "none", dtype="float32", lora=lora, **SMALL) as llm:
        want = {name: texts(llm, *(replace(p, adapter=name) for p in (GREEDY, DRAWN))) for name in ("", "a", "b")}
    plant(monkeypatch)
    with LLM(at["base"], at["draft"], "none", dtype="float32", lora=lora, **SMALL) as llm:
        assert under_all_drafters(llm, want)


@pytest.mark.parametrize("form", [{}, {"quantize": "int8"}, {"quantize": "int4"}])
def test_the_native_decoder_adds_what_the_twin_adds(
    models: Callable[[str], dict[str, Path]], form: dict[str, Any]
) -> None:
    """A batch has the texts of its requests alone, bit for bit, with drafts and without, whatever threads divide
    the rows or, of few rows, the low rank."""
    at, before = models("llama"), torch.get_num_threads()
    with LLM(at["base"], at["draft"], lora={"a": at["a"], "b": at["b"]}, **form, **SMALL) as llm:
        if not llm.engine.model.packing.native:  # type: ignore[attr-defined]
            pytest.skip("there is no native decoder here")
        wishes = [replace(p, adapter=name) for name in ("", "a", "b") for p in (GREEDY, DRAWN)]
        alone = [texts(llm, replace(wish, drafter="none"))[0] for wish in wishes]
        assert len({tuple(text) for text in alone}) > 3
        try:
            for drafter, threads in ("none", 1), ("ngram", 2), ("model", 3), ("auto", 2):
                torch.set_num_threads(threads)
                assert texts(llm, *(replace(wish, drafter=drafter) for wish in wishes)) == alone
                assert texts(llm, replace(wishes[2], drafter=drafter)) == alone[2:3]
        finally:
            torch.set_num_threads(before)


def test_a_native_delta_is_the_product_of_its_factors(models: Callable[[str], dict[str, Path]]) -> None:
    from paceline.model.native_adapters import pack_delta

    spec, weights = (
        read_config(models("llama")["base"]),
        read_lora(models("llama")["a"], read_config(models("llama")["base"])),
    )
    for place in lora_places(spec, True, interleaved(spec, weights)):
        pair = fused(place, weights)
        assert pair is not None
        packed = pack_delta(pair)
        eights = [part.view(-1, min(8, packed.rank - 8 * i), 32).transpose(0, 1) for i, part in
                  enumerate(packed.down.split(8 * packed.width))]  # fmt: skip
        down = torch.cat([part.reshape(len(part), -1) for part in eights])[:, : pair.down.shape[1]].float()
        up = torch.zeros(16 * len(packed.tile), len(down))
        for tile, (at, both) in enumerate(packed.tile.tolist()):
            first, count = both & 0xFFFF, both >> 16
            columns = packed.up[at : at + count].view(-1, 16, 2).transpose(0, 1).reshape(16, count)
            up[tile * 16 : tile * 16 + 16, first : first + count] = columns.float()
        want = pair.up.bfloat16().float() @ pair.down.bfloat16().float()
        assert torch.allclose((up @ down)[: len(want)], want, atol=1e-5)
        assert not up[len(want) :].any()


def test_names_are_replaced_unloaded_and_kept_apart(models: Callable[[str], dict[str, Path]], tmp_path: Path) -> None:
    at = models("llama")
    with LLM(
        at["base"], drafter="none", dtype="float32", max_loras=2, lora={"a": at["a"], "b": at["b"]}, **SMALL
    ) as llm:
        made = llm.engine.session.adapters
        first, second = (texts(llm, replace(GREEDY, adapter=name))[0] for name in "ab")
        made.enter("a", at["b"], made.read(at["b"]), replace=True)
        assert texts(llm, replace(GREEDY, adapter="a"))[0] == second  # the blocks of the old version are not found
        with pytest.raises(InputError, match="loaded already"):
            made.enter("a", at["a"], made.read(at["a"]))
        [running] = llm.engine.submit(PROMPT, replace(GREEDY, adapter="a").resolve({}))
        llm.engine.step()
        made.enter("a", at["a"], made.read(at["a"]), replace=True)
        made.remove("b")
        while running.finish is None:
            llm.engine.step()
        assert running.output == second and not made.leaving
        assert texts(llm, replace(GREEDY, adapter="a"))[0] == first
        with pytest.raises(InputError, match="no adapter 'b'"):
            texts(llm, replace(GREEDY, adapter="b"))
        # idle ones leave memory for others, and are read again
        made.enter("b", at["b"], made.read(at["b"]))
        made.enter("c", at["b"], made.read(make_adapter(tmp_path / "c", at["base"], 5)))
        assert len(made.table.bytes) == 2
        assert texts(llm, replace(GREEDY, adapter="a"))[0] == first
        held = [llm.engine.submit(PROMPT, replace(GREEDY, adapter=name).resolve({}))[0] for name in "ab"]
        made.enter("d", at["a"], made.read(make_adapter(tmp_path / "d", at["base"], 6)))
        assert made.named["d"].slot == 0, "all places are in use: its first request reads it"
        for request in held:
            llm.engine.abort(request)
        assert not made.running


def test_a_parked_request_needs_its_adapter(models: Callable[[str], dict[str, Path]]) -> None:
    at = models("llama")
    with LLM(at["base"], drafter="none", dtype="float32", lora={"a": at["a"]}, **SMALL) as llm:
        want = texts(llm, replace(DRAWN, adapter="a"))[0]
        [request] = llm.engine.submit(PROMPT, replace(DRAWN, adapter="a").resolve({}))
        while len(request.output) < 5:
            llm.engine.step()
        packed = llm.engine.apply(Park(request.id))
    with LLM(at["base"], drafter="none", dtype="float32", lora={"x": at["b"]}, **SMALL) as llm:
        with pytest.raises(InputError, match="needs the adapter"):
            llm.engine.apply(Resume(packed))
        made = llm.engine.session.adapters
        made.enter("other name", at["a"], made.read(at["a"]))
        [request] = llm.engine.apply(Resume(packed))
        while request.finish is None:
            llm.engine.step()
        assert request.output == want


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda d: (d / "adapter_config.json").unlink(), "no adapter_config.json"),
    "cut": (lambda d: (d / "adapter_model.safetensors").write_bytes(b"x" * 40), "damaged"),
    "no weights": (lambda d: (d / "adapter_model.safetensors").unlink(), "has neither"),
    "dora": (lambda d: configure(d, use_dora=True), "DoRA"),
    "modules_to_save": (lambda d: configure(d, modules_to_save=["lm_head"]), "modules_to_save"),
    "biases": (lambda d: configure(d, bias="all"), "trained biases"),
    "another kind": (lambda d: configure(d, peft_type="IA3"), "IA3"),
    "changed base": (lambda d: configure(d, init_lora_weights="pissa_niter_4"), "pissa"),
    "unknown key": (lambda d: configure(d, novel_thing=3), "novel_thing"),
    "rank": (lambda d: configure(d, r=5), "says rank 5"),
    "no rank": (lambda d: configure(d, r="x"), "positive number"),
    "module": (lambda d: configure(d, target_modules=["q_proj", "wq"]), "no linear layer"),
    "left out": (lambda d: configure(d, target_modules=["q_proj"]), "target_modules of its config leaves out"),
    "left out by an expression": (lambda d: configure(d, target_modules=r".*\.q_proj"), "target_modules of its config"),
    "excluded": (lambda d: configure(d, exclude_modules=["q_proj"]), "exclude_modules of its config leaves out"),
    "another layer": (lambda d: configure(d, layers_to_transform=[0]), "layers_to_transform of its config leaves out"),
    "no truth value": (lambda d: configure(d, use_rslora="x"), "true or false"),
    "no number": (lambda d: configure(d, alpha_pattern={"q_proj": True}), "a value is a number"),
    "nan": (lambda d: change(d, lambda t: t.fill_(float("nan"))), "not finite"),
    "shape": (lambda d: change(d, lambda t: t[:, :-1].clone()), "another model"),
    "fewer layers": (lambda d: shallow(d), "for a model of 1 layers, but this one has"),
    "a layer cut out": (lambda d: change(d, lambda t: None, "A", "B"), "lacks the factors"),
    "half a pair": (lambda d: change(d, lambda t: None), "only one factor"),
    "head": (lambda d: add(d, "base_model.model.lm_head.weight"), "lm_head.weight"),
    "embedding": (lambda d: add(d, "base_model.model.model.embed_tokens.lora_embedding_A"), "embed"),
}  # fmt: skip


def configure(path: Path, **changes: Any) -> None:
    file = path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change(path: Path, how: Callable[[torch.Tensor], torch.Tensor | None], *parts: str) -> None:
    """Change the first tensor, or these factors of its module."""
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    first = min(tensors)
    for name in [re.sub(r"lora_[AB]", f"lora_{part}", first) for part in parts] or [first]:
        new = how(tensors.pop(name))
        tensors |= {} if new is None else {name: new}
    save_file(tensors, file)


def shallow(path: Path) -> None:
    """Leave the tensors of the first layer."""
    file = path / "adapter_model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if ".layers.0." in name}, file)


def add(path: Path, name: str) -> None:
    file = path / "adapter_model.safetensors"
    save_file({**load_file(file), name: torch.zeros(2, 2)}, file)


@pytest.mark.parametrize("case", BAD)
def test_bad_adapters_are_refused(models: Callable[[str], dict[str, Path]], tmp_path: Path, case: str) -> None:
    base = models("llama")["base"]
    spoil, words = BAD[case]
    path = make_adapter(tmp_path / "x", base)
    spoil(path)
    with pytest.raises(PacelineError, match=words):
        read_lora(path, read_config(base))


def test_of_another_model_or_too_large(models: Callable[[str], dict[str, Path]], tmp_path: Path) -> None:
    other = tiny_checkpoint(tmp_path / "other", "llama", hidden=64)
    with pytest.raises(PacelineError, match="another model"):
        read_lora(models("llama")["a"], read_config(other))
    with pytest.raises(InputError, match="at most 3"):
        read_lora(models("llama")["a"], read_config(models("llama")["base"]), max_rank=3)
    for bad in (["a"], ["a=x", "a=y"], ["=x"]):
        with pytest.raises(InputError, match="NAME=DIR"):
            LLM(models("llama")["base"], lora=bad, **SMALL)


def test_patterns_and_scales_are_pefts(models: Callable[[str], dict[str, Path]], tmp_path: Path) -> None:
    """Rank and alpha of a module by the first pattern that ends its name; rsLoRA divides by the root of the rank."""
    spec = read_config(models("llama")["base"])
    path = make_adapter(tmp_path / "x", models("llama")["base"])

    def up(**config: Any) -> dict[str, torch.Tensor]:
        configure(path, **config)
        return {name: pair.up for name, pair in read_lora(path, spec).modules.items()}

    plain = up()
    by_root = up(use_rslora=True)
    assert all(torch.allclose(by_root[name], 2 * plain[name]) for name in plain)
    some = up(use_rslora=False, alpha_pattern={r"layers\.0\..*q_proj": 24, "down_proj": 2})
    factors = {name: float((some[name] / plain[name]).mean()) for name in plain}
    for name, factor in factors.items():
        want = 3.0 if "layers.0." in name and "q_proj" in name else 0.25 if "down_proj" in name else 1.0
        assert factor == pytest.approx(want), name


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(.*)*x", "(a|a)*b", "(a|aa)+$", r"(\w+)\1*", "(?=a)a", ".*" * 9, "(", "x" * 9999, "(?:a{1,9}){9}"],
)
def test_a_pattern_that_may_take_long_is_refused(
    models: Callable[[str], dict[str, Path]], tmp_path: Path, pattern: str
) -> None:
    """Patterns come with the adapter, and adapters may come over HTTP."""
    path = make_adapter(tmp_path / "x", models("llama")["base"])
    for key in ("rank_pattern", "alpha_pattern"):
        configure(path, rank_pattern={}, alpha_pattern={})
        configure(path, **{key: {pattern: 4}})
        with pytest.raises(PacelineError, match="none that is served"):
            read_lora(path, read_config(models("llama")["base"]))
    configure(path, rank_pattern=["q_proj"])
    with pytest.raises(PacelineError, match="an object is expected"):
        read_lora(path, read_config(models("llama")["base"]))


def test_pickled_factors_are_the_same_adapter_and_nothing_runs(
    models: Callable[[str], dict[str, Path]], tmp_path: Path
) -> None:
    at, spec = models("llama"), read_config(models("llama")["base"])
    path = make_adapter(tmp_path / "x", at["base"])
    whole = path / "adapter_model.safetensors"
    tensors, digest = load_file(whole), read_lora(path, spec).digest
    whole.unlink()
    torch.save(tensors, path / "adapter_model.bin")
    assert read_lora(path, spec).digest == digest
    torch.save({**tensors, "x": Path("a")}, path / "adapter_model.bin")
    with pytest.raises(PacelineError, match="damaged"):
        read_lora(path, spec)
    (path / "adapter_model.bin").write_bytes((path / "adapter_model.bin").read_bytes()[:-500])
    with pytest.raises(PacelineError, match="damaged"):
        read_lora(path, spec)
    torch.save([1], path / "adapter_model.bin")
    with pytest.raises(PacelineError):
        read_lora(path, spec)


def test_where_all_are_in_use_a_request_waits(models: Callable[[str], dict[str, Path]], tmp_path: Path) -> None:
    """Two places, five adapters: everybody gets the text of their own, in the order of arrival; others go on."""
    at = models("llama")
    paths = {f"n{i}": make_adapter(tmp_path / f"n{i}", at["base"], 30 + i) for i in range(5)}
    wishes = [replace(GREEDY, adapter=name) for name in (*paths, "", "n0", "n4")]
    with LLM(at["base"], dtype="float32", drafter="ngram", lora=paths, **SMALL) as llm:
        want = texts(llm, *wishes)
    with LLM(at["base"], dtype="float32", drafter="ngram", lora=paths, max_loras=2, **SMALL) as llm:
        engine, made = llm.engine, llm.engine.session.adapters
        assert texts(llm, *wishes) == want and not made.waiting and not made.running
        asked = [engine.submit(PROMPT, wish.resolve({}))[0] for wish in wishes[:4]]
        assert [request.adapter_slot > 0 for request in asked] == [True, True, False, False]
        engine.abort(asked[2])
        assert made.waiting == [asked[3]] and engine.busy
        packed = engine.apply(Park(asked[3].id))
        assert not made.waiting
        [again] = engine.apply(Resume(packed))
        assert made.waiting == [again]
        [gone] = engine.submit(PROMPT, replace(wishes[4]).resolve({}))
        made.remove("n3")
        shutil.rmtree(paths["n4"])
        while engine.busy:
            engine.step()
        assert [request.output for request in (*asked[:2], again)] == [*want[:2], want[3]], "it began before the unload"
        assert gone.finish == "error" and "n4" in (gone.error or "") and not made.leaving and not made._wanted
        assert not made.running and not engine.session.requests
        with pytest.raises(InputError, match="no adapter 'n3'"):
            engine.submit(PROMPT, wishes[3].resolve({}))
    with pytest.raises(CapacityError, match="lora_memory"):
        LLM(at["base"], dtype="float32", lora=paths, lora_memory=10, **SMALL)


def test_nobody_starves_behind_adapters_that_are_always_in_use(
    models: Callable[[str], dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = models("llama")
    with LLM(at["base"], dtype="float32", lora={"a": at["a"], "b": at["b"]}, max_loras=1, **SMALL) as llm:
        engine, clock = llm.engine, [0.0]
        monkeypatch.setattr(engine, "now", lambda: clock[0])
        first = engine.submit(PROMPT, replace(GREEDY, adapter="a").resolve({}))[0]
        waits = engine.submit(PROMPT, replace(GREEDY, adapter="b").resolve({}))[0]
        behind = list[Any]()
        while waits.finish is None:
            clock[0] += 0.5
            if len(behind) < 40:
                behind += engine.submit(PROMPT, replace(GREEDY, adapter="a", max_tokens=9).resolve({}))
            engine.step()
        assert first.finish and sum(request.finish is None for request in behind) > 10
        while engine.busy:
            engine.step()
        assert all(request.finish == "length" for request in behind)


def test_every_answer_is_of_one_version(models: Callable[[str], dict[str, Path]], tmp_path: Path) -> None:
    """Adapters are loaded, unloaded and replaced under their names while requests run."""
    at, names = models("llama"), [f"n{i}" for i in range(4)]
    versions = [make_adapter(tmp_path / f"v{i}", at["base"], 10 + i) for i in range(6)]
    wish = replace(GREEDY, max_tokens=12)
    prompts = [[*PROMPT, 70 + i] for i in range(3)]
    options: dict[str, Any] = {**SMALL, "dtype": "float32", "drafter": "ngram", "max_loras": 12}
    right: dict[tuple[int, int], list[int]] = {}
    with LLM(at["base"], lora={str(i): v for i, v in enumerate(versions)}, **options) as llm:
        for v in range(len(versions)):
            for i, prompt in enumerate(prompts):
                right[v, i] = texts(llm, replace(wish, adapter=str(v)), prompt=prompt)[0]

    async def all_of_them() -> int:
        llm = AsyncLLM(at["base"], lora=dict(zip(names, versions)), **options)
        made, done = llm.llm.engine.session.adapters, 0
        weights: list[LoraWeights] = [made.read(path) for path in versions]

        async def ask(number: int) -> None:
            nonlocal done
            name, i = names[number % len(names)], number % len(prompts)
            try:
                [out] = await llm.generate(prompts[i], replace(wish, adapter=name))
            except InputError as error:
                assert "no adapter" in str(error)
                return
            assert out.token_ids in [right[v, i] for v in range(len(versions))]
            done += 1

        async def churn() -> None:
            for turn in range(24):
                name, v = names[turn % len(names)], turn % len(versions)
                if turn % 5 == 4:
                    await llm.call(lambda name=name: made.remove(name) if name in made.named else None)
                else:
                    await llm.call(lambda name=name, v=v: made.enter(name, versions[v], weights[v], True))
                await asyncio.sleep(0.005)

        await asyncio.gather(*(ask(number) for number in range(48)), churn())
        assert not made.leaving and not made.running
        llm.close()
        return done

    assert asyncio.run(all_of_them()) >= 24


def test_a_gguf_adapter_is_the_same_adapter(models: Callable[[str], dict[str, Path]], tmp_path: Path) -> None:
    """As llama.cpp's converter writes it: rows of queries and keys in pairs, alpha in the metadata."""
    import gguf

    from paceline.model.gguf.tensors import names_of

    at = models("llama")
    spec, file = read_config(at["base"]), tmp_path / "a.gguf"
    names, tensors = names_of("llama", len(spec.layers)), load_file(at["a"] / "adapter_model.safetensors")
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for name, tensor in tensors.items():
        module, part = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".lora_", 1)
        heads = spec.heads if module.endswith("q_proj") else spec.kv_heads if module.endswith("k_proj") else 0
        if part == "B" and heads:
            pairs = tensor.view(heads, 2, spec.head_dim // 2, -1).transpose(1, 2)
            tensor = pairs.reshape(tensor.shape).contiguous()
        writer.add_tensor(f"{names[module]}.weight.lora_{part.lower()}", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for dtype in ("float32", "bfloat16"):
        with LLM(at["base"], drafter="none", dtype=dtype, lora={"a": at["a"], "g": file}, **SMALL) as llm:  # type: ignore[arg-type]
            first, second = (texts(llm, *(replace(p, adapter=name) for p in (GREEDY, DRAWN))) for name in "ag")
            assert first == second
    with pytest.raises(PacelineError, match="no adapter"):
        base = tmp_path / "base.gguf"
        writer = gguf.GGUFWriter(base, "llama")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        read_lora(base, spec)
