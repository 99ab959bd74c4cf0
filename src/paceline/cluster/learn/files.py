"""Files of trained policies: weights in safetensors."""

from pathlib import Path
from typing import TypeVar

from safetensors.torch import load_file
from torch import nn

from paceline.core.errors import InputError

N = TypeVar("N", bound=nn.Module)


def loaded(network: N, path: Path, what: str) -> N:
    """The network with the weights of the file. InputError for a file that does not hold them; `what` it should be."""
    try:
        network.load_state_dict(load_file(path))
    except Exception as error:  # the library raises many types
        raise InputError(f"{path} is not {what}.") from error
    return network
