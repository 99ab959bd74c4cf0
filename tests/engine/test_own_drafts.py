"""An adapter's own draft, an adapter of the draft model or a head, drafts for it alone and changes no text."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline import LLM, SamplingParams
from paceline.core.errors import InputError, PacelineError, RefusalError
from paceline.core.operations import Park, Resume
from paceline.core.request import Request
from paceline.draft.dyspec import DySpec
from paceline.draft.head import HeadConfig
from paceline.draft.medusa import Medusa, MedusaConfig
from paceline.draft.model import ModelDrafter
from paceline.engine.adapters import loras_of
from paceline.serve.settings import parse
from tests.draft.test_head import KINDS, SIZES, shaken
from tests.engine.test_adapters import DRAWN, GREEDY, PROMPT, SMALL, texts, under_all_drafters
from tests.lora import make_adapter, merge
from tests.tiny import tiny_checkpoint

DRAFTING: dict[str, Any] = {**SMALL, "length": "fixed", "nodes": 3}
"""A draft as large as its model pays for no planner."""
WISHES = [replace(p, adapter=name, drafter="model") for name in ("", "a", "b") for p in (GREEDY, DRAWN)]


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model that drafts for itself, two adapters of it, and a third for their drafts."""
    at = tmp_path_factory.mktemp("own")
    base = tiny_checkpoint(at / "base", "llama", seed=1)
    return {"base": base, **{name: make_adapter(at / name, base, seed) for seed, name in enumerate("abc")}}


def judged(llm: LLM, *wishes: SamplingParams, prompt: list[int] = PROMPT) -> list[Request]:
    """The requests of these wishes, when they have ended."""
    asked = [llm.engine.submit(prompt, wish.resolve({}))[0] for wish in wishes]
    while llm.engine.busy:
        llm.engine.step()
    return asked


@pytest.mark.parametrize("form", [{"dtype": "float32"}, {}, {"quantize": "int8"}])
def test_it_drafts_for_its_adapter_alone(at: dict[str, Path], form: dict[str, Any]) -> None:
    """The draft is the model itself: with the same adapter it says what the target says, and all is accepted."""
    with LLM(at["base"], drafter="none", lora={"a": at["a"], "b": at["b"]}, **form, **SMALL) as llm:
        want = texts(llm, *(replace(wish, drafter="none") for wish in WISHES))
    lora = {"a": f"{at['a']},draft={at['a']}", "b": str(at["b"])}
    with LLM(at["base"], at["base"], "model", lora=lora, **form, **DRAFTING) as llm:
        if form != {"dtype": "float32"} and not llm.engine.model.packing.native:  # type: ignore[attr-defined]
            pytest.skip("there is no native decoder here")
        found = judged(llm, *WISHES)
        assert [request.output for request in found] == want
        plain, own, other = found[0::2]
        assert plain.stats.accepted == plain.stats.drafted > 0 and own.stats.accepted == own.stats.drafted > 0
        assert other.stats.accepted < other.stats.drafted
        adapters = llm.engine.session.adapters
        assert adapters.drafts is not None and adapters.drafts.bytes > 0
        assert adapters.bytes == sum(adapters.table.bytes.values()) + adapters.drafts.bytes


