"""Find the images of a run: in their original or a new place, in a grown folder, or others of the same classes."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcaps._result import flattened
from fastcaps.data.options import LoadCall
from fastcaps.nn.config import CapsNetConfig
from fastcaps.training.description import DataDescription

if TYPE_CHECKING:
    from fastcaps.data import DataSet


def find_data(
    run: Path,
    about: DataDescription,
    config: CapsNetConfig,
    source: "DataSet | str | Path | None",
    data_dir: str | Path | None,
    test_only: bool,
) -> "DataSet":
    """Return the images of a run, or the given ones; see `Run.data`."""
    if source is None:
        data = _load_again(run, about, data_dir, test_only)
    elif isinstance(source, str | Path):
        data = _load_elsewhere(source, about, config, data_dir, test_only)
    else:
        data = source
    if data.fingerprint == about.fingerprint:
        return data
    data = _with_known_test_images(about, data)
    if data.fingerprint == about.fingerprint:
        return data
    if source is None and not has_grown(about, data):
        raise ValueError(
            f"the images of {data.name} are not those that {run} was trained with ({_differences(data, about)}): use "
            "the same images, or give these as data= to use them as others of the same classes"
        )
    data = _fitting(run, config, data)
    warnings.warn(f"{run}: {images_note(about, data)}", stacklevel=4)
    return data


def images_note(about: DataDescription, data: "DataSet") -> str | None:
    """Return how images differ from those of a run; None for its own."""
    if data.fingerprint == about.fingerprint:
        return None
    if has_grown(about, data):
        added = _count(data.provenance) - _count(about.provenance)
        return f"{data.name} has grown by {added:,} images since the training; its test images are the same or more"
    return f"the images of {data.name} are not those of the training, but others of the same classes"


def _load_again(run: Path, about: DataDescription, data_dir: str | Path | None, test_only: bool) -> "DataSet":
    from fastcaps.data import load

    if about.call is None:
        raise ValueError(
            f"{run} was trained with {about.name}, a data set made in Python, which can't be loaded by its name: pass "
            "the same data set as data="
        )
    place = str(about.call.get("name_or_folder"))
    if about.kind == "folder" and not Path(place).is_dir():
        raise FileNotFoundError(
            f"{run} was trained with the images in {place}, which is not there any more: give the folder where they "
            "are now, or other images of the same classes, as data="
        )
    return load(data_dir=data_dir, test_only=test_only, **about.call)


def _load_elsewhere(
    source: str | Path,
    about: DataDescription,
    config: CapsNetConfig,
    data_dir: str | Path | None,
    test_only: bool,
) -> "DataSet":
    """Load a data set by its name, or a folder with the options of the run."""
    from fastcaps.data import SETS, Augmentation, load
    from fastcaps.data.folder import is_divided

    if str(source).replace("-", "_") in SETS or not Path(source).expanduser().is_dir():
        if about.call is not None and about.call.get("name_or_folder") == str(source).replace("-", "_"):
            return load(data_dir=data_dir, test_only=test_only, **about.call)
        return load(source, data_dir=data_dir, test_only=test_only)
    size = config.resize or (config.height, config.width)
    options: LoadCall = {"name_or_folder": str(source), "size": size, "channels": config.channels}
    if about.call is not None and about.kind == "folder":
        options["seed"] = about.call.get("seed", 0)
        options["skip_broken"] = about.call.get("skip_broken", False)
        options["rotation"], options["zoom"] = about.call.get("rotation"), about.call.get("zoom")
        if not is_divided(Path(source).expanduser()):
            options["test_fraction"] = about.call.get("test_fraction")
    data = load(**options)
    if about.augmentation:
        augmentation = Augmentation.from_dict(about.augmentation, "the augmentation of the run")
        shape = (config.channels, *(augmentation.crop or data.image_shape[1:]))
        data = replace(data, augmentation=augmentation, image_shape=shape)
    return data


def _with_known_test_images(about: DataDescription, data: "DataSet") -> "DataSet":
    """Return a folder with the test images of the run, if the folder still has all of them."""
    from fastcaps.data import folder

    known = about.test_hashes
    if not known or not data.test_hashes or data.call is None:
        return data
    reloaded = folder.load(
        Path(data.call["name_or_folder"]),
        seed=data.call.get("seed", 0),
        size=data.call.get("size"),
        channels=data.call.get("channels"),
        skip_broken=data.call.get("skip_broken", False),
        test_hashes=known,
    )
    if not set(known) <= set(reloaded.test_hashes):
        return data
    return replace(
        data,
        train=reloaded.train,
        test=reloaded.test,
        provenance=reloaded.provenance,
        test_hashes=reloaded.test_hashes,
    )


def has_grown(about: DataDescription, data: "DataSet") -> bool:
    """Return whether a folder has the images of a run and more, as far as can be determined.

    A folder with ``train`` and ``test`` must have no fewer images in either; any other must have all test images.
    """
    before, now = about.provenance, data.provenance
    if not about.kind == now["kind"] == "folder" or set(about.test_hashes) - set(data.test_hashes):
        return False
    if any(before.get(name) != now[name] for name in ("size", "channels")) or _count(now) <= _count(before):
        return False
    return all(now["images"][part] >= before["images"][part] for part in ("train", "test"))


def _count(provenance: dict[str, Any]) -> int:
    return sum(provenance["images"].values())


def _fitting(run: Path, config: CapsNetConfig, data: "DataSet") -> "DataSet":
    """Return images with the labels of a network; raise if their shape or classes don't match."""
    expected = (config.channels, config.height, config.width)
    if tuple(data.image_shape) != expected:
        shapes = ["×".join(map(str, shape)) for shape in (data.image_shape, expected)]
        raise ValueError(f"{data.name} has images of {shapes[0]}, the network of {run} is for {shapes[1]}")
    return data.with_classes(config.class_names)


def _differences(data: "DataSet", description: DataDescription) -> str:
    """Return how a data set differs from that of a run."""
    expected, actual = flattened(description.provenance), flattened(data.provenance)
    differing = [name for name in actual | expected if actual.get(name) != expected.get(name)]
    words = [f"{name} is {_short(actual.get(name))}, was {_short(expected.get(name))}" for name in differing]
    return "; ".join([f"fingerprint {data.fingerprint[:12]}…, the run has {description.fingerprint[:12]}…", *words])


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"
