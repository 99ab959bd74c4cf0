"""The scan of chains and trees against one row after the other; states in a round that is refused."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from paceline.model.decoder import Decoder
from paceline.model.load import load_model
from paceline.model.recurrent import Convolved
from paceline.model.scan import Steps, ancestors_of, causal, scanned
from tests.oracle.rows import Chunk, lay_out
from tests.tiny import tiny_checkpoint

GROUPS, HEADS, VALUES, KEYS = 2, 3, 5, 4


def steps(rows: int, delta: bool, seed: int) -> Steps:
    stream = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream, dtype=torch.float64)

    key = random(GROUPS, rows, KEYS)
    return Steps(
        -3 * random(GROUPS, HEADS, rows).abs(),
        key / key.norm(dim=-1, keepdim=True),
        random(GROUPS, rows, KEYS),
        random(GROUPS, HEADS, rows, VALUES),
        random(GROUPS, HEADS, rows).sigmoid() if delta else None,
    )


def one_by_one(it: Steps, state: Tensor, parents: list[int]) -> tuple[Tensor, Tensor]:
    """y [T, G, R, P] and the states behind each row, by the definition."""
    states, made = list[Tensor](), list[Tensor]()
    for row, parent in enumerate(parents):
        kept = torch.exp(it.decay[..., row])[..., None, None] * (states[parent] if parent >= 0 else state)
        key, value = it.key[:, None, row], it.value[:, :, row]
        if it.rate is not None:
            value = it.rate[..., row, None] * (value - (kept * key[..., None, :]).sum(-1))
        states.append(kept + value[..., None] * key[..., None, :])
        made.append((states[row] * it.query[:, None, None, row]).sum(-1))
    return torch.stack(made), torch.stack(states)


@pytest.mark.parametrize("delta", [False, True], ids=["mamba", "delta"])
def test_scan_equals_paths(delta: bool) -> None:
    """Trees of up to 64 rows, a chain, and siblings in another order."""
    stream = torch.Generator().manual_seed(0)
    for seed, rows in enumerate((1, 2, 7, 16, 33, 64)):
        it, parents = (
            steps(rows, delta, seed),
            [int(torch.randint(-1, max(r, 1), (), generator=stream)) for r in range(rows)],
        )
        parents[0] = -1
        state = torch.randn(GROUPS, HEADS, VALUES, KEYS, generator=stream, dtype=torch.float64)
        for tree in (parents, list(range(-1, rows - 1))):
            got, (outputs, states) = scanned(it, state, ancestors_of(tree, state.device)), one_by_one(it, state, tree)
            torch.testing.assert_close(got.outputs(), outputs.permute(1, 2, 0, 3), rtol=1e-12, atol=1e-12)
            for row in range(rows):
                torch.testing.assert_close(got.after(row), states[row], rtol=1e-12, atol=1e-12)
        assert torch.equal(ancestors_of(list(range(-1, rows - 1)), state.device), causal(rows, state.device))


@pytest.mark.parametrize("part", ["decay", "key", "query", "value", "rate"])
def test_a_row_that_is_not_finite_spoils_those_behind_it_alone(part: str) -> None:
    for delta in {True, part == "rate"}:
        spoil(part, delta)


def spoil(part: str, delta: bool) -> None:
    clean, wrong = (steps(5, delta, 0) for _ in range(2))
    state = torch.ones(GROUPS, HEADS, VALUES, KEYS, dtype=torch.float64)
    ancestors = ancestors_of([-1, 0, 0, 1, 2], state.device)
    for number in (torch.inf, torch.nan):
        rows = getattr(wrong, part).movedim(-1 if part in ("decay", "rate") else -2, 0)
        rows[(1,) + (0,) * (rows.dim() - 1)] = number
        ours, theirs = (scanned(it, state, ancestors) for it in (wrong, clean))
        behind = ancestors[:, 1]
        assert torch.equal(ours.outputs().isnan().all(-1)[0, 0], behind)
        torch.testing.assert_close(ours.outputs()[:, :, ~behind], theirs.outputs()[:, :, ~behind])
        for row, after in enumerate(behind.tolist()):
            expected = torch.full_like(state, torch.nan) if after else theirs.after(row)
            torch.testing.assert_close(ours.after(row), expected, equal_nan=True)


def test_large_decays_do_not_overflow() -> None:
    """Between rows that are no ancestors of each other a sum of decays may be of either sign."""
    it = steps(3, False, 0)
    it.decay.copy_(torch.tensor([-2000.0, -1e-3, -2000.0]))
    state = torch.ones(GROUPS, HEADS, VALUES, KEYS, dtype=torch.float64)
    got, parents = scanned(it, state, ancestors_of([-1, -1, 1], state.device)), [-1, -1, 1]
    torch.testing.assert_close(got.outputs(), one_by_one(it, state, parents)[0].permute(1, 2, 0, 3))


def loaded(tmp_path: Path, family: str, block: int = 4) -> Decoder:
    path = tiny_checkpoint(tmp_path, family, vocab=96, layers=3, with_tokenizer=False)
    decoder = load_model(path, dtype="float64")
    decoder.allocate(32, block)
    return decoder


def held(decoder: Decoder) -> list[bytes]:
    """All bytes of states."""
    pools = decoder.states.pools
    return [part.numpy().tobytes() for pool in pools for parts in pool.tips for part in parts]


@pytest.mark.parametrize("family", ["lfm2", "bamba", "qwen3_5_text"])
def test_a_refused_round_changes_no_state(family: str, tmp_path: Path) -> None:
    """Candidates alone, in slots before the end of a block: the bytes of all states are as before. And the round after
    it, or after one that was accepted along a path, gives what the text alone gives."""
    decoder, tokens = loaded(tmp_path, family, 16), [int(t) for t in torch.arange(9, 33) * 7 % 96]
    decoder.forward(lay_out([Chunk(range(8), 0, tokens[:6])], 16))
    decoder.keep([5])
    before, shape = held(decoder), [-1, 0, 0, -1, 3, 1]
    decoder.forward(lay_out([Chunk(range(8), 6, [], [1, 2, 3, *tokens[6:8], 4], shape)], 16))
    assert held(decoder) == before
    decoder.move([9, 10], [6, 7])
    decoder.keep([7])
    assert held(decoder) == before and len(decoder.states.known) == 2
    after = decoder.forward(lay_out([Chunk(range(8), 8, tokens[8:9])], 16)).logits
    decoder.keep([])
    whole = decoder.forward(lay_out([Chunk(range(8, 16), 0, tokens[:9])], 16)).logits[-1:]
    torch.testing.assert_close(after, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", ["lfm2", "mamba2", "qwen3_next"])
def test_chunks_equal_the_whole(family: str, tmp_path: Path) -> None:
    """A text of several chunks of a scan, and states at the ends of blocks inside it, from which others go on."""
    decoder, tokens = loaded(tmp_path, family, 32), [int(t) for t in torch.arange(9, 209) ** 2 % 96]
    whole = decoder.forward(lay_out([Chunk(range(8), 0, tokens)], 32)).logits
    for end in (32, 160):
        table = [*range(end // 32), *range(16, 24)]
        again = decoder.forward(lay_out([Chunk(table, end, tokens[end:])], 32)).logits
        torch.testing.assert_close(again, whole[end:], rtol=1e-8, atol=1e-8)


def test_a_forgotten_window_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a state comes without the last inputs of its convolution."""
    tail = Convolved.tail
    monkeypatch.setattr(Convolved, "tail", lambda self, row: torch.zeros_like(tail(self, row)))
    with pytest.raises(AssertionError):
        test_chunks_equal_the_whole("mamba2", tmp_path)
