import os
import pickle
import struct
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data import tiny
from tests.ranks import Child

from fastcaps.data import DataSet, batches, load


def everything(split):
    return split.images(torch.arange(len(split)))


@pytest.fixture
def divided(tmp_path):
    for part, count in (("train", 4), ("test", 2)):
        for name in ("cat", "dog"):
            for k in range(count):
                tiny.save_image(tmp_path / "pets" / part / name / f"{part}{name}{k}.png")
    return tmp_path / "pets"


@pytest.fixture
def tree(tmp_path):
    for name, count in (("2", 10), ("10", 6), ("1", 4)):
        for k in range(count):
            tiny.save_image(tmp_path / "numbers" / name / f"{name}-{k}.png")
    return tmp_path / "numbers"


def test_a_divided_folder(divided):
    (divided / "train" / "cat" / "notes.txt").write_text("not an image")
    tiny.save_image(divided / "train" / "cat" / ".hidden.png")
    data = load(divided)
    assert (data.name, data.class_names, data.image_shape) == ("pets", ("cat", "dog"), (1, 20, 24))
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4
    assert data.test.labels.tolist() == [0] * 2 + [1] * 2
    assert not data.generated
    image = data.train.images(torch.tensor([5, 0]))
    expected = np.asarray(Image.open(divided / "train" / "dog" / "traindog1.png"))
    assert image.dtype == torch.uint8
    assert (image[0, 0].numpy() == expected).all()
    assert data.train.images(torch.arange(0)).shape == (0, 1, 20, 24)


def test_the_edge_of_gray_images_is_measured(tmp_path):
    for name, mode, color in (("gray", "L", 255), ("color", "RGB", "white")):
        for label in ("a", "b"):
            (tmp_path / name / label).mkdir(parents=True)
            for k in range(3):
                Image.new(mode, (20, 20), color).save(tmp_path / name / label / f"{k}.png")
    assert load(tmp_path / "gray").background == 1.0
    assert load(tmp_path / "color").background is None


@pytest.mark.slow
def test_one_tree_is_divided_by_class(tree):
    data = load(str(tree), test_fraction=0.25, seed=3)
    assert data.class_names == ("1", "2", "10")  # as numbers
    assert torch.bincount(data.test.labels).tolist() == [1, 3, 1]
    assert torch.bincount(data.train.labels).tolist() == [3, 7, 5]
    images = torch.cat([everything(data.train), everything(data.test)]).flatten(1)
    assert len(torch.unique(images, dim=0)) == 20
    again = load(tree, test_fraction=0.25, seed=3)
    assert torch.equal(everything(again.test), everything(data.test))
    assert again.fingerprint == data.fingerprint
    assert load(tree, test_fraction=0.25, seed=4).fingerprint != data.fingerprint


def test_a_class_may_be_called_train(tmp_path):
    for name in ("train", "val"):
        for k in range(3):
            tiny.save_image(tmp_path / name / f"{k}.png")
    (tmp_path / "train" / "notes").mkdir()
    assert load(tmp_path).class_names == ("train", "val")


def test_the_fingerprint_follows_the_content_not_the_place(divided, tmp_path):
    first = load(divided).fingerprint
    divided.rename(tmp_path / "elsewhere")
    assert load(tmp_path / "elsewhere").fingerprint == first
    tiny.save_image(tmp_path / "elsewhere" / "test" / "cat" / "testcat0.png", value=77)
    assert load(tmp_path / "elsewhere").fingerprint != first


def test_images_are_resized_to_the_most_common_size(divided):
    tiny.save_image(divided / "train" / "cat" / "large.png", (40, 48))
    data = load(divided)
    assert data.image_shape == (1, 20, 24)
    large = data.train.images(torch.tensor([0]))  # "large" is first by name
    expected = Image.open(divided / "train" / "cat" / "large.png").resize((24, 20), Image.Resampling.BILINEAR)
    assert (large[0, 0].numpy() == np.asarray(expected)).all()


def test_large_images_are_made_smaller_unless_a_size_is_given(tmp_path):
    for name in ("a", "b"):
        for k in range(2):
            tiny.save_image(tmp_path / name / f"{k}.png", (100, 200))
    assert load(tmp_path).image_shape == (1, 32, 64)
    assert load(tmp_path, size=30).image_shape == (1, 30, 30)
    assert load(tmp_path, size=(30, 40), channels=3).image_shape == (3, 30, 40)


