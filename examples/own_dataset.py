"""Your own images from a `torch.utils.data.Dataset`, through the paper's network.

    python examples/own_dataset.py

`DataSet.from_torch` makes a data set of fastcaps, and the workflows do the rest: train, accumulate, evaluate, export,
predict. The images here are drawn: circles, squares and crosses of 64×64 pixels. A strided stem keeps the number of
capsules near that of the paper's network.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fastcaps import workflows
from fastcaps.data import DataSet
from fastcaps.runtime import load

SIZE = 64
NAMES = ("circle", "square", "cross")
EPOCHS = 3


class Shapes(Dataset[tuple[Tensor, int]]):
    """Images ``(3, 64, 64)`` between 0 and 1, with their class; the same number is always the same image."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        """Number of images."""
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One image and its label."""
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        label = index % len(NAMES)
        x, y, radius = (torch.rand(3, generator=random) * torch.tensor([8, 8, 8]) + torch.tensor([28, 28, 14])).tolist()
        rows, columns = torch.meshgrid(torch.arange(SIZE) - y, torch.arange(SIZE) - x, indexing="ij")
        inside = {
            "circle": rows.square() + columns.square() < radius**2,
            "square": torch.maximum(rows.abs(), columns.abs()) < 0.85 * radius,
            "cross": (torch.minimum(rows.abs(), columns.abs()) < radius / 4)
            & (torch.maximum(rows.abs(), columns.abs()) < radius),
        }[NAMES[label]]
        color = 0.4 + 0.6 * torch.rand(3, 1, 1, generator=random)
        noise = 0.1 * torch.rand(3, SIZE, SIZE, generator=random)
        return (inside * color + noise).clamp(0, 1), label


def main(out: str = "runs/shapes") -> None:
    """Train, accumulate, evaluate, export and classify."""
    data = DataSet.from_torch(Shapes(480, seed=1), Shapes(120, seed=2), class_names=NAMES, name="shapes")
    training = workflows.train(
        data, out, epochs=EPOCHS, batch_size=32, warmup=50, stem="strided", stem_channels=16, capsule_types=8
    )
    print(training)
    # A data set that was made in Python can't be loaded by its name: pass it again.
    workflows.accumulate(out, data=data)
    evaluation = workflows.evaluate(out, data=data)
    for name in ("dynamic", "uniform", "fast"):
        print(f"{name}: test accuracy {evaluation.variants[name].accuracy:.1%}")

    exported = workflows.export(out, Path(out) / "shapes.onnx", data=data)
    predictor = load(exported.file)  # NumPy and ONNX Runtime only
    images = data.test.images(torch.arange(6))  # bytes (b c h w)
    print("ONNX:", [NAMES[label] for label in predictor.predict(images.numpy())])


if __name__ == "__main__":
    main()
