"""`judge`: at threshold 1 it is `exact`, at 0 every draft stands, and between it is monotone; it needs consent."""

from typing import Any

import pytest
import torch

from paceline.core.errors import RefusalError
from paceline.core.params import SamplingParams
from paceline.draft.correctness import Correctness
from paceline.engine.pair import check_pair
from tests.lossless.cases import Setting, Wish, run
from tests.toy import VOCAB


def made(threshold: float, temperature: float, **more: Any) -> tuple[list[list[int]], int, int, int]:
    """(outputs, drafted tokens, accepted tokens, passes) of some requests under `judge`."""
    engine = Setting(draft_noise=1.0, nodes={"model": 4}, blocks=60, prefix_cache=False).engine()
    head = engine.components["judge"]
    assert isinstance(head, Correctness)
    head.threshold = threshold
    with torch.no_grad():
        head.out.weight.copy_(torch.tensor([[0.3, 0.002]]))
        head.out.bias.fill_(-1.2)
    verifier = more.pop("verifier", "judge")
    for name, value in more.items():
        setattr(head, name, value)
    wishes = [
        Wish([seed % VOCAB, 2], SamplingParams(temperature=temperature, top_k=0, top_p=1.0, seed=seed, max_tokens=24,
             ignore_eos=True, drafter="model", verifier=verifier).resolve({}))
        for seed in range(12)
    ]  # fmt: skip
    groups = [r for group in run(engine, wishes) for r in group]
    assert engine.drafters.errors == []
    stats = [r.stats for r in groups]
    return ([r.output for r in groups], sum(s.drafted for s in stats), sum(s.accepted for s in stats),
            sum(s.passes for s in stats))  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_threshold_one_is_exact_and_zero_accepts_all(temperature: float) -> None:
    exact, *_ = made(1.0, temperature, verifier="exact")
    assert made(1.0, temperature)[0] == exact
    outputs, drafted, accepted, _ = made(0.0, temperature)
    assert accepted == drafted > 0 and outputs != exact


def test_a_lower_threshold_accepts_no_less() -> None:
    passes = [made(threshold, 0.0)[3] for threshold in (1.0, 0.7, 0.5, 0.3, 0.0)]
    assert passes == sorted(passes, reverse=True) and passes[0] > passes[2] > passes[-1]


def test_top_k_one_is_exact_for_greedy_requests() -> None:
    assert made(0.5, 0.0, rule="top_k", top_k=1)[0] == made(1.0, 0.0, verifier="exact")[0]
    assert made(0.5, 0.0, rule="top_k", top_k=3)[3] < made(0.5, 0.0, rule="top_k", top_k=1)[3]


def test_a_ratio_of_one_is_exact_for_greedy_requests_and_of_zero_accepts_all() -> None:
    assert made(0.5, 0.0, rule="ratio", ratio=1.0)[0] == made(1.0, 0.0, verifier="exact")[0]
    _, drafted, accepted, _ = made(1.0, 0.0, rule="ratio", ratio=0.0)
    assert accepted == drafted > 0
    passes = [made(1.0, 0.0, rule="ratio", ratio=ratio)[3] for ratio in (1.0, 0.5, 0.1)]
    assert passes == sorted(passes, reverse=True) and passes[0] > passes[-1]


def test_forbidden_tokens_do_not_stand() -> None:
    engine = Setting(draft_noise=1.0, nodes={"user": 4}).engine(user=lambda tokens, nodes: [1] * nodes)
    head = engine.components["judge"]
    assert isinstance(head, Correctness)
    head.threshold = 0.0
    params = SamplingParams(temperature=0.0, seed=1, max_tokens=20, ignore_eos=True, allowed_tokens=(0, 2, 3),
                            drafter="user", verifier="judge").resolve({})  # fmt: skip
    with pytest.raises(RefusalError):
        engine.submit([0], params)  # its drafts are trees
    from dataclasses import replace

    (request,) = run(engine, [Wish([0], replace(params, drafter="model"))])[0]
    assert set(request.output) <= {0, 2, 3}


def test_an_engine_does_not_judge_unasked() -> None:
    with pytest.raises(RefusalError, match="name it in the requests"):
        check_pair("model", "judge", {"draft", "judge"})
    setting = Setting()
    engine = setting.engine()
    engine.drafters.have = {*engine.drafters.have} - {"judge"}
    with pytest.raises(RefusalError, match="needs a judge next to the draft model"):
        engine.submit([1], SamplingParams(drafter="model", verifier="judge", seed=0).resolve({}))


def test_a_config_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="threshold"):
        Correctness(4, threshold=1.5)
