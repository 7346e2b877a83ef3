"""The trained networks that come with the package: each a run folder with its weights in half precision."""

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "models"
# Of a network that also comes as an exported file, for inference without PyTorch.
ONNX = "model.int8.onnx"


def names() -> list[str]:
    """Names of the networks that come with fastcaps."""
    return sorted(path.parent.name for path in _FOLDER.glob("*/run.json"))


def resolve(name_or_folder: str | Path) -> Path:
    """The folder of a network that comes with fastcaps, or the folder itself; a folder goes before a name."""
    folder = Path(name_or_folder)
    if not folder.exists() and str(name_or_folder) in names():
        return _FOLDER / str(name_or_folder)
    return folder


def names_expected(given: str | Path) -> str:
    """What an error says of the networks there are, where something else was given than one."""
    listed = ", ".join(names()) or "there are none"
    if str(given) in names():
        listed += f"; the one called {given} is hidden by what has that name here: rename it, or work in another folder"
    return f"the name of a network that comes with fastcaps ({listed})"


def describe(name: str) -> dict[str, Any]:
    """What there is to know of one of them without opening it: data, accuracies after rounding, size, hash."""
    folder = _FOLDER / name
    about = json.loads((folder / "run.json").read_bytes())
    config = json.loads((folder / "model" / "config.json").read_bytes())
    onnx = folder / ONNX
    return {
        "name": name,
        "data": about["data"]["name"],
        "kind": about["data"]["provenance"]["kind"],
        "normalization": about["config"]["normalization"],
        "accuracy": about["evaluation"],
        "images": about["data"]["test"],
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "weights_sha256": config["weights_sha256"],
        "folder": str(folder),
        "onnx": str(onnx) if onnx.is_file() else None,
    }


def is_bundled(folder: Path) -> bool:
    """Whether a folder is one of the package's own, which nothing is written to."""
    return folder.resolve().is_relative_to(_FOLDER.resolve())
