"""Placement of experts by routes: the best one on small cases, balance kept, no step worse, bytes by the formula."""

from itertools import combinations
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from paceline.cli import app
from paceline.cluster.experts.cocluster import balanced, cocluster, in_turn, local_share, settle
from paceline.cluster.experts.profile import account, table_of
from paceline.cluster.experts.routes import RouteRecord
from paceline.model.spread.table import RouteTable, read_table
from tests.tiny import CORPUS, tiny_checkpoint


def clustered(seed: int, tokens: int = 40, experts: int = 8, groups: int = 2) -> torch.Tensor:
    """Counts in which each token uses mostly the experts of one hidden group."""
    stream = torch.Generator().manual_seed(seed)
    group = torch.randperm(experts, generator=stream) % groups
    mine = torch.randint(groups, (tokens, 1), generator=stream)
    return torch.randint(1, 4, (tokens, experts), generator=stream) + 8.0 * (group[None] == mine)


def held(counts: torch.Tensor, place: torch.Tensor, devices: int) -> torch.Tensor:
    return torch.zeros(devices).index_add_(0, place, counts.sum(0))


@pytest.mark.parametrize("seed", range(6))
def test_the_best_placement_of_eight_experts_is_found(seed: int) -> None:
    """Next to all 70 halves that keep the balance; clustered counts, then counts without any structure."""
    noise = torch.rand(30, 8, generator=torch.Generator().manual_seed(seed))
    for counts, close in ((clustered(seed), 1.0), (noise, 0.99)):
        found = cocluster(counts, 2, slack=0.3)
        most = max(1.3 * float(counts.sum()) / 2, float(held(counts, balanced(counts.sum(0), 2), 2).max()))
        assert float(held(counts, found, 2).max()) <= most * (1 + 1e-6)
        assert torch.bincount(found).tolist() == [4, 4]
        best = 0.0
        for half in combinations(range(8), 4):
            place = torch.tensor([int(e in half) for e in range(8)])
            if float(held(counts, place, 2).max()) <= most:
                best = max(best, local_share(counts, place, 2))
        assert local_share(counts, found, 2) >= close * best * (1 - 1e-6)


def test_no_step_of_the_alternation_is_worse() -> None:
    counts = clustered(3, 200, 16, 4)
    for start in (in_turn(16, 4), balanced(counts.sum(0), 4)):
        path = settle(counts, start, 4, float("inf"))
        shares = [local_share(counts, place, 4) for place in path]
        assert len(shares) > 1 and shares == sorted(shares)


def test_balanced_packing_is_eplbs() -> None:
    """The order and the places of DeepSeek's rule, worked by hand; sizes that differ by one where they must."""
    assert balanced(torch.tensor([9.0, 1, 8, 2, 7, 3]), 2).tolist() == [0, 1, 1, 0, 1, 0]
    assert sorted(torch.bincount(balanced(torch.rand(7), 3)).tolist()) == [2, 2, 3]


def routed(tokens: torch.Tensor, affinity: torch.Tensor, noise: float, stream: torch.Generator) -> torch.Tensor:
    """Two experts for each token: mostly its own, now and then any."""
    any_two = torch.rand(len(tokens), len(affinity[0]), generator=stream)
    scores = affinity[tokens] + noise * any_two
    return scores.topk(2, 1).indices


def test_shares_and_bytes_of_routes_kept_apart() -> None:
    """A table made of one half brings more than twice the activations home of the other half, and what still goes
    elsewhere is what the formula says; perfect affinity leaves nothing to send."""
    stream = torch.Generator().manual_seed(0)
    affinity, devices = torch.rand(64, 16, generator=stream), 4
    affinity[:, :] += 4.0 * ((torch.randperm(16, generator=stream) % 4)[None] == (torch.arange(64) % 4)[:, None])
    tokens = torch.randint(64, (4000,), generator=stream)
    for noise, least in ((1.0, 0.9), (0.0, 1.0)):
        record = RouteRecord(tokens, {2: routed(tokens, affinity, noise, stream)}, {2: 16})
        table = table_of(record.cut(0, 2000), 64, devices, capacity=4.0)
        mine = account(record.cut(2000, 4000), table, 50)[2]
        plain = account(record.cut(2000, 4000), RouteTable(devices, 1.0, {2: in_turn(16, devices)}), 50)[2]
        assert mine.rows == plain.rows == 2000 and mine.pairs == 4000
        assert mine.share >= least and mine.share > 2 * plain.share
        remote = (mine.pairs - mine.local) / (plain.pairs - plain.local)
        assert remote == pytest.approx((1 - mine.share) / (1 - plain.share))
        assert plain.share == pytest.approx(1 / devices, abs=0.03)
    assert mine.copies == 0 and mine.right == mine.rows


def test_the_command_makes_a_table_that_fits_its_model(tmp_path: Path) -> None:
    model = tiny_checkpoint(tmp_path / "model", "olmoe")
    (tmp_path / "text").write_text(CORPUS * 3, encoding="utf-8")
    run = CliRunner().invoke(
        app, ["experts", str(model), str(tmp_path / "text"), "--out", str(tmp_path / "table"), "--tokens", "600"]
    )
    assert run.exit_code == 0, run.output
    assert "in turn" in run.output and "tokens kept apart" in run.output
    from paceline.model.checkpoint import read_config

    table = read_table(tmp_path / "table")
    table.check(read_config(model), 2)
    assert table.capacity == 1.25 and table.tokens.keys() == table.follows.keys() | {0, 1}
    for words, says in (
        (["--processes", "1"], "must be 2 to"), (["--capacity", "0"], "at least 1"),
        (["--processes", "9"], "has only"), (["--tokens", "3"], "needs at least"),
    ):  # fmt: skip
        bad = CliRunner().invoke(
            app, ["experts", str(model), str(tmp_path / "text"), "--out", str(tmp_path / "t"), *words]
        )
        assert bad.exit_code == 2 and says in bad.output, bad.output
