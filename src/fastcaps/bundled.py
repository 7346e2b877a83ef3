"""The trained networks that come with the package: each a run folder with its weights in half precision."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastcaps._result import Result, Table
from fastcaps._words import did_you_mean

# Folder of the networks, one folder each.
FOLDER = Path(__file__).parent / "models"
# Of a network that also comes as an exported file, for inference without PyTorch.
ONNX = "model.int8.onnx"
_VARIANTS = ("dynamic", "fast", "uniform")


@dataclass(frozen=True)
class BundledNetwork:
    """A network that comes with fastcaps.

    Attributes:
        name: stands for its run folder.
        data: name of the data set.
        kind: of the images: ``"original"``, ``"generated"`` or ``"folder"``.
        normalization: of the routing coefficients.
        accuracy: on the test images by variant of routing, of the weights as they are stored.
        images: number of test images.
        bytes: size of all files.
        weights_sha256: of the weights.
        folder: the run folder.
        onnx: the exported file, where there is one.
    """

    name: str
    data: str
    kind: str
    normalization: str
    accuracy: Mapping[str, float]
    images: int
    bytes: int
    weights_sha256: str
    folder: str
    onnx: str | None


@dataclass(frozen=True, repr=False, eq=False)
class BundledNetworks(Result):
    """Networks that come with fastcaps.

    Attributes:
        networks: in the order of their names.
    """

    networks: tuple[BundledNetwork, ...]

    def tables(self) -> Sequence[Table]:
        """Return data, accuracies and size, one row per network."""
        rows = [
            [
                network.name,
                network.data,
                network.normalization,
                *(f"{network.accuracy[variant]:.2%}" for variant in _VARIANTS),
                f"{network.bytes / 1e6:.1f}",
                f"{network.weights_sha256[:12]}…",
            ]
            for network in self.networks
        ]
        columns = ["name", "data", "normalization", *_VARIANTS, "MB", "SHA-256 of the weights"]
        return [Table("Networks that come with fastcaps", columns, rows)]


def names() -> list[str]:
    """Return the names of the networks that come with fastcaps."""
    return sorted(path.parent.name for path in FOLDER.glob("*/run.json"))


def resolve(name_or_folder: str | Path) -> Path:
    """Return the folder of a network that comes with fastcaps, or the folder itself; a folder goes before a name."""
    folder = Path(name_or_folder)
    if not folder.exists() and str(name_or_folder) in names():
        return FOLDER / str(name_or_folder)
    return folder


def names_expected(name: str | Path) -> str:
    """Return the end of an error about something that is no bundled network: the names that are expected."""
    listed = ", ".join(names()) or "there are none"
    if str(name) in names():
        listed += f"; the one called {name} is hidden by what has that name here: rename it, or work in another folder"
    known = [*names(), *map(str, _runs_beside(Path(name)))]
    return f"the name of a network that comes with fastcaps ({listed}){did_you_mean(str(name), known)}"


def _runs_beside(path: Path) -> list[Path]:
    """Return the run folders and models where a path is, or was expected."""
    return [
        path.parent / entry.parent.name for kind in ("run", "config") for entry in path.parent.glob(f"*/{kind}.json")
    ]


def describe(name: str) -> BundledNetwork:
    """Return data, accuracies, size and hash of a bundled network, without loading it."""
    folder = FOLDER / name
    about = json.loads((folder / "run.json").read_bytes())
    config = json.loads((folder / "model" / "config.json").read_bytes())
    onnx = folder / ONNX
    return BundledNetwork(
        name=name,
        data=about["data"]["name"],
        kind=about["data"]["provenance"]["kind"],
        normalization=about["config"]["normalization"],
        accuracy=about["evaluation"],
        images=about["data"]["test"],
        bytes=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        weights_sha256=config["weights_sha256"],
        folder=str(folder),
        onnx=str(onnx) if onnx.is_file() else None,
    )


def describe_all() -> BundledNetworks:
    """Return `describe` of all networks that come with fastcaps."""
    return BundledNetworks(tuple(describe(name) for name in names()))


def is_bundled(folder: Path) -> bool:
    """Return whether a folder belongs to the package, so that nothing is written to it."""
    return folder.resolve().is_relative_to(FOLDER.resolve())
