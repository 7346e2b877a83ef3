"""Models as folders: ``config.json`` describes the model, ``model.safetensors`` has the weights. No pickle.

``config.json`` records the SHA-256 of the weights, so that a truncated file, or one of another model, is refused.

A folded network need not be stored twice: its ``config.json`` may name the folder of the network and the file of the
coefficients that it is folded from.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import safetensors.torch
import torch
from torch import Tensor

from fastcaps._files import json_bytes, recover, write_atomically
from fastcaps._json import parse_json
from fastcaps._tensors import check_tensors, read_tensors
from fastcaps._version import __version__
from fastcaps.bundled import names_expected
from fastcaps.nn.config import CapsNetConfig
from fastcaps.nn.meta import without_weights

if TYPE_CHECKING:
    from fastcaps.nn.base import CapsuleNetwork

_FORMAT = 1
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"

# Entry of a folded network's provenance: SHA-256 of the matrix of its coefficients. Earlier versions wrote none.
COEFFICIENTS_HASH = "coefficients_sha256"

_FIELDS = {"format": int, "model": str, "config": dict, "weights_sha256": str, "provenance": dict}

Network = TypeVar("Network", bound="CapsuleNetwork")


def files(model: "CapsuleNetwork", folder: Path) -> dict[Path, bytes]:
    """Return the contents of the two files of a model in a folder."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    weights = safetensors.torch.save(state, metadata={"format": "pt"})
    description = {
        "format": _FORMAT,
        "model": model.kind,
        "fastcaps": __version__,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "config": model.config.to_dict(),
        "provenance": model.provenance,
    }
    return {folder / _WEIGHTS: weights, folder / _CONFIG: json_bytes(description)}


def card(config: CapsNetConfig, name: str, kind: str) -> str:
    """Return the card of a repository on the Hugging Face Hub, as Markdown.

    Args:
        config: configuration of the network.
        name: name of the repository.
        kind: name of the class that loads it.
    """
    return f"""---
library_name: fastcaps
pipeline_tag: image-classification
tags:
- capsule-network
---

# {name.partition("/")[2]}

A capsule network for images of {config.height}×{config.width}×{config.channels} and {config.classes} classes, \
made with fastcaps {__version__}.

```python
from fastcaps import {kind}

model = {kind}.from_pretrained("{name}")
model.predict("picture.png", names=True)
```
"""


def load(cls: type[Network], folder: Path) -> Network:
    """Load a model of the given class; the stored weights must match it exactly."""
    description = _description(cls.kind, folder)
    path = folder / _WEIGHTS
    content = _content(path)
    _check_sha256(path, content, description["weights_sha256"])
    _, state = read_tensors(path)
    with without_weights():
        model = cls(_config(description, folder))
    check_tensors(path, model.state_dict(), state)
    model.load_state_dict({name: _widened(tensor) for name, tensor in state.items()}, assign=True)
    model.provenance = description["provenance"]
    return model.eval()


