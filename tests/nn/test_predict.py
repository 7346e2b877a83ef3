"""`predict` of networks and of exported files: whatever a user has of images."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from fastcaps import CapsNet, CapsNetConfig, export, fold
from fastcaps.runtime import load

CONFIG = CapsNetConfig.for_images(
    height=12,
    width=12,
    channels=3,
    classes=3,
    resize=(14, 16),
    class_names=("ant", "bee", "cat"),
    stem_channels=4,
    stem_kernel=5,
    primary_kernel=3,
    capsule_types=2,
    decoder=(4,),
)


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(0).integers(0, 256, (5, 3, 14, 16), np.uint8)


@pytest.fixture(scope="module")
def networks(pixels, tmp_path_factory):
    torch.manual_seed(0)
    model = CapsNet(CONFIG).eval()
    fast = fold(model, "uniform")
    file = tmp_path_factory.mktemp("file") / "m.onnx"
    export(fast, file, torch.from_numpy(pixels[:, :, 1:13, 2:14].copy()), threads=1)
    return {"dynamic": model, "fast": fast, "file": load(file, threads=1)}


@pytest.mark.parametrize("kind", ["dynamic", "fast", "file"])
def test_everything_is_prepared_alike(networks, pixels, kind, tmp_path):
    network = networks[kind]
    cropped = pixels[:, :, 1:13, 2:14]
    expected = network(torch.from_numpy(cropped) if kind != "file" else cropped).lengths.argmax(1).tolist()
    pictures = [Image.fromarray(image.transpose(1, 2, 0)) for image in pixels]
    pictures[0].save(tmp_path / "0.png")
    floats = (cropped / 255).astype(np.float32)
    for images in (
        cropped,
        pixels,
        floats,
        torch.from_numpy(pixels),
        torch.from_numpy(floats).double(),
        pictures,
        [str(tmp_path / "0.png"), pictures[1], torch.from_numpy(floats[2]), cropped[3:5]],
    ):
        assert network.predict(images).tolist() == expected
    assert network.predict(tmp_path / "0.png").tolist() == expected[:1]
    assert network.predict(cropped[0]).tolist() == expected[:1]
    assert network.predict(pictures, names=True) == [CONFIG.class_names[k] for k in expected]
    assert network.predict([]).tolist() == []


@pytest.mark.parametrize("kind", ["dynamic", "file"])
def test_what_is_refused(networks, pixels, kind):
    predict = networks[kind].predict
    floats = pixels[:, :, 1:13, 2:14].astype(np.float32)
    for images, message in (
        (floats, "images have values from 0 to 255, expected floats between 0 and 1, or uint8 .*: divide by 255"),
        (torch.from_numpy(floats / 255 - 0.5), "images have values from -0.5 to 0.5, expected floats between 0 and 1"),
        (pixels.astype(np.int64), "images are int64, expected floating-point between 0 and 1, or uint8"),
        (pixels[..., :5], r"images have shape \(5, 3, 14, 5\), expected \(batch, 3, 12, 12\)"),
        ([[1.0, 2.0]], "an image is list, expected a tensor, an array, a Pillow image or the path of a file"),
        ("missing.png", "missing.png"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            predict(images)


def test_gray_images_need_no_channel(networks):
    torch.manual_seed(0)
    network = CapsNet(dataclasses.replace(CONFIG, channels=1, resize=None))
    images = torch.rand(4, 1, 12, 12)
    expected = network.predict(images).tolist()
    assert network.predict(images[:, 0]).tolist() == expected
    assert network.predict(images[0, 0]).tolist() == expected[:1]
    assert network.predict(Image.fromarray((images[0, 0] * 255).byte().numpy())).tolist() == expected[:1]


def test_light_and_dark_of_pictures_are_swapped_where_their_edge_says_so(tmp_path):
    """As the command line does it; arrays are taken as they are."""
    config = dataclasses.replace(CONFIG, channels=1, resize=None)
    torch.manual_seed(1)
    model = CapsNet(config).eval()
    model.provenance["background"] = 0.0
    model.save_pretrained(tmp_path / "model")
    images = torch.randint(0, 256, (40, 12, 12), dtype=torch.uint8)
    images[:, [0, -1]] = images[:, :, [0, -1]] = 255
    taken, swapped = model.predict(images), model.predict(255 - images)
    assert not torch.equal(taken, swapped)
    export(model, tmp_path / "m.onnx", images[:2, None], threads=1, background=0.0)
    for network in (CapsNet.from_pretrained(tmp_path / "model"), load(tmp_path / "m.onnx", threads=1)):
        pictures = [Image.fromarray(image.numpy()) for image in images]
        assert network.predict(pictures).tolist() == swapped.tolist()
        assert network.predict(pictures, invert="no").tolist() == taken.tolist()
        assert network.predict([255 - np.asarray(one) for one in pictures]).tolist() == swapped.tolist()
        with pytest.raises(ValueError, match="invert is 'maybe', expected one of auto, yes, no"):
            network.predict(pictures, invert="maybe")  # type: ignore[call-overload]


def test_prediction_changes_no_statistics():
    torch.manual_seed(0)
    model = CapsNet(dataclasses.replace(CONFIG, resize=None, batch_norm=True)).train()
    images = torch.rand(6, 3, 12, 12)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    together = model.predict(images)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert together.tolist() == [int(model.predict(image)) for image in images]
