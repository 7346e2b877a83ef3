"""The trained networks that come with the package: each a run folder with its weights in half precision."""

from pathlib import Path

_FOLDER = Path(__file__).parent / "models"


def names() -> list[str]:
    """Names of the networks that come with fastcaps."""
    return sorted(path.parent.name for path in _FOLDER.glob("*/run.json"))


def located(name_or_folder: str | Path) -> Path:
    """The folder of a network that comes with fastcaps, or the folder itself; a folder goes before a name."""
    folder = Path(name_or_folder)
    if not folder.exists() and str(name_or_folder) in names():
        return _FOLDER / str(name_or_folder)
    return folder


def is_shipped(folder: Path) -> bool:
    """Whether a folder is one of the package's own, which nothing is written to."""
    return folder.resolve().is_relative_to(_FOLDER.resolve())
