"""Layers in several processes: texts stay those of one, wherever blocks lie, and nobody hangs where one ends.

Most tests have actors in this process, in place of Ray's; one, marked `full`, has real ones."""

import os
import signal
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.core.errors import InputError, LostError, PacelineError
from paceline.core.operations import Park, Resume
from paceline.model.spread import layers
from paceline.model.spread.place import Demand
from tests.zoo import family_of_tunes

SMALL: dict[str, Any] = {"blocks": 200, "max_requests": 16, "weights_cache": False, "check": True, "drafter": "none"}
PROMPTS = [[5, 9, 200, 17, 33, 8, 9, 200, 17, 60, 61, 62, 63, 64, 65, 66, 67, 68, 5, 9, 200], [5, 9, 200, 17, 9]]
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, seed=7, max_tokens=10, ignore_eos=True)
NAMES = ("", "a", "b", "c", "a[0:3]+b[3:4]", "b[0:2]+a[2:4]")
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"layer_processes": 0}, "must be 1 to"),
    ({"layer_counts": "counts"}, "layer_processes is 1"),
    ({"layer_processes": 2, "layer_rule": "worst"}, "must be greedy or best_fit"),
    ({"layer_processes": 2, "expert_parallel": 2}, "expert_parallel cannot be combined"),
    ({"layer_processes": 2, "tensor_parallel": 2}, "tensor_parallel.* cannot be combined"),
    ({"layer_processes": 2, "lora": {"x": "y"}}, "lora cannot be combined"),
]


class FakeRef(tuple[Any, Any]):
    """An answer, or an error."""


class FakeActor:
    """Does what it is asked at once; the answer is what Ray would give for it."""

    def __init__(self, host: Any, ray: "FakeRay") -> None:
        self.host, self.ray, self._actor_id = host, ray, types.SimpleNamespace(hex=lambda: f"actor{id(self)}")

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any) -> FakeRef:
            if self in self.ray.dead:
                return FakeRef((None, FakeRay.exceptions.RayError(f"{self._actor_id.hex()} died")))
            if found := next((it[1] for it in args if isinstance(it, FakeRef) and it[1]), None):
                return FakeRef((None, found))
            given = [it[0] if isinstance(it, FakeRef) else it for it in args]
            try:
                return FakeRef((getattr(self.host, name)(*given), None))
            except (ValueError, RuntimeError, LookupError) as error:
                raised = FakeRay.exceptions.RayTaskError(str(error))
                raised.cause = error
                return FakeRef((None, raised))

        return types.SimpleNamespace(remote=remote)


class RayError(Exception):
    cause: Exception


class RayTaskError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


class FakeRay:
    """Ray with actors in this process."""

    exceptions = types.SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, GetTimeoutError=GetTimeoutError)

    def __init__(self) -> None:
        self.dead: list[FakeActor] = []

    def remote(self, kind: Any) -> Any:
        made = types.SimpleNamespace(remote=lambda *args: FakeActor(kind(*args), self))
        return types.SimpleNamespace(options=lambda **_: made)

    def put(self, it: Any) -> Any:
        return it

    def get(self, ref: FakeRef, timeout: float) -> Any:
        if ref[1]:
            raise ref[1]
        return ref[0]

    def kill(self, actor: FakeActor) -> None:
        self.dead.append(actor)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay()
    monkeypatch.setattr(layers, "begin_ray", lambda what: made)
    monkeypatch.setattr(layers, "end_ray", lambda it: None)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    return made


@pytest.fixture(scope="module")
def tunes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return family_of_tunes(tmp_path_factory.mktemp("layers"))


def engine(paths: dict[str, Path], **options: Any) -> LLM:
    zoo = {name: path for name, path in paths.items() if name != "base"}
    return LLM(paths["base"], zoo=zoo, **{"dtype": "float32", **SMALL, **options})


