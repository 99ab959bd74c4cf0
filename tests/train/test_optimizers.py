"""Muon: its steps are rotations, matrices of a batch do not mix, and vocabularies are left to AdamW."""

import pytest
import torch
from torch import nn

from paceline.train.optimizers import Muon, optimizers, orthogonalize


def test_steps_are_nearly_orthogonal() -> None:
    made = orthogonalize(torch.randn(3, 16, 8, generator=torch.Generator().manual_seed(0)))
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.5 and values.max() < 1.4


def test_a_batch_of_matrices_moves_as_each_alone() -> None:
    def moved(count: int) -> list[torch.Tensor]:
        stream = torch.Generator().manual_seed(0)
        weights = [nn.Parameter(torch.randn(6, 4, generator=stream)) for _ in range(3)][:count]
        optimizer = Muon(weights)
        for step in range(3):
            for number, weight in enumerate(weights):
                weight.grad = torch.randn(6, 4, generator=torch.Generator().manual_seed(10 * step + number))
            optimizer.step()
        return [weight.detach() for weight in weights]

    torch.testing.assert_close(moved(3)[0], moved(1)[0])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.lm_head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9)


@pytest.mark.parametrize("name, matrices", [("adamw", 0), ("muon", 1)])
def test_only_inner_matrices_are_muon_s(name: str, matrices: int) -> None:
    net = Net()
    found = optimizers(name, net, 1e-3, 0.0)
    muons = [p for it, _ in found if isinstance(it, Muon) for g in it.param_groups for p in g["params"]]
    whole = [p for it, _ in found for g in it.param_groups for p in g["params"]]
    assert len(muons) == matrices and (not muons or muons[0] is net.inner.weight)
    assert len(whole) == len({id(p) for p in whole}) == len(list(net.parameters()))
