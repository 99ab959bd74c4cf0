"""Adapters: the text of merged weights under every drafter, each request by one version, bad files refused."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.core.errors import CapacityError, InputError, PacelineError
from paceline.core.operations import Park, Resume
from paceline.draft import DRAFTERS
from paceline.engine import adapters
from paceline.engine.adapters import Adapters
from paceline.model import lora
from paceline.model.adapters import AdaptedRows
from paceline.model.checkpoint import read_config
from paceline.model.lora import LoraWeights, fused, interleaved, read_lora
from paceline.model.lora_places import lora_places
from tests.lora import change, make_adapter, merge
from tests.tiny import tiny_checkpoint

FAMILIES = ("llama", "mixtral", "qwen3_5_text", "lfm2")
MORE_FAMILIES = ("phi3", "qwen2_moe", "bamba", "qwen3_next", "gemma4_text", "nemotron_h")
SMALL: dict[str, Any] = {"blocks": 128, "max_requests": 8, "weights_cache": False, "check": True}
PROMPT = [5, 9, 200, 17, 33, 8, 9, 200, 17, 60, 61, 62, 63, 64, 65, 66, 67, 68, 5, 9, 200]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, seed=7, max_tokens=16, ignore_eos=True)


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


@pytest.mark.parametrize("family", [*FAMILIES, *(pytest.param(it, marks=pytest.mark.full) for it in MORE_FAMILIES)])
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


def no_scale(patch: pytest.MonkeyPatch) -> None:
    """A defect: alpha is forgotten."""
    by_pattern = lora.by_pattern

    def wrong(config: Any, key: str, module: str, default: float) -> float:
        return by_pattern(config, key, module, default) if key == "rank_pattern" else config["r"]

    patch.setattr(lora, "by_pattern", wrong)


def given_rows_alone(patch: pytest.MonkeyPatch) -> None:
    """A defect: the rows of candidates lack what the adapter adds, and so does their K/V once they are accepted."""
    begin = AdaptedRows.begin

    def wrong(self: AdaptedRows, rows: Any) -> None:
        begin(self, rows)
        if self.of is not None:
            for it in rows.segments:
                self.of[it.start + it.given : it.start + it.rows] = 0
            self._set(self.of)

    patch.setattr(AdaptedRows, "begin", wrong)


def one_name(patch: pytest.MonkeyPatch) -> None:
    """A defect: K/V of an adapter has the name of the model's own."""
    key = Adapters.key
    patch.setattr(Adapters, "key", lambda self, tenant, name, now=None: (tenant, *key(self, tenant, name, now)[1:]))


@pytest.mark.parametrize("plant", [no_scale, given_rows_alone, one_name])
def test_planted_defects_are_seen(
    models: Callable[[str], dict[str, Path]], plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """More of them, with every drafter: tests/lossless/test_adapters.py."""
    at, want = models("llama"), dict[str, list[list[int]]]()
    for name, model in ("", "base"), ("a", "merged"):
        with LLM(at[model], dtype="float32", drafter="none", **SMALL) as llm:
            want[name] = texts(llm, GREEDY, DRAWN)
    plant(monkeypatch)
    with LLM(at["base"], at["draft"], "none", dtype="float32", lora={"a": at["a"]}, **SMALL) as llm:
        assert under_all_drafters(llm, want)


def test_what_is_not_finite_spoils_nobody_else(models: Callable[[str], dict[str, Path]], tmp_path: Path) -> None:
    """An adapter whose numbers overflow ends its requests with an error; who has their blocks next, or runs at the
    same time, gets the right text."""
    at = models("llama")
    bad = make_adapter(tmp_path / "bad", at["base"])
    change(bad, lambda t: t.fill_(1e18), "A", "B")
    wishes = [replace(GREEDY, adapter=name) for name in ("bad", "a", "", "bad")]
    options: dict[str, Any] = {**SMALL, "blocks": 8, "max_requests": 4, "block_size": 8, "drafter": "ngram"}
    for dtype in "float32", "bfloat16":
        with LLM(at["base"], dtype=dtype, lora={"a": at["a"]}, **options) as llm:  # type: ignore[arg-type]
            want, made = texts(llm, *wishes[1:3]), llm.engine.session.adapters
            with pytest.raises(PacelineError, match="far too large"):
                made.read(bad)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(lora, "MAX_LORA_NORM", 1e40)
                made.enter("bad", bad, made.read(bad))
            for _ in range(2):
                outs = llm.generate([PROMPT] * 4, wishes, progress=False)
                assert [out.finish_reason for out in outs] == ["error", "length", "length", "error"]
                assert [out.token_ids for out in outs[1:3]] == want


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
        with pytest.MonkeyPatch.context() as patch, pytest.raises(CapacityError, match="which is the most"):
            patch.setattr(adapters, "MOST_ADAPTER_NAMES", len(made.named))
            made.check_name("one more", False)
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
        assert (made.running, made.awaited) == (["n0", "n1"], ["n2", "n3"])
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


def test_memory_of_adapters_is_a_limit(models: Callable[[str], dict[str, Path]], tmp_path: Path) -> None:
    """It holds for the first one, too; one that never fits puts no other one out; an answer names no lost file."""
    at = models("llama")
    with pytest.raises(CapacityError, match="lora_memory to"):
        LLM(at["base"], dtype="float32", lora={"a": at["a"]}, lora_memory=10, **SMALL)
    with LLM(at["base"], drafter="none", dtype="float32", lora={"a": at["a"]}, **SMALL) as llm:
        one = llm.engine.session.adapters.bytes
    lost = make_adapter(tmp_path / "lost", at["base"], 8)
    big = make_adapter(tmp_path / "big", at["base"], 9, rank=16)
    with LLM(
        at["base"], drafter="none", dtype="float32", lora={"lost": lost, "a": at["a"]}, lora_memory=one, **SMALL
    ) as llm:
        made = llm.engine.session.adapters
        with pytest.raises(CapacityError, match="There is no room"):
            made.enter("big", big, made.read(big))
        held = [name for name, it in made.named.items() if it.slot]
        assert len(held) == 1 and made.bytes <= one
        shutil.rmtree(lost)
        texts(llm, replace(GREEDY, adapter="a"))
        with pytest.raises(adapters.LostAdapterError, match="'lost' has left memory") as caught:
            texts(llm, replace(GREEDY, adapter="lost"))
        assert str(tmp_path) not in str(caught.value)


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
