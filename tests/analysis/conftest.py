"""A network so small that everything takes a blink."""

import pytest

from fastcaps import CapsNet, CapsNetConfig


@pytest.fixture
def small_model() -> CapsNet:
    config = CapsNetConfig.for_images(
        10, 10, 1, classes=3, stem_channels=4, stem_kernel=3, capsule_types=2, primary_kernel=3, class_dimension=4
    )
    return CapsNet(config).double()
