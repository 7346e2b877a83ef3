"""Your own images from a `torch.utils.data.Dataset`, through the paper's network.

    python examples/own_dataset.py

The images here are drawn: circles, squares and crosses of 64×64 pixels. A strided stem makes them small, so that the
network has about as many capsules as the paper's.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import fastcaps
from fastcaps import functional as F
from fastcaps.runtime import load

SIZE = 64
NAMES = ("circle", "square", "cross")
EPOCHS = 5


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


def main() -> None:
    """Train, accumulate, fold, export."""
    torch.manual_seed(0)
    train = DataLoader(Shapes(600, seed=1), batch_size=32, shuffle=True)
    test = DataLoader(Shapes(300, seed=2), batch_size=100)
    config = fastcaps.CapsNetConfig.for_images(
        SIZE, SIZE, 3, classes=3, class_names=NAMES, stem="strided", stem_channels=32, capsule_types=8
    )
    print(f"{len(config.stem_layers)} strided convolution(s) in front, {config.lower_capsules:,} lower capsules")
    model = fastcaps.CapsNet(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    # Max-Min needs a slow start: at full rate the first steps make all capsules long, where squash has no slope.
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.02, total_iters=50)
    for epoch in range(EPOCHS):
        for images, labels in train:
            optimizer.zero_grad()
            F.margin_loss(model(images).lengths, labels).backward()
            optimizer.step()
            warmup.step()
        print(f"epoch {epoch + 1} done")

    fast = fastcaps.fold(model, fastcaps.accumulate(model, train))  # a DataLoader is an iterable of (images, labels)
    for name, network in {"dynamic": model, "folded": fast}.items():
        correct = sum(int((network.predict(images) == labels).sum()) for images, labels in test)
        print(f"{name}: test accuracy {correct / 300:.1%}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shapes.onnx"
        pictures = (next(iter(test))[0] * 255).round().byte()  # an exported network takes bytes
        fastcaps.export(fast, path, example=pictures)
        predictor = load(path)
        print(f"ONNX: {[NAMES[k] for k in predictor.predict(pictures[:6].numpy())]}")


if __name__ == "__main__":
    main()
