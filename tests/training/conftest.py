"""A data set and a network so small that an epoch takes a blink."""

import pytest
import torch

from fastcaps.data import Augmentation, DataSet, Split
from fastcaps.nn import CapsNetConfig


def make_data(seed: int = 0, classes: int = 3, train: int = 48, test: int = 30) -> DataSet:
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randint(0, 200, (classes, 1, 12, 12), generator=generator)

    def split(count: int) -> Split:
        labels = torch.arange(count) % classes
        noise = torch.randint(0, 56, (count, 1, 12, 12), generator=generator)
        images = (patterns[labels] + noise).to(torch.uint8)
        return Split(labels, lambda indices: images[indices])

    return DataSet(
        name="patterns",
        class_names=tuple(f"pattern {k}" for k in range(classes)),
        image_shape=(1, 12, 12),
        train=split(train),
        test=split(test),
        provenance={"kind": "generated", "seed": seed},
        augmentation=Augmentation(shift=1),
    )


@pytest.fixture
def data() -> DataSet:
    return make_data()


@pytest.fixture
def config() -> CapsNetConfig:
    return small_config()


def small_config() -> CapsNetConfig:
    return CapsNetConfig.for_images(
        12,
        12,
        1,
        classes=3,
        stem_channels=8,
        stem_kernel=5,
        capsule_types=4,
        lower_dimension=4,
        primary_kernel=3,
        class_dimension=6,
        decoder=(8,),
        class_names=("pattern 0", "pattern 1", "pattern 2"),
    )
