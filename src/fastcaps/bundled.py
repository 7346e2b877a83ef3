"""The trained networks that come with fastcaps: each a run folder with its weights in half precision.

The package has the descriptions of all of them, and one int8 file. The large files come from a checkout or from the
package ``fastcaps-models``, if there is one; otherwise they are downloaded to the cache.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fastcaps import _hub
from fastcaps._download import DownloadError, cache_dir, created_folder, download
from fastcaps._files import write_atomically
from fastcaps._former_dict import FormerDict
from fastcaps._json import read_json
from fastcaps._result import Result, Table
from fastcaps._version import __version__
from fastcaps._words import did_you_mean

__all__ = [
    "names",
    "describe",
    "describe_all",
    "resolve",
    "exported_file",
    "BundledNetwork",
    "BundledNetworks",
]


def _installed_folder() -> Path:
    """Return the folder of a checkout, of ``fastcaps-models``, or the one in the package itself."""
    checkout = Path(__file__).parents[2] / "models" / "fastcaps_models"
    package = find_spec("fastcaps_models")
    if checkout.is_dir() or package is None or package.origin is None:
        return checkout if checkout.is_dir() else Path(__file__).parent / "models"
    return Path(package.origin).parent


# Folder of the networks, one folder each; large files may be missing in it.
FOLDER = _installed_folder()
# Name of the exported file of a network, for inference without PyTorch.
ONNX = "model.int8.onnx"
# File in `FOLDER` with sizes and hashes of the large files of all networks.
FILES = "files.json"
# Address of the folder that has the large files as NAME.FILE; $FASTCAPS_MODELS_URL overrides it.
PUBLISHED: str | None = None
_DESCRIPTIONS = ("README.md", "run.json", "model/config.json", "fast/config.json")
_VARIANTS = ("dynamic", "fast", "uniform")
_MINOR = ".".join(__version__.split(".")[:2])


@dataclass(frozen=True)
class ModelFile:
    """A large file of a network.

    Attributes:
        bytes: its size.
        sha256: its hash.
    """

    bytes: int
    sha256: str


@dataclass(frozen=True)
class BundledNetwork(FormerDict):
    """A network that comes with fastcaps.

    Attributes:
        name: name that can be used in place of its run folder.
        data: name of the data set.
        kind: kind of the images: ``"original"``, ``"generated"`` or ``"folder"``.
        normalization: normalization of the routing coefficients.
        accuracy: accuracy of the stored weights on the test images, by variant of routing.
        images: number of test images.
        bytes: size of all files.
        state: ``"installed"``, ``"cached"`` or ``"to download"``; ``"int8 installed"`` or ``"int8 cached"`` if only
            the exported file is on this machine.
        weights_sha256: SHA-256 of the weights.
        card: the file that describes it.
        folder: the run folder, also if it has yet to be downloaded.
        onnx: the exported file, if it is on this machine.
    """

    name: str
    data: str
    kind: str
    normalization: str
    accuracy: Mapping[str, float]
    images: int
    bytes: int
    state: str
    weights_sha256: str
    card: str
    folder: str
    onnx: str | None


@dataclass(frozen=True, repr=False, eq=False)
class BundledNetworks(Result):
    """Networks that come with fastcaps.

    Attributes:
        networks: networks in the order of their names.
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
                network.state,
                f"{network.weights_sha256[:12]}…",
            ]
            for network in self.networks
        ]
        columns = ["name", "data", "normalization", *_VARIANTS, "MB", "files", "SHA-256"]
        return [Table("Networks that come with fastcaps", columns, rows)]


def names() -> list[str]:
    """Return the names of the networks that come with fastcaps."""
    return sorted(path.parent.name for path in FOLDER.glob("*/run.json"))


def resolve(name_or_folder: str | Path, *, exported: bool = False, revision: str | None = None) -> Path:
    """Return the folder of a network that comes with fastcaps or is on the Hub, or the folder itself.

    A folder has priority over a name. Files that are neither installed nor cached are downloaded.

    Args:
        name_or_folder: a name, a repository on the Hugging Face Hub such as ``"user/name"``, or a folder.
        exported: whether only the exported file is needed, if the network has one.
        revision: branch, tag or commit of the repository.
    """
    folder, name = Path(name_or_folder), str(name_or_folder)
    if _hub.is_hub_name(folder):
        return _hub.download(folder.as_posix(), revision, exported=exported)
    if revision is not None:
        raise ValueError(f"revision={revision!r} was given for {name}, expected a repository on the Hub: leave it out")
    if folder.exists() or name not in names():
        return folder
    wanted, cached = {ONNX} if exported else set(large_files(name)), _cached_folder(name)
    if not wanted & set(_missing(FOLDER / name, name)):
        return FOLDER / name
    if wanted & set(_missing(cached, name)):
        _download(name, wanted)
    # Large files may also have been copied there by hand.
    absent = [path for path in _DESCRIPTIONS if not (cached / path).is_file()]
    if absent:
        write_atomically({cached / path: (FOLDER / name / path).read_bytes() for path in absent})
    return cached


