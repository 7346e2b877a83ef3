"""The files as published, where ``$FASTCAPS_DATA`` has them."""

from pathlib import Path

import pytest
import torch

from fastcaps.data import SETS, load
from fastcaps.data.amat import lies_down

_MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
_MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
_COUNTS = {
    "mnist": (_MNIST, _MNIST_TEST),
    "fashion_mnist": ([6000] * 10, [1000] * 10),
    "cifar10": ([5000] * 10, [1000] * 10),
}


def real(name, folder):
    if not (Path(folder) / name).is_dir():
        pytest.skip(f"$FASTCAPS_DATA has no {name}")
    return load(name, data_dir=folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(_COUNTS))
def test_published_counts(real_data, name):
    data = real(name, real_data)
    assert (len(data.train), len(data.test)) == (SETS[name].train, SETS[name].test)
    assert torch.bincount(data.train.labels).tolist() == _COUNTS[name][0]
    assert torch.bincount(data.test.labels).tolist() == _COUNTS[name][1]
    assert not data.generated
    if name == "mnist":
        assert data.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


def _everything(data):
    return [split.images(torch.arange(len(split)))[:, 0] for split in (data.train, data.test)]


@pytest.mark.slow
def test_generated_variants(real_data):
    mnist = torch.cat(_everything(real("mnist", real_data)))
    digits = {row.tobytes() for row in mnist.numpy()}
    assert len(digits) == 70_000
    rotated, background = (load(name, data_dir=real_data) for name in ("rotated_mnist", "background_mnist"))
    for data in (rotated, background):
        assert data.generated
        assert (len(data.train), len(data.test)) == (12_000, 50_000)
        together = torch.cat(_everything(data)).numpy()
        assert len({row.tobytes() for row in together}) == 62_000
    # All round: turned ones lie in every direction, so their mean has no preferred one.
    ones = _everything(rotated)[1][rotated.test.labels == 1].double().mean(0)
    assert (ones - ones.T).abs().max() < 0.1 * ones.max()
    # The digit is in front: where its mean is bright, so is the image.
    backs = _everything(background)[1].double().mean(0)
    assert backs[8:20, 10:18].mean() > 1.2 * backs[:3].mean()
    assert backs[:3].mean() > 50
    # And upright, which is how a file of 2007 is told from its transpose.
    images, labels = _everything(background)[0].numpy()[:, None], background.train.labels.numpy()
    assert not lies_down(images, labels)
    assert lies_down(images.transpose(0, 1, 3, 2), labels)
