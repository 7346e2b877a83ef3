"""Settings for all tests: reproducible, in one thread, slow files first."""

import os
from collections import Counter

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("fastcaps", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("fastcaps")

# Tensors are so small here that a second thread only waits, also in processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start files with slow tests first, so that none is left over for one worker while the others have nothing."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
