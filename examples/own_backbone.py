"""Two capsule layers on a backbone of your own: train, accumulate, fold, export, and classify without PyTorch.

    python examples/own_backbone.py

Trains on the 1,797 digits that scikit-learn ships; takes half a minute on two cores.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import fastcaps
from fastcaps import functional as F
from fastcaps import nn as caps
from fastcaps.data import batches, load
from fastcaps.runtime import load as load_onnx

EPOCHS = 2


class ResidualBlock(nn.Module):
    """Two convolutions with BatchNorm and a shortcut, as in ResNet; halves height and width."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride=2)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps ``(b c h w)`` to ``(b o h/2 w/2)``."""
        return torch.relu(self.convolutions(maps) + self.shortcut(maps))


def make_network() -> nn.Sequential:
    """28×28 images to ten class capsules of 16 numbers."""
    return nn.Sequential(
        ResidualBlock(1, 16),  # (b, 16, 14, 14)
        ResidualBlock(16, 32),  # (b, 32, 7, 7)
        caps.PrimaryCapsules(32, types=8, dim=8, kernel_size=3),  # (b, 200, 8)
        caps.CapsuleLayer(200, 8, 24, 8),  # hidden capsules: (b, 24, 8)
        caps.CapsuleLayer(24, 8, 10, 16, routing=caps.DynamicRouting(3, caps.MaxMin()), bias=True),  # (b, 10, 16)
    )


def accuracy(network: nn.Module, loader: list[tuple[Tensor, Tensor]]) -> float:
    """Share of images whose longest capsule is that of their label."""
    network.eval()
    with torch.no_grad():
        correct = sum(int((network(images).norm(dim=-1).argmax(1) == labels).sum()) for images, labels in loader)
    return correct / sum(len(labels) for _, labels in loader)


def main() -> None:
    """Run everything."""
    torch.manual_seed(0)
    data = load("digits")
    view = data.augmentation.test_view
    train, test = list(batches(data.train, 128, view=view)), list(batches(data.test, 128, view=view))
    network = make_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        network.train()
        for images, labels in batches(data.train, 64, view=data.augmentation, shuffle_seed=0, epoch=epoch):
            optimizer.zero_grad()
            F.margin_loss(network(images).norm(dim=-1), labels).backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: test accuracy {accuracy(network, test):.1%}")

    master = fastcaps.accumulate(network, train)  # one MasterCoefficients per capsule layer: {"3": …, "4": …}
    fast = fastcaps.fold(network, master, merge_batch_norm=True)  # no routing loop, no BatchNorm
    uniform = fastcaps.fold(network, "uniform")  # the baseline: no routing at all
    for name, variant in {"dynamic": network, "folded": fast, "uniform": uniform}.items():
        print(f"{name}: test accuracy {accuracy(variant, test):.1%}")

    images, labels = test[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.onnx"
        fastcaps.export(fast, path, example=images[:4], class_names=data.class_names)
        predictor = load_onnx(path)  # NumPy and ONNX Runtime only
        answers = predictor.predict(images.numpy())
    print(f"ONNX: {(answers == labels.numpy()).mean():.1%} of {len(labels)} images")


if __name__ == "__main__":
    main()
