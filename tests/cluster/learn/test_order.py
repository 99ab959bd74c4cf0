"""The order network and its training."""

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.cluster.learn import reinforce
from paceline.cluster.learn.features import join
from paceline.cluster.learn.order import LearnedOrder, OrderNetwork, entropy, load, save
from paceline.cluster.learn.scenes import SCENE_KINDS, Scene, scene
from paceline.cluster.learn.state import go_on, keep, weights
from paceline.cluster.workflow.dags import StepGraph
from paceline.cluster.workflow.heft import Ranks
from paceline.cluster.workflow.predict import SecondsTable
from paceline.cluster.workflow.simulate import SimulatedJob
from paceline.core.errors import InputError


def snapshots(given: Scene, network: OrderNetwork) -> list[tuple[float, reinforce.CallGraph, torch.Tensor]]:
    drawn = reinforce.DrawnOrder(network, given.table, torch.Generator().manual_seed(0))
    given.play(drawn)
    return drawn.seen


@pytest.fixture
def network() -> OrderNetwork:
    torch.manual_seed(0)
    return OrderNetwork()


def test_it_has_hundreds_of_parameters(network: OrderNetwork) -> None:
    assert 100 < sum(weights.numel() for weights in network.parameters()) < 1000


def test_joined_graphs_score_as_they_do_alone(network: OrderNetwork) -> None:
    graphs = [what for _, what, _ in snapshots(scene(np.random.default_rng(0), jobs=4, every=10.0), network)][:30]
    alone = torch.cat([network(each) for each in graphs])
    assert torch.allclose(network(join(graphs)), alone, atol=1e-6)


def test_permuting_ready_calls_permutes_their_scores(network: OrderNetwork) -> None:
    seen = snapshots(scene(np.random.default_rng(1), jobs=6, every=8.0), network)
    _, what, _ = max(seen, key=lambda each: len(each[1].ready))
    turned = reinforce.CallGraph(
        what.features, what.parents, what.children, what.levels, what.workflow, what.decision, what.ready.flip(0),
        what.ranks.flip(0),
    )  # fmt: skip
    torch.testing.assert_close(network(turned), network(what).flip(0))


def test_only_ready_calls_are_ordered_each_once(network: OrderNetwork) -> None:
    class Checked(LearnedOrder):
        def order(self, ready, instances, now):  # type: ignore[no-untyped-def]
            out = super().order(ready, instances, now)
            assert sorted(t.id for t in out) == sorted(t.id for t in ready)
            assert all(p.finished is not None for t in out for p in t.after)
            return out

    given = scene(np.random.default_rng(2), jobs=5)
    assert len(given.play(Checked(network, given.table)).finished) == 5


def test_it_goes_by_rank_where_it_is_unsure_or_broken(network: OrderNetwork) -> None:
    given = scene(np.random.default_rng(3), jobs=8)
    heft = given.play(Ranks()).finished
    flat = LearnedOrder(network, given.table, flat=0.0)
    assert given.play(flat).finished == heft and flat.unsure > 0
    with torch.no_grad():
        network.embed.weight.fill_(float("nan"))
    assert given.play(LearnedOrder(network, given.table)).finished == heft


def test_gradients_are_those_of_finite_differences(network: OrderNetwork) -> None:
    network = network.double()
    seen = snapshots(scene(np.random.default_rng(4), jobs=4, every=10.0), OrderNetwork())[:12]
    graphs = [what for _, what, _ in seen]
    whole = join(graphs)
    whole = reinforce.CallGraph(
        whole.features.double(), *(getattr(whole, f) for f in whole.__dataclass_fields__ if f != "features")
    )
    weight = network.score[0].weight

    def loss() -> torch.Tensor:
        scores, places = reinforce.padded(network.forward(whole), [p for _, _, p in seen])
        return (reinforce.log_chance(scores, places) + 0.1 * entropy(scores)).sum()

    torch.set_default_dtype(torch.float64)
    try:
        torch.autograd.backward(loss())
        assert weight.grad is not None
        for row, column in ((0, 0), (3, 5), (11, 20)):
            with torch.no_grad():
                weight[row, column] += 1e-6
                high = loss()
                weight[row, column] -= 2e-6
                low = loss()
                weight[row, column] += 1e-6
            assert float(weight.grad[row, column]) == pytest.approx(float(high - low) / 2e-6, rel=1e-3, abs=1e-5)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_chances_of_all_orders_add_up_to_one() -> None:
    from itertools import permutations

    scores = torch.tensor([[0.3, -1.0, 2.0]])
    total = sum(float(reinforce.log_chance(scores, torch.tensor([p])).exp()) for p in permutations(range(3)))
    assert total == pytest.approx(1.0, abs=1e-6)


