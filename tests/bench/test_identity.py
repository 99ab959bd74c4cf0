import pytest
import torch

from paceline.bench.identity import Difference, Referee, first_difference, next_logits
from paceline.core.params import SamplingParams
from paceline.engine.config import EngineConfig
from paceline.engine.loop import Engine
from tests.toy import ORDER, PHASES, VOCAB, Toy, table

PROMPT = [1, 2, 3, 4, 5]


def engine(logits: torch.Tensor) -> Engine:
    return Engine(Toy(logits), EngineConfig(blocks=64, block_size=4, max_requests=4, row_budget=4, patience_ms=0))


def everywhere(row: list[float]) -> torch.Tensor:
    """A table with the same logits after every context."""
    return torch.tensor(row, dtype=torch.float64).expand(PHASES, (VOCAB + 1) ** ORDER, VOCAB).clone()


def params(**wishes: object) -> SamplingParams:
    return SamplingParams.from_dict({"max_tokens": 12, "seed": 3, "ignore_eos": True, **wishes}).resolve({})


def plain(machine: Engine, wish: SamplingParams) -> list[int]:
    (request,) = machine.submit(PROMPT, wish)
    while machine.busy:
        machine.step()
    return list(request.output)


def judge(logits: torch.Tensor, wish: SamplingParams, at: int = 5, dtype: str = "float32") -> Difference | None:
    """The referee's word on plain decoding's text with another token at one place."""
    machine = engine(logits)
    text = plain(machine, wish)
    other = [*text[:at], (text[at] + 1) % VOCAB, *text[at + 1 :]]
    found = Referee(machine, dtype).difference(PROMPT, wish, text, other)
    machine.cache.check_integrity()
    assert found is None or (found.position, found.plain, found.other) == (at, text[at], other[at])
    return found


def test_first_difference() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == first_difference([1, 2, 3], [1, 2]) == 2
    assert first_difference([], [1]) == 0


@pytest.mark.parametrize("length", [1, 4, 5, 13])
def test_next_logits_are_the_models(length: int) -> None:
    machine = engine(table(0))
    tokens = [(3 * i) % VOCAB for i in range(length)]
    logits = next_logits(machine, tokens)
    assert torch.equal(logits[0], machine.model.next_logits(tokens))  # type: ignore[attr-defined]
    machine.cache.check_integrity()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_equal_texts(temperature: float) -> None:
    machine, wish = engine(table(0)), params(temperature=temperature)
    text = plain(machine, wish)
    assert Referee(machine, "float32").difference(PROMPT, wish, text, text) is None


def test_a_real_difference_is_found() -> None:
    found = judge(table(0), params(temperature=0.0))
    assert found and not found.near_tie and found.margin > 0.15 and found.boundary is None


def test_the_margin_is_that_of_the_raced_scores() -> None:
    """At temperature 1 the noise takes part: the text is the winner's, so its margin must be the gap to the second."""
    machine, wish = engine(table(0)), params(temperature=1.0)
    (request,) = machine.submit(PROMPT, wish)
    while len(request.output) < 5:
        machine.step()
    scores = machine.judge.sampler.scores([(request, ())], next_row(machine, request.tokens))
    expected = machine.judge.sampler.margin([(request, ())], scores, [request.target_noise.key(request.index())])[0]
    found = judge(table(0), wish)
    assert found and found.margin == pytest.approx(expected)


def next_row(machine: Engine, tokens: list[int]) -> torch.Tensor:
    return machine.model.next_logits(tokens)[None]  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(("gap", "dtype", "near"), [
    (5e-4, "float32", True), (5e-3, "float32", False), (0.1, "bfloat16", True), (0.1, "float32", False),
    (0.2, "bfloat16", False), (0.1, "float16", True),
])  # fmt: skip
def test_a_near_tie_is_told_by_the_gap_of_the_top_two(gap: float, dtype: str, near: bool) -> None:
    found = judge(everywhere([1.0, 4.0 - gap, 4.0, 0.0, 0.0, 0.0, 0.0]), params(temperature=0.0), dtype=dtype)
    assert found and found.near_tie is near and found.margin == pytest.approx(gap)


@pytest.mark.parametrize("wish", [{"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.2}])
@pytest.mark.parametrize("near", [True, False])
def test_a_filter_boundary_that_could_move(wish: dict[str, float], near: bool) -> None:
    """The third and the fourth token stand at the boundary of each filter, or well away from it."""
    p = torch.tensor([0.5, 0.25, 0.15, 0.06, 0.02, 0.01, 0.01], dtype=torch.float64)
    if near and "top_k" in wish:
        p[3] = p[2] * (1 - 2e-4)
    if "top_p" in wish:
        wish = {"top_p": 0.9001 if near else 0.8}
    if "min_p" in wish:
        wish = {"min_p": 0.3 * (1 + 1e-4) if near else 0.2}
    found = judge(everywhere(p.log().tolist()), params(temperature=1.0, **wish))
    assert found and found.margin > 1e-3 and found.boundary is not None
    assert found.near_tie is near


def test_a_text_that_ended_early_is_a_real_difference() -> None:
    """Even at a place where two tokens tie: stopping is not a matter of rounding."""
    machine, wish = engine(everywhere([1.0, 4.0, 4.0, 0.0, 0.0, 0.0, 0.0])), params(temperature=0.0)
    text = plain(machine, wish)
    found = Referee(machine, "float32").difference(PROMPT, wish, text, text[:-1])
    assert found and not found.near_tie and found.other is None
