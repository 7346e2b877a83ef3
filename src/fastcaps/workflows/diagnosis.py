"""What fastcaps finds on this machine, what is missing, and how to install it. Does not import PyTorch."""

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fastcaps import bundled
from fastcaps._download import cache_dir
from fastcaps._machine import free_bytes, instruction_sets, processor_name, processors
from fastcaps._result import Result, Table
from fastcaps._version import __version__
from fastcaps.data import catalog

_CACHE = "downloads and generated sets"
_PACKAGES = {
    "torch": "training, folding, dynamic routing",
    "scikit-learn": "training, analyses",
    "matplotlib": "figures",
    "tensorboard": "logs of training",
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "inference without PyTorch",
    "openvino": "inference without PyTorch, an alternative",
    "starlette": "serving",
    "uvicorn": "serving",
    "huggingface_hub": "networks on the Hugging Face Hub",
}


@dataclass(frozen=True)
class Package:
    """An optional dependency.

    Attributes:
        name: name of the package.
        version: its version; None if it isn't installed.
        purpose: what it is needed for.
    """

    name: str
    version: str | None
    purpose: str


@dataclass(frozen=True)
class Folder:
    """A folder that fastcaps reads or writes.

    Attributes:
        purpose: what it holds.
        path: where it is.
        writable: whether files can be created there.
    """

    purpose: str
    path: str
    writable: bool


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Diagnosis(Result):
    """The state of an installation.

    Attributes:
        fastcaps: version of fastcaps.
        python: version of Python.
        system: operating system.
        processor: name of the processor.
        cores: number of processors that this process may use.
        instruction_sets: vector instructions of the processor that matter for speed.
        free_bytes: memory that is free.
        packages: optional dependencies.
        folders: data, caches and weights.
        networks: names of the bundled networks whose files are on this machine.
        data_sets: for each named data set, whether it can be loaded without a download.
        problems: what is missing and how to get it.
    """

    fastcaps: str
    python: str
    system: str
    processor: str
    cores: int
    instruction_sets: tuple[str, ...]
    free_bytes: int
    packages: tuple[Package, ...]
    folders: tuple[Folder, ...]
    networks: tuple[str, ...]
    data_sets: dict[str, bool]
    problems: tuple[str, ...]

    def tables(self) -> Sequence[Table]:
        """Return machine, packages and folders."""
        sets = ", ".join(name for name, available in self.data_sets.items() if available)
        machine = [
            ["fastcaps", self.fastcaps],
            ["Python", self.python],
            ["system", self.system],
            ["processor", self.processor],
            ["cores", str(self.cores)],
            ["instructions", ", ".join(self.instruction_sets) or "unknown"],
            ["free memory", f"{self.free_bytes / 1e9:.1f} GB"],
            ["networks", ", ".join(self.networks) or "none"],
            ["data sets", sets or "none"],
        ]
        packages = [[package.name, package.version or "not installed", package.purpose] for package in self.packages]
        folders = [[folder.purpose, folder.path, "yes" if folder.writable else "no"] for folder in self.folders]
        return [
            Table("This machine", ["", ""], machine),
            Table("Optional packages", ["package", "version", "for"], packages),
            Table("Folders", ["for", "path", "writable"], folders),
        ]

    def sentences(self) -> Sequence[str]:
        """Return what is missing, or that nothing is."""
        return self.problems or ("Everything is in place.",)


def doctor() -> Diagnosis:
    """Return versions, processor, memory, folders, and what is missing."""
    packages = tuple(Package(name, _version(name), purpose) for name, purpose in _PACKAGES.items())
    folders, problems = [], []
    for purpose, path in _folders().items():
        writable = _is_writable(path)
        folders.append(Folder(purpose, str(path), writable))
        if purpose == _CACHE and not writable:
            problems.append(f"{path} can't be written to: set FASTCAPS_CACHE to another folder")
    data = os.environ.get("FASTCAPS_DATA")
    if data and not Path(data).expanduser().is_dir():
        problems.append(f"FASTCAPS_DATA is {data}, which is not a folder: create it, or unset the variable")
        sets = {}
    else:
        sets = {entry.name: entry.available for entry in catalog.available().sets}
    missing = [name for name, available in sets.items() if not available]
    if missing:
        problems.append(f"not downloaded: {', '.join(missing)}; fastcaps data download {' '.join(missing)}")
    networks = {network.name: network.state for network in bundled.describe_all().networks}
    elsewhere = [name for name, state in networks.items() if state == "to download"]
    if elsewhere:
        problems.append(f"networks not installed: {', '.join(elsewhere)}; python -m pip install fastcaps-models")
    absent = [package.name for package in packages if package.version is None]
    if absent:
        problems.append(f"not installed: {', '.join(absent)}; python -m pip install {' '.join(absent)}")
    return Diagnosis(
        fastcaps=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        processor=processor_name(),
        cores=processors(),
        instruction_sets=instruction_sets(),
        free_bytes=free_bytes(),
        packages=packages,
        folders=tuple(folders),
        networks=tuple(name for name in networks if name not in elsewhere),
        data_sets=sets,
        problems=tuple(problems),
    )


def _folders() -> dict[str, Path]:
    folders = {"fastcaps": Path(__file__).parent.parent, "Python": Path(sys.prefix)}
    if os.environ.get("FASTCAPS_DATA"):
        folders["data sets"] = Path(os.environ["FASTCAPS_DATA"]).expanduser()
    return folders | {_CACHE: cache_dir(), "bundled networks": bundled.FOLDER}


def _is_writable(path: Path) -> bool:
    """Return whether files can be created in a folder, or the folder itself if it doesn't exist yet."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
