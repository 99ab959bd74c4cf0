"""Several passes in one call say what single steps say, token for token."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; it comes with torch for CUDA")

from paceline import LLM, SamplingParams
from paceline.attend.device import tensors_on
from paceline.core.warp import Warp
from paceline.engine.config import EngineConfig
from paceline.model.decoder import Decoder
from paceline.sample.drawn import drawn
from paceline.sample.noise import keys_tensor
from paceline.sample.race import perturbed
from tests.tiny import tiny_checkpoint

DEVICE = tensors_on("cuda")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


def test_draws_are_those_of_the_sampler() -> None:
    stream = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(5, 300, generator=stream)).to(DEVICE)
    logits[3] = float("-inf")
    logits[2, :299] = float("-inf")
    found = drawn(logits, [*map(Warp, (0.0, 0.7, 1.3, 0.9, 0.0))], [0, 11, 12, 13, 0]).tolist()
    noisy = perturbed((logits[1:2] / 0.7).log_softmax(-1), keys_tensor([11], DEVICE))
    assert found == [int(logits[0].argmax()), int(noisy.argmax()), 299, -1, int(logits[4].argmax())]


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
def test_a_run_says_what_single_steps_say(checkpoint: Path, drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy and sampled texts together, of different lengths, one of which ends early; fewer calls."""
    monkeypatch.setattr(EngineConfig, "patience", 1e9)  # the interpreter is slow
    texts, steps = [], []
    for runs in (False, True):
        llm = LLM(
            checkpoint, checkpoint, dtype="float32", device="cuda", blocks=64, block_size=4, drafter=drafter, nodes=2
        )
        model = llm.engine.model
        assert isinstance(model, Decoder) and {"run", "chain"} <= model.abilities
        if not runs:
            model.abilities -= {"run"}
        params = [
            SamplingParams(temperature=heat, seed=n, max_tokens=most, ignore_eos=True, stop_token_ids=stops)
            for n, (heat, most, stops) in enumerate(
                [(0.0, 7, ()), (0.9, 4, ()), (0.7, 7, texts[0][2][2:3] if texts else ())]
            )
        ]
        out = [o.token_ids for o in llm.generate(["ab ab ab ab", "Tom has 3 apples", "ab"], params)]
        texts.append(out)
        steps.append(llm.engine.timer.steps)
    assert texts[0][:2] == texts[1][:2] and texts[1][2] == texts[0][2][: len(texts[1][2])] and len(texts[1][2]) <= 3
    assert steps[1] < steps[0]


def test_a_chain_is_that_of_single_passes(checkpoint: Path) -> None:
    """By one call, and by a pass for each token."""
    texts, drafted = [], []
    for able in (True, False):
        llm = LLM(
            checkpoint, checkpoint, dtype="float32", device="cuda", blocks=64, block_size=4, drafter="model", nodes=3
        )
        draft = llm.engine.components["draft"]
        assert isinstance(draft, Decoder) and isinstance(llm.engine.model, Decoder)
        llm.engine.model.abilities -= {"run"}  # in which a chain is the proposer's
        if not able:
            draft.abilities -= {"chain"}
        params = [SamplingParams(temperature=heat, seed=5, max_tokens=6, ignore_eos=True) for heat in (0.0, 0.8)]
        out = llm.generate(["Tom has 3 apples", "def add(a"], params)
        texts.append([o.token_ids for o in out])
        drafted.append(llm.engine.desk.totals.drafters["model"].drafted)
    assert texts[0] == texts[1] and drafted[0] == drafted[1] > 0