@pytest.mark.parametrize("drafter", ["model", "topk", "dyspec"])
def test_native_calls_have_it_in_each_pass(at: dict[str, Path], monkeypatch: pytest.MonkeyPatch, drafter: str) -> None:
    """A chain or a tree in one call, by itself and within a run, drafts as passes one by one do."""
    lora = {"a": f"{at['a']},draft={at['a']}"}
    wish, found = replace(GREEDY, adapter="a", drafter=drafter), []
    for form in ({}, {"length": "goodput"}):
        with LLM(at["base"], at["base"], drafter, lora=lora, **{**DRAFTING, **form}) as llm:
            model, runs = llm.engine.model, 0
            if not model.packing.native:  # type: ignore[attr-defined]
                pytest.skip("there is no native decoder here")
            run = model.run  # type: ignore[attr-defined]

            def counted(*args: Any, run: Any = run) -> Any:
                nonlocal runs
                runs += 1
                return run(*args)

            if form:
                llm.engine.desk.policy.patience = 1e9  # type: ignore[attr-defined]
            monkeypatch.setattr(model, "run", counted)
            found += judged(llm, wish)
            assert bool(runs) == bool(form)
            if not form:
                with monkeypatch.context() as patch:
                    patch.setattr(ModelDrafter, "_chains", lambda self, growing: None)
                    patch.setattr(DySpec, "table", lambda self, proposer: None)
                    found += judged(llm, wish)
    by_passes, in_one_call, in_runs = found[1], found[0], found[2]
    assert in_one_call.output == by_passes.output == in_runs.output
    assert in_one_call.stats.accepted == by_passes.stats.accepted == in_runs.stats.accepted > 0
    assert in_one_call.stats.drafted == by_passes.stats.drafted
    assert drafter != "model" or in_runs.stats.accepted == in_runs.stats.drafted


def test_the_text_is_that_of_merged_weights_under_every_drafter(at: dict[str, Path], tmp_path: Path) -> None:
    with LLM(merge(tmp_path / "m", at["base"], at["a"]), dtype="float32", drafter="none", **SMALL) as llm:
        merged = texts(llm, GREEDY, DRAWN)
    with LLM(at["base"], dtype="float32", drafter="none", **SMALL) as llm:
        plain = texts(llm, GREEDY, DRAWN)
    lora = [f"a={at['a']},draft={at['b']}", f"same={at['a']},draft={at['c']}", f"none={at['a']}"]
    draft = tiny_checkpoint(tmp_path / "draft", "llama", seed=3)
    with LLM(at["base"], draft, "none", dtype="float32", lora=lora, **SMALL) as llm:
        assert not under_all_drafters(llm, {"a": merged, "": plain, "same": merged, "none": merged})


@pytest.mark.parametrize("form", [{"dtype": "float32"}, {}])
@pytest.mark.parametrize("kind", ["medusa", "medusa, own head", "hydra"])
def test_a_head_of_its_own(at: dict[str, Path], tmp_path: Path, kind: str, form: dict[str, Any]) -> None:
    """Requests of the adapter are drafted by its head, others by the head of all: as where each is the head of all."""
    first, second = tmp_path / "first", tmp_path / "second"
    shaken(KINDS[kind]).save(first)
    shaken(KINDS[kind]).save(second)
    weights = load_file(second / "model.safetensors")
    save_file({name: weight.flip(0).contiguous() for name, weight in weights.items()}, second / "model.safetensors")
    drafter = kind.partition(",")[0]
    wishes = [replace(p, adapter=name, drafter=drafter) for name in ("", "a", "b") for p in (GREEDY, DRAWN)]
    more: dict[str, Any] = {**form, **DRAFTING}
    seen: dict[Path, list[tuple[list[int], int]]] = {}
    for head in (first, second):
        with LLM(at["base"], head, drafter, lora={"a": at["a"], "b": at["b"]}, **more) as llm:
            alone = [judged(llm, wish)[0] for wish in wishes]
            seen[head] = [(request.output, request.stats.accepted) for request in alone]
    lora: dict[str, str | Path] = {"a": f"{at['a']},draft={second}", "b": at["b"]}
    with LLM(at["base"], first, drafter, lora=lora, **more) as llm:
        adapters, pool = llm.engine.session.adapters, llm.engine.drafters
        alone = [judged(llm, wish)[0] for wish in wishes]
        got = [(request.output, request.stats.accepted) for request in alone]
        assert [text for text, _ in got] == [text for text, _ in seen[first]]
        made = pool.drafters
        assert {getattr(it, "head") for it in made.values()} == {  # noqa: B009
            llm.engine.components[drafter], *(own.component for own in pool.heads.values())
        }  # fmt: skip
        assert [request.output for request in judged(llm, *wishes)] == [text for text, _ in got]
        adapters.remove("a")
        assert not pool.heads and not adapters.drafts.bytes  # type: ignore[union-attr]
        assert len(made) == 1, "the drafter of the head went with it"