def exported_file(name: str) -> Path:
    """Return the exported file of a bundled network, for inference without PyTorch; download it if it is missing."""
    file = resolve(name, exported=True) / ONNX
    if not file.is_file():
        raise FileNotFoundError(f"{name} has no exported file {ONNX}: expected one of {', '.join(_exported())}")
    return file


def names_expected(name: str | Path) -> str:
    """Return the end of an error about an unknown network: the names that are expected."""
    listed = ", ".join(names()) or "there are none"
    if str(name) in names():
        listed += f"; the one called {name} is hidden by what has that name here: rename it, or work in another folder"
    known = [*names(), *map(str, _runs_beside(Path(name)))]
    return f"the name of a network that comes with fastcaps ({listed}){did_you_mean(str(name), known)}"


def _runs_beside(path: Path) -> list[Path]:
    """Return the run folders and models beside a path, which need not exist."""
    return [
        path.parent / entry.parent.name for kind in ("run", "config") for entry in path.parent.glob(f"*/{kind}.json")
    ]


def describe(name: str) -> BundledNetwork:
    """Return data, accuracies, size, state and hash of a bundled network, without loading or downloading it."""
    description, cached = FOLDER / name, _cached_folder(name)
    about = json.loads((description / "run.json").read_bytes())
    config = json.loads((description / "model" / "config.json").read_bytes())
    sizes = {path: path.stat().st_size for path in description.rglob("*") if path.is_file()}
    sizes |= {description / path: file.bytes for path, file in large_files(name).items()}
    installed = not _missing(description, name)
    return BundledNetwork(
        name=name,
        data=about["data"]["name"],
        kind=about["data"]["provenance"]["kind"],
        normalization=about["config"]["normalization"],
        accuracy=about["evaluation"],
        images=about["data"]["test"],
        bytes=sum(sizes.values()),
        state=_state(name),
        weights_sha256=config["weights_sha256"],
        card=str(description / "README.md"),
        folder=str(description if installed else cached),
        onnx=next((str(place / ONNX) for place in (description, cached) if (place / ONNX).is_file()), None),
    )


def describe_all() -> BundledNetworks:
    """Return `describe` of all networks that come with fastcaps."""
    return BundledNetworks(tuple(describe(name) for name in names()))


def is_bundled(folder: Path) -> bool:
    """Return whether the network of a folder comes with fastcaps or from the Hub; such folders are read-only."""
    places = (FOLDER, _cached_folder(""))
    return _hub.repository(folder) is not None or any(
        folder.resolve().is_relative_to(place.resolve()) for place in places
    )


def large_files(name: str) -> dict[str, ModelFile]:
    """Return the large files of a network by their paths in its folder."""
    manifest = FOLDER / FILES
    if not manifest.is_file():
        return {}  # a custom folder without a manifest
    return read_json(manifest, dict[str, dict[str, ModelFile]]).get(name, {})


def _exported() -> list[str]:
    return [name for name in names() if ONNX in large_files(name)]


def _cached_folder(name: str) -> Path:
    return cache_dir() / "models" / _MINOR / name


def _missing(folder: Path, name: str) -> list[str]:
    """Return the large files of a network that are missing in a folder."""
    return [path for path in large_files(name) if not (folder / path).is_file()]


def _state(name: str) -> str:
    places = {"installed": FOLDER / name, "cached": _cached_folder(name)}
    for state, place in places.items():
        if not _missing(place, name):
            return state
    for state, place in places.items():
        if (place / ONNX).is_file():
            return f"int8 {state}"
    return "to download"


def _download(name: str, wanted: set[str]) -> None:
    """Download large files of a network to the cache."""
    folder = _cached_folder(name)
    address = os.environ.get("FASTCAPS_MODELS_URL") or PUBLISHED
    with created_folder(folder), created_folder(folder / "model"):
        for path, file in large_files(name).items():
            place = folder / path
            if path not in wanted or place.is_file():
                continue
            urls = [f"{address.rstrip('/')}/{name}.{place.name}"] if address else []
            try:
                download(place.name, urls, place.parent, digest=f"sha256:{file.sha256}", limit=file.bytes)
            except DownloadError as error:
                tried = f"tried {error}" if address else "FASTCAPS_MODELS_URL names no address"
                raise FileNotFoundError(_not_found(name, wanted, tried)) from None


def _not_found(name: str, wanted: set[str], tried: str) -> str:
    folder = _cached_folder(name)
    missing = [path for path in _missing(folder, name) if path in wanted]
    return (
        f"the files of the network {name} are neither installed (in {FOLDER / name}) nor cached (in {folder}), and "
        f"could not be downloaded ({tried}): python -m pip install 'fastcaps-models=={_MINOR}.*', or put "
        f"{' and '.join(missing)} into {folder}"
    )
