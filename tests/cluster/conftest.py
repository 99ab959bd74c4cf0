"""A test of this folder that hangs ends sooner than others of the suite: most of them wait for something."""

from pathlib import Path

import pytest

LONGEST_CLUSTER_TEST_S = 300
"""Many times what the slowest takes alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("full") is None:
            item.add_marker(pytest.mark.timeout(LONGEST_CLUSTER_TEST_S))
