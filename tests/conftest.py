"""Settings for all tests: reproducible, and as many threads as cores."""

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("fastcaps", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("fastcaps")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
