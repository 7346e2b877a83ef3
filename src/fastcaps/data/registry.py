"""The named data sets: sizes, properties, files with their published hashes and addresses.

This module does not import PyTorch, so that ``fastcaps data list`` is fast.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fastcaps._words import did_you_mean
from fastcaps.nn.config import CIFAR10_PRESET


@dataclass(frozen=True)
class File:
    """One file of a set.

    Attributes:
        name: name under which it is published, downloaded and recorded.
        sha256: published SHA-256; None if none is published, so that only the format is checked.
        unpacked: name after gunzip, which is also accepted.
        unpacked_sha256: SHA-256 of the unpacked file.
        size: size in bytes.
        urls: public addresses, tried in this order.
    """

    name: str
    sha256: str | None = None
    unpacked: str | None = None
    unpacked_sha256: str | None = None
    size: int = 0
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Archive:
    """A tar or zip file in which all files of a set are published together.

    Attributes:
        name: name under which it is published.
        folder: folder of its files after unpacking.
        digest: published hash, ``algorithm:hexadecimal``; None if none is published.
        size: size in bytes.
        urls: public addresses, tried in this order.
    """

    name: str
    folder: str
    digest: str | None = None
    size: int = 0
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Files:
    """The files of a set in ``<data dir>/<folder>``, in the order in which its reader takes them.

    Attributes:
        folder: folder of the files.
        files: the files, those of the training images first.
        archive: archive in which they are published, if any.
        test: number of files at the end that the test images need; 0 if they need all.
    """

    folder: str
    files: tuple[File, ...]
    archive: Archive | None = None
    test: int = 0

    def of_test(self) -> "Files":
        """Return only the files of the test images."""
        return replace(self, files=self.files[-self.test :])


@dataclass(frozen=True)
class NamedSet:
    """A named set.

    Attributes:
        name: name of the set.
        title: name for display.
        train: number of training images.
        test: number of test images.
        image_shape: ``(c, h, w)`` of an image as it is stored.
        class_names: names of the classes, in the order of their labels.
        files: its files; None for a set without files.
        made_from: the set from which it is generated if its own files are missing.
        augmentation: augmentation of training images, as the arguments of `fastcaps.data.Augmentation`.
        background: brightness of the edge of gray images, between 0 and 1; None for color, or if it varies.
        network: entries of the configuration of the paper's network for it that differ from MNIST's.
        training: settings of training that differ from the defaults (reasons: docs/results/training-defaults.md).
        recipes: other ways to train than the paper's, by name: settings of training, and ``init`` and ``coefficients``
            as in `fastcaps.training.RunOptions`.
    """

    name: str
    title: str
    train: int
    test: int
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    files: Files | None = None
    made_from: str | None = None
    augmentation: Mapping[str, Any] = field(default_factory=lambda: {"shift": 2})
    background: float | None = 0.0
    network: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_DIGITS = tuple("0123456789")
_FASHION = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_2007 = "http://www.iro.umontreal.ca/~lisa/icml2007data/"


def _idx_files(folder: str, homes: tuple[str, ...], *rows: tuple[str, int, str, str]) -> Files:
    return Files(
        folder,
        tuple(
            File(f"{name}.gz", packed, name, unpacked, size, tuple(f"{home}{name}.gz" for home in homes))
            for name, size, packed, unpacked in rows
        ),
        test=2,
    )


_MNIST_FILES = _idx_files(
    "mnist",
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    (
        "train-images-idx3-ubyte",
        9_912_422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    (
        "train-labels-idx1-ubyte",
        28_881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    (
        "t10k-images-idx3-ubyte",
        1_648_877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    (
        "t10k-labels-idx1-ubyte",
        4_542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)

_FASHION_FILES = _idx_files(
    "fashion_mnist",
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    (
        "train-images-idx3-ubyte",
        26_421_880,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    (
        "train-labels-idx1-ubyte",
        29_515,
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    (
        "t10k-images-idx3-ubyte",
        4_422_102,
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    (
        "t10k-labels-idx1-ubyte",
        5_148,
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)

_CIFAR10_FILES = Files(
    "cifar10",
    tuple(
        File(name, sha256, size=30_730_000)
        for name, sha256 in (
            ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        )
    ),
    Archive(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        "md5:c32a1d4ab5d03f1284b67883e8d87530",
        170_052_171,
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    ),
    test=1,
)

# No hashes are published for the files of 2007: their format is checked, and their hashes are recorded.
_ROTATED_FILES = Files(
    "rotated_mnist",
    (
        File("mnist_all_rotation_normalized_float_train_valid.amat"),
        File("mnist_all_rotation_normalized_float_test.amat"),
    ),
    Archive("mnist_rotation_new.zip", "mnist_rotation_new", urls=(f"{_2007}mnist_rotation_new.zip",)),
)

_BACKGROUND_FILES = Files(
    "background_mnist",
    (File("mnist_background_images_train.amat"), File("mnist_background_images_test.amat")),
    Archive(
        "mnist_background_images.zip",
        "mnist_background_images",
        urls=(f"{_2007}mnist_background_images.zip",),
    ),
)

# From the bundled network that was trained with dynamic routing; measured in docs/results/cifar10.md.
_CIFAR10_BEST = {
    "init": "cifar10-dynamic",
    "coefficients": "uniform",
    "loss": "cross_entropy",
    "epochs": 24,
    "learning_rate": 5e-4,
    "primary_rate": 0.1,
    "warmup": 100,
    "decay": "linear",
    "final_rate": 0.0,
    "averaging": 0.998,
}

SETS: dict[str, NamedSet] = {
    entry.name: entry
    for entry in (
        NamedSet("mnist", "MNIST", 60_000, 10_000, (1, 28, 28), _DIGITS, _MNIST_FILES, training={"epochs": 10}),
        # Clothes fill their image, so they shift by 1; mirrored clothes are clothes.
        NamedSet(
            "fashion_mnist",
            "Fashion-MNIST",
            60_000,
            10_000,
            (1, 28, 28),
            _FASHION,
            _FASHION_FILES,
            augmentation={"shift": 1, "flip": True},
            training={"epochs": 20},
        ),
        NamedSet(
            "cifar10",
            "CIFAR-10",
            50_000,
            10_000,
            (3, 32, 32),
            CIFAR10_PRESET["class_names"],
            _CIFAR10_FILES,
            augmentation={"crop": (24, 24), "flip": True},
            background=None,
            network=CIFAR10_PRESET,
            training={"epochs": 60, "warmup": 300, "final_rate": 0.01, "primary_rate": 0.1, "whiten_stem": True},
            recipes={"best": _CIFAR10_BEST},
        ),
        NamedSet(
            "rotated_mnist",
            "rotated MNIST",
            12_000,
            50_000,
            (1, 28, 28),
            _DIGITS,
            _ROTATED_FILES,
            "mnist",
            training={"epochs": 20},
        ),
        # A black border would show by how much a background was shifted, so the edge is repeated.
        NamedSet(
            "background_mnist",
            "background MNIST",
            12_000,
            50_000,
            (1, 28, 28),
            _DIGITS,
            _BACKGROUND_FILES,
            "mnist",
            augmentation={"shift": 2, "fill": "edge"},
            background=None,
            training={"epochs": 20},
        ),
        NamedSet("digits", "Digits of scikit-learn", 1_437, 360, (1, 28, 28), _DIGITS, training={"epochs": 10}),
    )
}


def named(name: str) -> NamedSet:
    """Return the set of a name, written with hyphens or underscores."""
    key = name.replace("-", "_")
    if key not in SETS:
        raise ValueError(
            f"there is no data set {name!r}, and no folder of that name{did_you_mean(key, SETS)}: expected one of "
            f"{', '.join(SETS)}, "
            "or a folder with one subfolder of images per class"
        )
    return SETS[key]
