"""Networks in torch that forecast the whole horizon at once; seeded, so that a run can be repeated."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..series import Floats

if TYPE_CHECKING:
    from torch import nn

TSCI_STEPS = 150
TSCI_RATE = 5e-3


def n_linear(history: Floats, horizon: int, period: int, lags: int) -> Floats:
    """N-Linear (Zeng et al. 2023): one linear layer on values relative to the newest."""
    from torch import nn

    return _direct(lambda: nn.Linear(lags, horizon), history, horizon, lags, seed=0)


def lstm(history: Floats, horizon: int, period: int, lags: int) -> Floats:
    """One recurrent layer of 24 units, read out at the last value."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTM(1, 24, batch_first=True)
            self.out = nn.Linear(24, horizon)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen: torch.Tensor = self.cell(x[..., None])[0][:, -1]
            made: torch.Tensor = self.out(seen)
            return made

    return _direct(Net, history, horizon, lags, seed=0)


def _direct(make: "Callable[[], nn.Module]", history: Floats, horizon: int, lags: int, seed: int) -> Floats:
    """Trains on every (lags, horizon) stretch of the history, relative to its newest value, by AdamW."""
    import torch

    if len(history) < 2 * lags + horizon:
        need = 2 * lags + horizon
        raise ValueError(f"{lags} lags and {horizon} steps need {need} values or more, not {len(history)}.")
    level, spread = history.mean(), history.std() or 1.0
    scaled = (history - level) / spread
    rows = sliding_window_view(scaled, lags + horizon)
    data = torch.tensor(rows - rows[:, lags - 1 : lags], dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = make()
        optimiser = torch.optim.AdamW(net.parameters(), lr=TSCI_RATE, weight_decay=0.01)
        for _ in range(TSCI_STEPS):
            batch = data[torch.randint(len(data), (64,))]
            loss = torch.nn.functional.smooth_l1_loss(net(batch[:, :lags]), batch[:, lags:])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    last = torch.tensor(scaled[-lags:] - scaled[-1], dtype=torch.float32)[None]
    with torch.inference_mode():
        made = net(last)[0].numpy().astype(np.float64)
    return np.asarray(level + spread * (made + scaled[-1]))
