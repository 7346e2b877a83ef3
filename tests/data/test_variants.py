import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data import tiny

from fastcaps.data import generated, load, variants
from fastcaps.data.registry import SETS


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    """A data folder with a tiny MNIST, from which tiny variants can be made."""
    root = tmp_path / "data"
    monkeypatch.setitem(SETS, "mnist", tiny.write_idx_set(root, train=60, test=20))
    for name in ("rotated_mnist", "background_mnist"):
        monkeypatch.setitem(SETS, name, dataclasses.replace(SETS[name], train=30, test=40))
    return root


def everything(split):
    return split.images(torch.arange(len(split)))


@pytest.mark.parametrize("name", ["rotated_mnist", "background_mnist"])
def test_made_once_and_the_same_every_time(mnist, monkeypatch, cache, name):
    first = load(name, data_dir=mnist)
    assert first.generated
    assert (len(first.train), len(first.test), first.image_shape) == (30, 40, (1, 28, 28))
    [images, document] = sorted((cache / "generated").iterdir(), key=lambda path: path.suffix, reverse=True)
    recorded = json.loads(document.read_text())
    assert recorded["recipe"]["seed"] == 0
    assert recorded["recipe"]["sources"] == {file.name: file.sha256 for file in tiny.files_of(SETS["mnist"])}
    assert first.provenance == {"kind": "generated", **recorded}
    written = images.read_bytes()

    with monkeypatch.context() as patch:
        patch.setattr(variants, "draw_images", None)  # not made again
        second = load(name, data_dir=mnist)
    images.unlink()
    document.unlink()
    third = load(name, data_dir=mnist)
    assert images.read_bytes() == written
    for other in (second, third):
        assert other.fingerprint == first.fingerprint
        assert torch.equal(everything(other.train), everything(first.train))
        assert torch.equal(everything(other.test), everything(first.test))
    other_seed = load(name, data_dir=mnist, seed=1)
    assert other_seed.fingerprint != first.fingerprint
    assert not torch.equal(everything(other_seed.train), everything(first.train))


def test_what_is_in_the_cache_needs_nothing_else(mnist, tmp_path):
    first = load("rotated_mnist", data_dir=mnist)
    assert load("rotated_mnist").fingerprint == first.fingerprint


def test_nothing_to_make_it_from(mnist, cache):
    with pytest.raises(FileNotFoundError) as caught:
        load("rotated_mnist")
    text = str(caught.value)
    assert text.startswith(
        "rotated_mnist is generated from mnist, or read from its own files (put "
        "mnist_all_rotation_normalized_float_train_valid.amat, mnist_all_rotation_normalized_float_test.amat "
        f"(or mnist_rotation_new.zip) into {cache / 'rotated_mnist'}, or into rotated_mnist of any folder "
        "given as data_dir or $FASTCAPS_DATA; they are published at "
        "http://www.iro.umontreal.ca/~lisa/icml2007data/mnist_rotation_new.zip); mnist is missing and could not be"
    )


def test_no_image_is_drawn_twice(mnist, monkeypatch):
    monkeypatch.setattr(variants, "rotate", lambda images, angles: images)
    data = load("rotated_mnist", data_dir=mnist)
    drawn = torch.cat([everything(data.train), everything(data.test)]).flatten(1)
    assert len(torch.unique(drawn, dim=0)) == 70


def test_turning_by_quarters_is_exact():
    images = np.random.default_rng(0).integers(0, 256, (4, 1, 28, 28), np.uint8)
    turned = variants.rotate(images, np.arange(4) * np.pi / 2)
    for k in range(4):
        assert (turned[k, 0] == np.rot90(images[k, 0], -k)).all() or (turned[k, 0] == np.rot90(images[k, 0], k)).all()


def test_turning_agrees_with_a_loop_over_pixels():
    image = np.random.default_rng(0).integers(0, 256, (28, 28), np.uint8)
    angle = 0.7
    expected = np.zeros((28, 28))
    padded = np.pad(image.astype(float), 30)
    for y in range(28):
        for x in range(28):
            dy, dx = y - 13.5, x - 13.5
            sx = np.cos(angle) * dx - np.sin(angle) * dy + 13.5 + 30
            sy = np.sin(angle) * dx + np.cos(angle) * dy + 13.5 + 30
            top, left = int(np.floor(sy)), int(np.floor(sx))
            fy, fx = sy - top, sx - left
            corners = padded[top : top + 2, left : left + 2]
            expected[y, x] = np.array([1 - fy, fy]) @ corners @ np.array([1 - fx, fx])
    turned = variants.rotate(image[None, None], np.array([angle]))[0, 0]
    # Half a gray level of rounding, and a hair for the order of operations.
    assert np.abs(turned - expected).max() <= 0.5 + 1e-9


def _photograph(path, seed, size=(60, 90)):
    tiny.save_image(path, size, color=True, value=seed)


