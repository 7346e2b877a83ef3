"""Settings for all tests: reproducible, and as many threads as cores, which tests side by side share."""

import os

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("fastcaps", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("fastcaps")

_SIDE_BY_SIDE = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if _SIDE_BY_SIDE > 1:
    torch.set_num_threads(max(1, torch.get_num_threads() // _SIDE_BY_SIDE))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
