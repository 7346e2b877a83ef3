"""A tiny run trained on arrays, which no name leads back to: every workflow gets the data again."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fastcaps import CapsNet, workflows
from fastcaps.data import DataSet, load
from fastcaps.training import Trainer, TrainSettings


@pytest.fixture(scope="session")
def data() -> DataSet:
    digits = load("digits")
    train, test = (
        (split.images(torch.arange(count)), split.labels[:count])
        for split, count in ((digits.train, 700), (digits.test, 100))
    )
    return DataSet.from_arrays(*train, *test, name="few digits")


@pytest.fixture(scope="session")
def run(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that holds out 100 images, with its coefficients."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    torch.manual_seed(0)
    tiny: dict[str, Any] = {
        "stem_channels": 6,
        "capsule_types": 3,
        "lower_dimension": 4,
        "class_dimension": 6,
        "decoder": (8,),
    }
    settings = TrainSettings(epochs=1, batch_size=64, warmup=5, validation=100)
    Trainer(CapsNet(data.config(**tiny)), data, settings, folder).fit()
    workflows.accumulate(folder, data=data)
    return folder