def _widened(tensor: Tensor) -> Tensor:
    """Convert weights stored in half precision to single precision."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor


class FoldedFrom(NamedTuple):
    """The parts of a folded network whose weights are not stored.

    Attributes:
        model_folder: folder of the network with dynamic routing.
        coefficients: ``(i j)``, float64.
        provenance: provenance of the folded network.
    """

    model_folder: Path
    coefficients: Tensor
    provenance: dict[str, Any]


def save_folded_from(folder: Path, model: str, coefficients: str, provenance: dict[str, Any]) -> None:
    """Write the ``config.json`` of a folded network whose weights are not stored.

    Args:
        folder: folder of the folded network.
        model: folder of the network, beside ``folder``.
        coefficients: file of the coefficients, beside ``folder``.
        provenance: provenance of the folded network.
    """
    config = json.loads(_content(folder.parent / model / _CONFIG))["config"]
    description = {
        "format": _FORMAT,
        "model": "FastCapsNet",
        "fastcaps": __version__,
        "weights_sha256": hashlib.sha256(_content(folder.parent / model / _WEIGHTS)).hexdigest(),
        "folded_from": {
            "model": model,
            "coefficients": coefficients,
            "coefficients_sha256": hashlib.sha256(_content(folder.parent / coefficients)).hexdigest(),
        },
        "config": config,
        "provenance": provenance,
    }
    write_atomically({folder / _CONFIG: json_bytes(description)})


def folded_from(folder: Path) -> FoldedFrom | None:
    """Return the parts that the folded network of a folder is made of; None if its weights are stored."""
    description = _description("FastCapsNet", folder)
    parts = description.get("folded_from")
    if parts is None:
        return None
    names = ("model", "coefficients", "coefficients_sha256")
    if not isinstance(parts, dict) or not all(isinstance(parts.get(name), str) for name in names):
        raise ValueError(f"{folder / _CONFIG} is damaged: folded_from lacks one of {', '.join(names)}")
    if any(parts[name] in ("", "..") or Path(parts[name]).name != parts[name] for name in names):
        raise ValueError(f"{folder / _CONFIG}: folded_from is {parts}, expected names of files beside {folder}")
    beside = folder.parent
    weights, coefficients = beside / parts["model"] / _WEIGHTS, beside / parts["coefficients"]
    _check_sha256(weights, _content(weights), description["weights_sha256"])
    content = _content(coefficients)
    _check_sha256(coefficients, content, parts["coefficients_sha256"])
    _, tensors = read_tensors(coefficients)
    if "values" not in tensors:
        raise ValueError(f"{coefficients} holds no coefficients: it was written by something else")
    return FoldedFrom(beside / parts["model"], tensors["values"], description["provenance"])


def recorded_coefficients(folder: Path) -> str | None:
    """Return the hash of the coefficients that the network of a folder was folded from, if it is recorded."""
    try:
        provenance = _description("FastCapsNet", folder)["provenance"]
    except (OSError, ValueError):
        return None  # loading the folder raises the error
    recorded = provenance.get(COEFFICIENTS_HASH)
    return recorded if isinstance(recorded, str) else None


def check_same_coefficients(folder: Path, recorded: str | None, file: Path, actual: str) -> None:
    """Raise ValueError when a network was folded from other coefficients than those of the file beside it."""
    if recorded not in (None, actual):
        raise ValueError(
            f"{folder} was folded from other coefficients ({str(recorded)[:12]}…) than {file} holds ({actual[:12]}…): "
            "accumulate again, or copy both from the same run"
        )


def _check_sha256(path: Path, content: bytes, expected: str) -> None:
    actual = hashlib.sha256(content).hexdigest()
    if actual != expected:
        raise ValueError(
            f"{path} is damaged or belongs to another model: its SHA-256 is {actual[:12]}…, {_CONFIG} says "
            f"{expected[:12]}…: copy both files from the same place again"
        )


def weights_hash(model: torch.nn.Module) -> str:
    """Return the SHA-256 of the weights that determine the coefficients; without the decoder of a `CapsuleNetwork`."""
    from fastcaps.nn.base import CapsuleNetwork

    ignored = "decoder." if isinstance(model, CapsuleNetwork) else None
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if ignored is None or not name.startswith(ignored):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"{path} does not exist: expected a folder with {_CONFIG} and {_WEIGHTS}, as save_pretrained writes, or "
            f"{names_expected(path.parent)}"
        ) from None


def _description(kind: str, folder: Path) -> dict[str, Any]:
    recover(folder)
    recover(folder.parent)  # a run writes several folders in one transaction
    path = folder / _CONFIG
    content = _content(path)
    description = parse_json(content, dict[str, Any], str(path))
    if not _FIELDS.keys() <= description.keys():
        raise ValueError(f"{path} is not of a fastcaps model: it lacks one of {', '.join(_FIELDS)}")
    for name, expected in _FIELDS.items():
        if not isinstance(description[name], expected):
            raise ValueError(f"{path} is damaged: {name} is {description[name]!r}, expected a {expected.__name__}")
    if description["format"] != _FORMAT:
        raise ValueError(
            f"{path} has format {description['format']}, this version of fastcaps reads {_FORMAT}: "
            "use the version that wrote it, or a newer one"
        )
    if description["model"] != kind:
        raise ValueError(
            f"{path} is of a {description['model']}, expected a {kind}: "
            f"load it with {description['model']}.from_pretrained"
        )
    return description


def _config(description: dict[str, Any], folder: Path) -> CapsNetConfig:
    try:
        return CapsNetConfig.from_dict(description["config"])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / _CONFIG}: {error}") from None