def test_backgrounds_are_the_brighter_of_digit_and_patch(mnist, tmp_path, monkeypatch):
    photographs = tmp_path / "photographs"
    _photograph(photographs / "a.png", 1)
    _photograph(photographs / "deep" / "b.png", 2, (100, 40))
    monkeypatch.setattr(variants, "LEAST_DEVIATION", 0)
    data = load("background_mnist", data_dir=mnist, photographs=photographs)
    assert set(data.provenance["recipe"]["photographs"]) == {"a.png", "deep/b.png"}
    halves = []
    for path, cut in ((photographs / "a.png", np.s_[:, :45]), (photographs / "deep" / "b.png", np.s_[:50])):
        gray = np.asarray(Image.open(path).convert("L"))
        rest = np.s_[:, 45:] if cut == np.s_[:, :45] else np.s_[50:]
        halves.append((gray[cut], gray[rest]))
    random = np.random.default_rng(0)
    (train, train_labels), (test, test_labels) = tiny.digit_images(60), tiny.digit_images(20, 1)
    whole = (train[:, None], train_labels), (test[:, None], test_labels)
    drawn = variants.draw_images(SETS["background_mnist"], whole, random)
    for half, split in enumerate((data.train, data.test)):
        windows = [
            np.lib.stride_tricks.sliding_window_view(photograph[half], (28, 28)).reshape(-1, 28, 28)
            for photograph in halves
        ]
        patches = np.concatenate(windows)
        for image, digit in zip(everything(split).numpy()[:, 0], drawn[half][0][:, 0], strict=True):
            assert (image == np.maximum(digit, patches)).all((1, 2)).any()


def test_patches_have_texture_and_photographs_without_are_left_out(mnist, tmp_path):
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    Image.new("L", (90, 60), 200).save(photographs / "flat.png")
    with pytest.raises(
        ValueError,
        match=r"the photographs in .*photographs have no patch of 28×28 whose .* is at least 24 of 255",
    ):
        load("background_mnist", data_dir=mnist, photographs=photographs)
    _photograph(photographs / "noise.png", 3)
    data = load("background_mnist", data_dir=mnist, photographs=photographs)
    assert everything(data.train).double().std((2, 3)).min() > 24


def test_texture_is_the_standard_deviation():
    region = np.random.default_rng(0).integers(0, 100, (40, 50)).astype(np.uint8)
    region[:, 25:] //= 4
    windows = np.lib.stride_tricks.sliding_window_view(region, (28, 28))
    textured = variants.has_texture(region, (28, 28))
    assert (textured == (windows.std((2, 3)) >= variants.LEAST_DEVIATION)).all()
    assert 0 < textured.mean() < 1


def test_photographs_that_cannot_be_used(mnist, tmp_path):
    folder = tmp_path / "photographs"
    with pytest.raises(FileNotFoundError, match=r"photographs is .*photographs, which is not a folder"):
        load("background_mnist", data_dir=mnist, photographs=folder)
    folder.mkdir()
    with pytest.raises(ValueError, match=r"photographs is .*photographs, a folder without images"):
        load("background_mnist", data_dir=mnist, photographs=folder)
    _photograph(folder / "small.png", 1, (30, 40))
    with pytest.raises(ValueError, match=r"small\.png is 30×40, too small for patches of 28×28"):
        load("background_mnist", data_dir=mnist, photographs=folder)


def test_too_few_images_to_draw_from(mnist, monkeypatch):
    monkeypatch.setitem(SETS, "rotated_mnist", dataclasses.replace(SETS["rotated_mnist"], train=50))
    with pytest.raises(ValueError, match=r"^rotated_mnist needs 90 different images, mnist has 80 of them$"):
        load("rotated_mnist", data_dir=mnist)


@pytest.mark.parametrize("damage", ["content", "truncated", "no images", "not json", "other recipe"])
def test_a_damaged_cache_is_generated_again(mnist, cache, damage):
    first = load("rotated_mnist", data_dir=mnist)
    [images], [document] = ((cache / "generated").glob(f"*{end}") for end in (".safetensors", ".json"))
    whole = images.read_bytes()
    if damage == "content":
        images.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "truncated":
        images.write_bytes(whole[:1000])
    elif damage == "no images":
        images.unlink()
    elif damage == "not json":
        document.write_text("{")
    else:
        document.write_text('{"recipe": {}, "sha256": ""}')
    with pytest.warns(UserWarning, match=rf"{images.name} is damaged \(.+\) and is generated again"):
        again = load("rotated_mnist", data_dir=mnist)
    assert images.read_bytes() == whole
    assert again.fingerprint == first.fingerprint


def test_interrupting_leaves_nothing_to_be_taken_for_whole(mnist, cache, monkeypatch):
    turned, calls = variants.rotate, []

    def interrupted(images, angles):
        calls.append(len(images))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return turned(images, angles)

    with monkeypatch.context() as patch:
        patch.setattr(variants, "rotate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load("rotated_mnist", data_dir=mnist)
    assert not (cache / "generated").exists()

    def only_the_first(contents):
        path, content = next(iter(contents.items()))
        path.parent.mkdir(parents=True)
        path.write_bytes(content[:5000])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(generated, "write_atomically", only_the_first)
        with pytest.raises(KeyboardInterrupt):
            load("rotated_mnist", data_dir=mnist)
    data = load("rotated_mnist", data_dir=mnist)
    assert len(data.test) == 40
    assert calls == [30, 40]
