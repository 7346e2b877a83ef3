"""Models as folders: ``config.json`` says what it is, ``model.safetensors`` holds the weights. No pickle.

``config.json`` records the SHA-256 of the weights beside it, so that a file that is cut short, or belongs to another
model, is found before it is used.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fastcaps._files import json_bytes, write_atomically
from fastcaps._version import __version__
from fastcaps.nn.config import CapsNetConfig
from fastcaps.shipped import known

if TYPE_CHECKING:
    from fastcaps.nn.base import CapsuleNetwork

_FORMAT = 1
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"

_FIELDS = {"format": int, "model": str, "config": dict, "weights_sha256": str, "provenance": dict}

Network = TypeVar("Network", bound="CapsuleNetwork")


def save(model: "CapsuleNetwork", folder: Path) -> None:
    """Write a model's two files into a folder, both whole or neither."""
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
    write_atomically({folder / _WEIGHTS: weights, folder / _CONFIG: json_bytes(description)})


def load(cls: type[Network], folder: Path) -> Network:
    """Read a model of the given class; its weights must fit it exactly."""
    description = _description(cls.kind, folder)
    path = folder / _WEIGHTS
    content = _content(path)
    found = hashlib.sha256(content).hexdigest()
    if found != description["weights_sha256"]:
        raise ValueError(
            f"{path} is damaged or belongs to another model: its SHA-256 is {found[:12]}…, {_CONFIG} says "
            f"{description['weights_sha256'][:12]}…: copy both files from the same place again"
        )
    try:
        state = safetensors.torch.load(content)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None
    with torch.device("meta"):
        model = cls(_config(description, folder))
    _check_fit(model.state_dict(), state, path)
    # Half-precision weights are only a way of storing them.
    kept = (torch.float32, torch.float64)
    state = {name: tensor if tensor.dtype in kept else tensor.float() for name, tensor in state.items()}
    model.load_state_dict(state, assign=True)
    model.provenance = description["provenance"]
    return model.eval()


def weights_hash(model: torch.nn.Module) -> str:
    """SHA-256 of the weights that decide the coefficients: all but the decoder's."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if not name.startswith("decoder."):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"{path} does not exist: expected a folder with {_CONFIG} and {_WEIGHTS}, as save_pretrained writes, or "
            f"{known(path.parent)}"
        ) from None


def _description(kind: str, folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    content = _content(path)
    try:
        description = json.loads(content)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(description, dict) or not _FIELDS.keys() <= description.keys():
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


def _check_fit(expected: dict[str, Tensor], given: dict[str, Tensor], path: Path) -> None:
    missing, extra = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    if missing or extra:
        words = [f"lacks {', '.join(missing)}"] if missing else []
        words += [f"has the unknown {', '.join(extra)}"] if extra else []
        raise ValueError(f"{path} {' and '.join(words)}: it is not of this model")
    for name, tensor in expected.items():
        if given[name].shape != tensor.shape:
            raise ValueError(
                f"{path}: {name} has shape {tuple(given[name].shape)}, the configuration beside it wants "
                f"{tuple(tensor.shape)}"
            )
        if not given[name].is_floating_point():
            raise ValueError(f"{path}: {name} is {given[name].dtype}, expected a floating-point type")
