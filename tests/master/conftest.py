"""A network so small that a pass over some images takes a blink."""

import pytest

from fastcaps import CapsNet, CapsNetConfig


@pytest.fixture
def model() -> CapsNet:
    return CapsNet(
        CapsNetConfig.for_images(
            10,
            10,
            1,
            classes=3,
            stem_channels=4,
            stem_kernel=3,
            capsule_types=2,
            primary_kernel=3,
            class_dimension=4,
        )
    )