def test_one_color_image_makes_the_set_color(divided):
    tiny.save_image(divided / "test" / "dog" / "color.png", color=True)
    data = load(divided)
    assert data.image_shape == (3, 20, 24)
    assert data.config().standardize
    assert data.augmentation.fill == "edge"
    gray = everything(data.train)
    assert torch.equal(gray[:, 0], gray[:, 2])
    assert load(divided, channels=1).image_shape == (1, 20, 24)


def test_every_kind_of_pixel(tmp_path):
    wide = np.arange(24, dtype=np.uint16).repeat(20).reshape(24, 20) << 10
    kinds = {
        "16-bit.png": Image.fromarray(wide),
        "clear.png": Image.new("RGBA", (20, 24), (9, 9, 9, 0)),
        "palette.gif": Image.new("P", (20, 24), 3),
        "bits.png": Image.new("1", (20, 24), 1),
        "sideways.jpg": Image.new("L", (24, 20), 50),
    }
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for file, image in kinds.items():
            image.save(tmp_path / name / file, exif=exif if file == "sideways.jpg" else Image.Exif())
    data = load(tmp_path, channels=1)
    assert data.image_shape == (1, 24, 20)
    one = torch.cat([everything(data.train), everything(data.test)])
    values = {(int(image.min()), int(image.max())) for image in one}
    assert {(0, 92), (255, 255), (50, 50)} <= values  # 16 bits scaled, what is clear white, the rest as it is


def test_the_network_fits_the_images(divided):
    config = load(divided).config(iterations=2)
    assert (config.height, config.width, config.channels, config.classes) == (20, 24, 1, 2)
    assert (config.class_names, config.iterations, config.standardize) == (("cat", "dog"), 2, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, r"size is 0, expected a whole number of at least 1, or two such as \(24, 32\) for height and"),
        ({"size": (20,)}, r"size is \(20,\), expected a whole number of at least 1, or two such as"),
        ({"size": (20, 0)}, r"size is \(20, 0\), expected a whole number of at least 1, or two"),
        ({"size": (20, 2.5)}, r"size is \(20, 2\.5\), expected a whole number of at least 1, or two"),
        ({"size": "20"}, r"size is '20', expected a whole number of at least 1, or two"),
        ({"channels": 2}, r"channels is 2, expected 1 for gray or 3 for color"),
        ({"channels": 0}, r"channels is 0, expected 1 for gray or 3 for color"),
        ({"channels": 3.0}, r"channels is 3\.0, expected 1 for gray or 3 for color"),
        ({"test_fraction": 1.0}, r"test_fraction is 1\.0, expected a number between 0 and 1"),
        ({"photographs": "x"}, r"photographs='x' has no meaning for a folder of images"),
    ],
)
def test_options_that_cannot_be(tree, options, message):
    with pytest.raises(ValueError, match=message):
        load(tree, **options)


def test_a_divided_folder_has_nothing_to_hold_out(divided):
    message = r"test_fraction=0\.2 has no meaning for .*pets: it has train and test; leave it out"
    with pytest.raises(ValueError, match=message):
        load(divided, test_fraction=0.2)


@pytest.mark.parametrize("name", ["val", "valid", "validation", "Val"])
def test_a_validation_folder_is_no_class(divided, name):
    (divided / "test").rename(divided / name)
    message = (
        rf"pets has (train and {name}|{name} and train) with folders of images in them, expected both train and test: "
        rf"rename {name} to test, or give one tree of class folders"
    )
    with pytest.raises(ValueError, match=message):
        load(divided)


def test_one_part_alone_is_no_class(divided):
    (divided / "train").rename(divided / "training")
    message = (
        r"pets has test with folders of images in it, expected both train and test: "
        r"rename or add what is missing, or give one tree of class folders"
    )
    with pytest.raises(ValueError, match=message):
        load(divided)


def test_an_empty_class_folder(divided):
    (divided / "train" / "bird").mkdir()
    (divided / "test" / "bird").mkdir()
    with pytest.raises(ValueError, match=r"the class folder .*train.bird has no images in it: add some"):
        load(divided)


def test_classes_that_differ(divided):
    tiny.save_image(divided / "train" / "bird" / "a.png")
    tiny.save_image(divided / "test" / "fish" / "a.png")
    tiny.save_image(divided / "test" / "frog" / "a.png")
    message = r"the classes of .*pets differ, test has no bird and train has no fish, frog: expected the same"
    with pytest.raises(ValueError, match=message):
        load(divided)