def test_a_head_of_its_own_drafts_within_runs(at: dict[str, Path], tmp_path: Path) -> None:
    """Alone in runs; beside requests that another head drafts for in single passes, and nothing fails."""
    first, second = (tmp_path / name for name in ("first", "second"))
    for head in (first, second):
        shaken(KINDS["medusa"]).save(head)
    lora = {"a": f"{at['a']},draft={second}"}
    wishes = [replace(GREEDY, adapter=name, drafter="medusa") for name in ("", "a")]
    with LLM(at["base"], first, "medusa", lora=lora, **{**DRAFTING, "length": "goodput"}) as llm:
        llm.engine.desk.policy.patience = 1e9  # type: ignore[attr-defined]
        alone = [judged(llm, wish)[0] for wish in wishes]
        beside = judged(llm, *wishes)
        plain = judged(llm, *(replace(wish, drafter="none") for wish in wishes))
        assert not llm.engine.drafters.errors
    assert [it.output for it in alone] == [it.output for it in beside] == [it.output for it in plain]
    assert all(it.stats.drafted for it in (*alone, *beside))


def test_another_draft_is_another_version(at: dict[str, Path]) -> None:
    """K/V of the draft is kept under the digest of both; a parked request needs both."""
    lora: dict[str, str | Path] = {"a": f"{at['a']},draft={at['a']}", "b": f"{at['a']},draft={at['b']}", "c": at["a"]}
    with LLM(at["base"], at["base"], "model", dtype="float32", max_loras=1, lora=lora, **DRAFTING) as llm:
        made = llm.engine.session.adapters
        assert len({made.named[name].digest for name in "abc"}) == 3
        right = replace(GREEDY, adapter="a")
        for _ in range(2):  # with one place, each leaves memory for the next, and its draft with it
            accepted = [judged(llm, replace(right, adapter=name))[0].stats for name in "abc"]
            assert accepted[0].accepted == accepted[0].drafted
            assert all(it.accepted < it.drafted for it in accepted[1:])
        [request] = llm.engine.submit(PROMPT, right.resolve({}))
        while len(request.output) < 4:
            llm.engine.step()
        packed = llm.engine.apply(Park(request.id))
        made.enter("a", at["a"], made.read(at["a"], at["c"]), True, at["c"])
        with pytest.raises(InputError, match="needs the adapter"):
            llm.engine.apply(Resume(packed))
        made.enter("a", at["a"], made.read(at["a"], at["a"]), True, at["a"])
        [again] = llm.engine.apply(Resume(packed))
        while llm.engine.busy:
            llm.engine.step()
        assert again.output == texts(llm, replace(right, drafter="none"))[0]


def test_a_file_that_changed_is_no_version_of_a_parked_request(at: dict[str, Path], tmp_path: Path) -> None:
    """It goes on with the weights that it began with, or not at all; an adapter that cannot be installed leaves
    nothing in memory."""
    mine = shutil.copytree(at["a"], tmp_path / "mine")
    with LLM(at["base"], dtype="float32", max_loras=1, lora={"a": mine, "b": at["b"]}, **SMALL) as llm:
        made = llm.engine.session.adapters
        [request] = llm.engine.submit(PROMPT, replace(GREEDY, adapter="a").resolve({}))
        while len(request.output) < 4:
            llm.engine.step()
        packed = llm.engine.apply(Park(request.id))
        texts(llm, replace(GREEDY, adapter="b"))  # "a" leaves memory
        shutil.copytree(at["c"], mine, dirs_exist_ok=True)
        with pytest.raises(InputError, match="has changed"):
            llm.engine.apply(Resume(packed))
        assert not llm.engine.session.requests and not any(it.users for it in made.named.values())
        made.remove("a")
        weights = made.read(at["a"])
        made.drafts.install = lambda *_: no_room()  # type: ignore[union-attr, method-assign]
        with pytest.raises(RefusalError):
            made.enter("a", at["a"], weights)
        assert not made.table.bytes and "a" not in made.named


