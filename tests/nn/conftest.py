"""Small networks, quick to make."""

import pytest

from fastcaps import CapsNet, CapsNetConfig


@pytest.fixture
def config() -> CapsNetConfig:
    return CapsNetConfig.for_images(
        14,
        12,
        2,
        classes=3,
        stem_channels=6,
        stem_kernel=3,
        capsule_types=4,
        lower_dimension=5,
        primary_kernel=3,
        class_dimension=7,
        decoder=(8,),
    )


@pytest.fixture
def model(config: CapsNetConfig) -> CapsNet:
    return CapsNet(config)