def texts(llm: LLM, *names: str) -> list[list[int]]:
    wishes = [replace(wish, adapter=name) for wish in (GREEDY, DRAWN) for name in names for _ in PROMPTS]
    prompts = PROMPTS * (len(wishes) // len(PROMPTS))
    return [list(out.token_ids) for out in llm.generate(prompts, wishes, progress=False)]


@pytest.mark.parametrize(("dtype", "rule", "count"), [("float32", "greedy", 2), ("bfloat16", "best_fit", 3)])
def test_texts_are_those_of_one_process(
    ray: FakeRay, tunes: dict[str, Path], dtype: str, rule: str, count: int
) -> None:
    """Of base, fine-tunes and chains in one batch, with drafts; and each layer is in one process once."""
    options = {"dtype": dtype, "drafter": "ngram", "nodes": 3}
    with engine(tunes, **options) as llm:
        want = texts(llm, *NAMES)
    with engine(tunes, layer_processes=count, layer_rule=rule, **options) as llm:
        assert texts(llm, *NAMES) == want
        group = llm.engine.model.group  # type: ignore[attr-defined]
        held = [version for actor in group.actors for version in actor.host.held]
        assert len(held) == len({*held}) == len(group.where) and group.hops > 0
        assert all(group.where[version] == at for at, it in enumerate(group.actors) for version in it.host.held)


def test_parked_requests_come_back(ray: FakeRay, tunes: dict[str, Path]) -> None:
    """With keys and values of all processes."""
    with engine(tunes, layer_processes=2) as llm:
        want = texts(llm, "a")
        [made] = llm.engine.submit(PROMPTS[0], replace(DRAWN, adapter="a"))
        for _ in range(5):
            llm.engine.step()
        packed = llm.engine.apply(Park(made.id))
        [request] = llm.engine.apply(Resume(packed))
        while not request.finish:
            llm.engine.step()
        assert list(request.output) == want[2]


def test_counts_place_layers(ray: FakeRay, tunes: dict[str, Path], tmp_path: Path) -> None:
    """What was counted is added to the file, and the next start reads it."""
    counts = tmp_path / "counts.json"
    for turn in (1, 2):
        with engine(tunes, layer_processes=2, layer_counts=counts) as llm:
            texts(llm, "a")
            passed = llm.engine.model.group.passed.copy()  # type: ignore[attr-defined]
        known = layers.read_counts(counts)
        assert len(known) == 1 and set(known) == set(passed) and sum(known.values()) >= turn * 40
    counts.write_text('{"layout": 1, "chains": [{"layers": 3, "rows": "many"}]}')
    with pytest.raises(InputError, match="is no file of layer counts"):
        engine(tunes, layer_processes=2, layer_counts=counts)


def test_a_process_that_ends_or_fails(ray: FakeRay, tunes: dict[str, Path]) -> None:
    """One sentence, each time, and all are ended."""
    with engine(tunes, layer_processes=2) as llm:
        group = llm.engine.model.group  # type: ignore[attr-defined]
        ray.dead.append(group.actors[1])
        with pytest.raises(LostError, match="Process 1 of 2 of the layers has ended; start again") as caught:
            texts(llm, *NAMES)
        assert "\n" not in str(caught.value) and set(group.actors) <= set(ray.dead)
        with pytest.raises(LostError, match="start again"):
            texts(llm, "a")
    with engine(tunes, layer_processes=2) as llm:
        for actor in llm.engine.model.group.actors:  # type: ignore[attr-defined]
            actor.host.run = lambda *_: {}["no such layer"]
        with pytest.raises(LostError, match=r"A process of the layers failed .*no such layer"):
            texts(llm, "a")


def test_a_file_that_changed_is_refused(ray: FakeRay, tunes: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the digest and the process that reads it."""
    plain = layers.LayerHost.load
    monkeypatch.setattr(
        layers.LayerHost,
        "load",
        lambda self, path, form, wanted: [(i, "0" * 64) for i, _ in plain(self, path, form, wanted)],
    )
    with pytest.raises(PacelineError, match="a file has changed"):
        engine(tunes, layer_processes=2)
    assert len(ray.dead) == 2


@pytest.mark.parametrize(("options", "says"), REFUSED)
def test_what_cannot_be_is_refused(ray: FakeRay, tunes: dict[str, Path], options: dict[str, Any], says: str) -> None:
    with pytest.raises(PacelineError, match=says):
        LLM(tunes["base"], **{"dtype": "float32", **SMALL, **options})


def test_blocks_are_what_the_same_models_share() -> None:
    chains = {"base": ("0", "1", "2", "3"), "a": ("0", "1", "x", "y"), "b": ("0", "z", "2", "3")}
    paths = {name: Path(name) for name in chains}
    found = {it.name: it.layers for it in layers.blocks_of(chains, paths, 2)}
    assert found == {
        "base[0:1]": ("0",), "base[1:2]": ("1",), "base[2:4]": ("2", "3"), "a[2:4]": ("x", "y"), "b[1:2]": ("z",),
    }  # fmt: skip
    demands = layers.demands_of(chains, layers.blocks_of(chains, paths, 2), {chains["a"]: 30, ("gone",) * 4: 9})
    assert demands == [Demand(("base[0:1]", "base[1:2]", "a[2:4]"), 1.0)]


def test_greedy_shares_out_the_work() -> None:
    """One of four models has most requests: by memory alone it lies in one process, which has more than its share."""
    chains = {f"m{i}": tuple(f"{layer if layer < 2 else (i, layer)}" for layer in range(6)) for i in range(4)}
    blocks = layers.blocks_of(chains, {name: Path(name) for name in chains}, 3)
    known = {chain: 1 + 9 * (number == 2) for number, chain in enumerate(chains.values())}
    demands = layers.demands_of(chains, blocks, known)
    busiest = {rule: max(layers.placed_blocks(blocks, demands, 3, 10, rule).load) for rule in layers.LAYER_RULES}
    assert busiest["greedy"] <= 1.0 < busiest["best_fit"]


@pytest.fixture
def real() -> Iterator[None]:
    """Ray of this machine."""
    pytest.importorskip("ray")
    from paceline.model.spread.rays import begin_ray, end_ray

    begun = begin_ray("the test")
    yield
    end_ray(begun)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_real_processes(real: None, tunes: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of one process; one that is killed and one that is stopped are said in one sentence."""
    with engine(tunes) as llm:
        want = texts(llm, *NAMES)
    for deed, says in ((signal.SIGKILL, "of the layers has ended"), (signal.SIGSTOP, "did not answer for 5 s")):
        with engine(tunes, layer_processes=2) as llm:
            assert texts(llm, *NAMES) == want
            group = llm.engine.model.group  # type: ignore[attr-defined]
            pid = group.got(group.actors[1].process.remote())
            monkeypatch.setattr(layers, "LAYER_SILENCE_S", 5.0)
            os.kill(pid, deed)
            with pytest.raises(LostError, match=says):
                texts(llm, *NAMES)
        monkeypatch.undo()