def no_room() -> int:
    raise RefusalError("It is not served.")


def of_another_width(at: dict[str, Path], tmp: Path) -> Path:
    return make_adapter(tmp / "wide", tiny_checkpoint(tmp / "wider", "llama", hidden=64))


def saved_head(kind: str) -> Callable[[dict[str, Path], Path], Path]:
    def make(at: dict[str, Path], tmp: Path) -> Path:
        KINDS[kind].save(tmp / "head")
        return tmp / "head"

    return make


def prompt_tokens(at: dict[str, Path], tmp: Path) -> Path:
    return with_prompts(tmp / "head")


def with_prompts(path: Path) -> Path:
    path.mkdir()
    config = {"speculators_model_type": "ppd", **HeadConfig(**SIZES, depth=3).written()}
    (path / "config.json").write_text(json.dumps(config))
    save_file({"prompts.weight": torch.ones(3, SIZES["width"])}, path / "model.safetensors")
    return path


def short_head(at: dict[str, Path], tmp: Path) -> Path:
    Medusa(MedusaConfig(**{**SIZES, "max_len": 64}, depth=3)).save(tmp / "head")
    return tmp / "head"


def with_holes(file: str) -> Callable[[dict[str, Path], Path], Path]:
    def make(at: dict[str, Path], tmp: Path) -> Path:
        KINDS["medusa"].save(tmp / "head")
        os.truncate(tmp / "head" / file, 1 << 36)
        return tmp / "head"

    return make


BAD: dict[str, tuple[str, Callable[[dict[str, Path], Path], Path], str]] = {
    "a model": ("base", lambda at, tmp: at["base"], "is a model"),
    "no draft model": ("", lambda at, tmp: at["b"], "no draft model here"),
    "a head, but none here": ("base", saved_head("medusa"), "heads here are none"),
    "another method": ("medusa", saved_head("hydra"), "heads here are medusa"),
    "a head of embeddings": ("ppd", prompt_tokens, "lends the model embeddings"),
    "a head with K/V": ("hydra++", saved_head("hydra++"), "keeps K/V"),
    "a shorter head": ("medusa", short_head, "train it alike"),
    "a head of holes": ("medusa", with_holes("model.safetensors"), "another kind of head"),
    "a config of holes": ("medusa", with_holes("config.json"), "too large for a config"),
    "of another model": ("base", of_another_width, "another model"),
    "nothing": ("base", lambda at, tmp: tmp / "absent", "no adapter_config.json"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_drafts_are_refused(at: dict[str, Path], tmp_path: Path, case: str) -> None:
    kind, make, words = BAD[case]
    draft: Path | None = at["base"] if kind == "base" else None
    if kind in KINDS:
        draft = tmp_path / "of all"
        KINDS[kind].save(draft)
    elif kind == "ppd":
        draft = with_prompts(tmp_path / "of all")
    with LLM(at["base"], draft, dtype="float32", **SMALL) as llm:
        made = llm.engine.session.adapters
        with pytest.raises(PacelineError, match=words):
            made.read(at["a"], make(at, tmp_path))
        assert not made.named and texts(llm, GREEDY)


def test_how_it_is_named(tmp_path: Path) -> None:
    for given in (["a=x,draft=y", "b=z"], {"a": "x,draft=y", "b": "z"}):
        assert loras_of(given) == {"a": (Path("x"), Path("y")), "b": (Path("z"), None)}
    environ = parse("a=x,draft=y, b=z", tuple[str, ...], "PACELINE_LORA")
    assert loras_of(environ) == loras_of(["a=x,draft=y", "b=z"])
    assert parse("a=x,draft=y", tuple[str, ...], "PACELINE_ZOO") == ("a=x", "draft=y")
    for bad in (["a=x,draft="], ["a=,draft=y"], ["a=x,draft=y", "a=z"], {"a": "x,draft=\0"}):
        with pytest.raises(InputError, match="expected"):
            loras_of(bad)
