"""Options that split a model over processes are refused alike, before anything is loaded."""

from typing import Any

import pytest

from paceline import LLM, InputError
from paceline.core.errors import RefusalError

SPLITS = {"expert_parallel": "expert_table", "layer_processes": "layer_counts", "tensor_parallel": None}


@pytest.mark.parametrize("option", SPLITS)
def test_what_is_wrong_is_said(option: str) -> None:
    def refused(error: type[Exception], match: str, **options: Any) -> None:
        with pytest.raises(error, match=match):
            LLM(**options)

    for count in (0, 1000):
        refused(InputError, f"^{option} is {count}, but it must be 1 to [0-9]+ processes", **{option: count})
    refused(RefusalError, f"^{option} and overlap shared cannot be combined", **{option: 2}, overlap="shared")
    if (only := SPLITS[option]) is not None:
        refused(InputError, f"^{only} is given, but {option} is 1; say how many processes", **{only: "a.json"})
