"""Small networks, images as bytes, and files exported from them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fastcaps import CapsNet, CapsNetConfig, FastCapsNet, fold
from fastcaps.exporting import export


def small_config(**changes: Any) -> CapsNetConfig:
    sizes: dict[str, Any] = {
        "height": 11,
        "width": 10,
        "classes": 3,
        "stem_channels": 6,
        "stem_kernel": 3,
        "capsule_types": 4,
        "lower_dimension": 5,
        "primary_kernel": 3,
        "class_dimension": 7,
        "decoder": (8,),
    }
    return CapsNetConfig(**(sizes | changes))


def networks(config: CapsNetConfig) -> dict[str, CapsNet | FastCapsNet]:
    model = CapsNet(config).eval()
    # They start at zero, which would hide what happens to them.
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return {"dynamic": model, "fast": fold(model, torch.rand(config.lower_capsules, config.classes))}


def some_images(config: CapsNetConfig, count: int = 20) -> torch.Tensor:
    return torch.randint(0, 256, (count, config.channels, config.height, config.width), dtype=torch.uint8)


def exported(network: CapsNet | FastCapsNet, path: Path, **options: Any) -> Path:
    images = some_images(network.config, 40)
    # Labeled by the network itself: it is right about all of them.
    tests = [(images, network(images).lengths.argmax(1))]
    defaults: dict[str, Any] = {"calibration": [images], "threads": 1, "background": 0.0}
    export(network, path, tests=tests, **(defaults | options))
    return path


@pytest.fixture
def fast() -> FastCapsNet:
    network = networks(small_config())["fast"]
    assert isinstance(network, FastCapsNet)
    return network


@pytest.fixture
def model_file(fast: FastCapsNet, tmp_path: Path) -> Path:
    return exported(fast, tmp_path / "model.onnx")
