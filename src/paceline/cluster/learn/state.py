"""State of a training run in a file, so that the same command goes on where it ended."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.errors import InputError


def weights(network: nn.Module) -> dict[str, Tensor]:
    """A copy of the network's weights."""
    return {name: weight.clone() for name, weight in network.state_dict().items()}


def keep(
    path: Path, network: nn.Module, optimiser: torch.optim.Optimizer, rng: np.random.Generator, rest: Mapping[str, Any]
) -> None:
    """Write all that a run needs to go on; the file is whole or the one before."""
    made = path.with_name(path.name + ".part")
    torch.save(
        {
            "network": network.state_dict(),
            "optimiser": optimiser.state_dict(),
            "rng": rng.bit_generator.state,
            "rest": dict(rest),
        },
        made,
    )
    made.replace(path)


def go_on(
    path: Path, network: nn.Module, optimiser: torch.optim.Optimizer, rng: np.random.Generator, seed: int
) -> dict[str, Any]:
    """Take up the state in a file and return the rest of it. InputError for a file of another training or seed."""
    try:
        found = torch.load(path, weights_only=True)
        network.load_state_dict(found["network"])
        optimiser.load_state_dict(found["optimiser"])
        rng.bit_generator.state = found["rng"]
        rest: dict[str, Any] = found["rest"]
    except Exception as error:  # the library raises many types
        raise InputError(f"{path} is no state of this training; remove it to start again.") from error
    if rest.get("seed", seed) != seed:
        raise InputError(f"{path} is of seed {rest['seed']}, not {seed}; give that seed, or remove it to start again.")
    return rest