def test_too_few_classes(tmp_path):
    with pytest.raises(ValueError, match=r"has 0 class folders, expected at least 2: one subfolder of"):
        load(tmp_path)
    tiny.save_image(tmp_path / "train" / "a.png")
    with pytest.raises(ValueError, match=r"has 1 class folders \(train\), expected at least 2"):
        load(tmp_path)


def test_a_class_of_one_image_cannot_be_divided(tree):
    tiny.save_image(tree / "7" / "only.png")
    with pytest.raises(ValueError, match=r"the class folder .*7 has 1 image, expected at least 2: one to"):
        load(tree)


def test_an_image_that_is_none(divided):
    (divided / "train" / "cat" / "broken.png").write_bytes(b"hello")
    with pytest.raises(
        ValueError, match=r"broken\.png can't be decoded as an image \(\.png but no known image format\):"
    ):
        load(divided)


def test_an_image_that_is_cut_short(divided):
    path = divided / "test" / "cat" / "testcat0.png"
    path.write_bytes(path.read_bytes()[:200])
    data = load(divided)  # its header is whole
    with pytest.raises(ValueError, match=r"testcat0\.png can't be decoded as an image \(.+\): replace"):
        everything(data.test)
    assert data.test.images(torch.tensor([1])).shape == (1, 1, 20, 24)


def test_an_image_of_32_bits(divided):
    Image.fromarray(np.zeros((20, 24), np.int32)).save(divided / "train" / "cat" / "a.tif")
    data = load(divided)
    with pytest.raises(ValueError, match=r"a\.tif can't be decoded as an image \(it has 32-bit pixels \(mode I"):
        everything(data.train)


@pytest.mark.parametrize("side", [10_000, 20_000])  # for the first Pillow warns, for the second it fails
def test_a_decompression_bomb(divided, side):
    def chunk(kind, content):
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(1000)))
    (divided / "test" / "dog" / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b""))
    message = r"bomb\.png has more than 89,478,485 pixels and may be a decompression bomb: make it smaller"
    with pytest.raises(ValueError, match=message):
        load(divided)


def test_images_are_read_when_wanted(divided):
    data = load(divided)
    (divided / "train" / "cat" / "traincat2.png").unlink()
    assert len(data.train.images(torch.tensor([0, 1]))) == 2
    with pytest.raises(FileNotFoundError, match=r"traincat2\.png"):
        data.train.images(torch.tensor([2]))


def stream(folder: Path) -> None:
    """An epoch of a folder in this process; prints by how many bytes memory grew after the first fifty batches."""
    data = load(folder, size=64, channels=3)
    taken = []
    for _ in batches(data.train, 32, view=data.augmentation, shuffle_seed=0):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        taken.append(pages * os.sysconf("SC_PAGE_SIZE"))
    assert len(taken) == 125
    print(max(taken) - max(taken[:50]))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system doesn't tell a process its memory")
def test_memory_stays_flat_however_many_files_there_are():
    """5,000 files, of which 4,000 to train on, which decoded would take 49 MB, 29 MB of them after fifty batches."""
    with TemporaryDirectory() as folder:
        pixels = np.random.default_rng(0).integers(0, 256, (256, 16 * 16), np.uint8)
        for label in range(10):
            place = Path(folder) / "many" / f"class {label}"
            place.mkdir(parents=True)
            for k in range(500):
                (place / f"{k}.pgm").write_bytes(b"P5 16 16 255\n" + pixels[(label * 7 + k) % 256].tobytes())
        out, _ = Child(stream, place.parent).succeed()
    assert int(out) < 15e6


def test_gray_images_on_white_paper_are_shifted_into_white(tmp_path):
    for name in ("a", "b"):
        for k in range(6):
            path = tmp_path / name / f"{k}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(np.full((20, 20), 240 + k, np.uint8)).save(path)
    data = load(tmp_path)
    assert data.background == pytest.approx(0.95, abs=0.02)
    assert data.augmentation.fill == "edge"
    augmented = data.augmentation.augment(everything(data.train), torch.Generator().manual_seed(0))
    assert augmented.min() > 0.9


def test_images_are_read_by_processes_that_are_started_anew(divided):
    """As on macOS and Windows, where what a worker needs is pickled."""
    for split in (load(divided).train, DataSet.from_arrays(*2 * (np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1])).train):
        again = pickle.loads(pickle.dumps(split))
        assert torch.equal(everything(again), everything(split))