def test_the_baseline_is_the_mean_of_the_runs() -> None:
    times, returns = [0.0, 1.0, 3.0], [[-9.0, -5.0, -1.0], [-7.0, -5.0, 0.0]]
    rows = reinforce.baseline([(times, each) for each in returns])
    advantage = np.array(returns) - np.array(rows)
    assert np.allclose(advantage.mean(0), 0.0) and rows[0] == rows[1] == [-8.0, -5.0, -0.5]


def test_the_first_return_is_the_sum_of_completion_times() -> None:
    assert reinforce.returns([0.0, 4.0, 9.0], [(0.0, 5.0), (3.0, 9.0)]) == [-11.0, -6.0, 0.0]


def short_and_long() -> Scene:
    """Chains of long calls and single short ones, all at once: HEFT's ranks put the long ones first, which makes every
    short one wait; the mean wants the opposite."""
    chain = StepGraph(("long", "long", "long"), ((), (0,), (1,)), ((), (0.0,), (0.0,)))
    single = StepGraph(("short",), ((),), ((),))
    rng, table = np.random.default_rng(0), SecondsTable({kind: {"long": 20.0, "short": 4.0} for kind in SCENE_KINDS})
    return Scene(table, tuple(SimulatedJob(0.0, (graph.calls(rng, 0.0),)) for graph in [chain, single, single] * 4))


def test_training_improves_the_return_where_heft_is_not_optimal() -> None:
    torch.manual_seed(1)
    network, plan = OrderNetwork(), reinforce.ReinforcementPlan(episodes=4, seed=1)
    torch.nn.init.zeros_(network.rule.weight)  # else it begins with the rule that is best here
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-2)
    given, generator = short_and_long(), torch.Generator().manual_seed(1)
    ratios = [reinforce.step(network, optimiser, given, plan, generator, bonus=0.0) for _ in range(40)]
    assert np.mean(ratios[-5:]) < np.mean(ratios[:5]) - 0.05
    assert given.play(LearnedOrder(network, given.table)).mean() < given.play(Ranks()).mean()


def test_weights_are_kept_in_a_file(network: OrderNetwork, tmp_path: Path) -> None:
    save(network, tmp_path / "o.safetensors")
    again = load(tmp_path / "o.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters()))
    (tmp_path / "bad").write_text("no")
    with pytest.raises(InputError, match="is not an order"):
        load(tmp_path / "bad")


def test_a_run_goes_on_from_its_state_and_from_no_others(tmp_path: Path) -> None:
    path, made = tmp_path / "run.state", [OrderNetwork(), OrderNetwork()]
    first, second = (torch.optim.Adam(each.parameters(), lr=0.1) for each in made)
    torch.autograd.backward(torch.stack([each.square().sum() for each in made[0].parameters()]).sum())
    first.step()
    rng, other = np.random.default_rng(1), np.random.default_rng(2)
    keep(path, made[0], first, rng, {"used": 3.0, "best": (0.5, weights(made[0])), "seed": 4})
    found = go_on(path, made[1], second, other, 4)
    assert found["used"] == 3.0 and found["best"][0] == 0.5 and rng.uniform() == other.uniform()
    for mine, theirs in zip(made[0].parameters(), made[1].parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(InputError, match="of seed 4, not 5"):
        go_on(path, made[1], second, other, 5)
    path.write_bytes(b"no")
    with pytest.raises(InputError, match="no state of this training"):
        go_on(path, made[1], second, other, 4)
