"""A network so small that everything takes a blink."""

from typing import Any

import pytest

from fastcaps import CapsNet, CapsNetConfig


def small_network(**changes: Any) -> CapsNet:
    config = CapsNetConfig.for_images(
        *(10, 10, 1), classes=3, stem_channels=4, stem_kernel=3, capsule_types=2, primary_kernel=3, class_dimension=4,
        **changes,
    )  # fmt: skip
    return CapsNet(config).double()


@pytest.fixture
def small_model() -> CapsNet:
    return small_network()
