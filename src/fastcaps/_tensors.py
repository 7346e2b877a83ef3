"""Read safetensors files that may be damaged."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:
    from torch import Tensor


def read_tensors(path: Path, *only: str) -> tuple[dict[str, str], dict[str, "Tensor"]]:
    """Return the metadata of a safetensors file and its tensors, or only some; raise ValueError if it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if not only or name in only]  # noqa: SIM118
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    # For types that PyTorch does not have, the library raises the errors of its bindings.
    except (SafetensorError, AttributeError, KeyError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is damaged or not a safetensors file: {reason}") from None


def tensor_hash(tensor: "Tensor") -> str:
    """Return the SHA-256 of the values of a tensor."""
    import torch

    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def check_tensors(path: Path, expected: Mapping[str, "Tensor"], actual: Mapping[str, "Tensor"]) -> None:
    """Raise ValueError unless a file has exactly the expected tensors: names, shapes, floating-point or not."""
    missing, extra = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
    if missing or extra:
        words = [f"lacks {', '.join(missing)}"] if missing else []
        words += [f"has the unknown {', '.join(extra)}"] if extra else []
        raise ValueError(f"{path} {' and '.join(words)}: it is not of this model")
    for name, tensor in expected.items():
        if actual[name].shape != tensor.shape:
            raise ValueError(
                f"{path}: {name} has shape {tuple(actual[name].shape)}, the configuration expects {tuple(tensor.shape)}"
            )
        if actual[name].is_floating_point() != tensor.is_floating_point():
            kind = "a floating-point type" if tensor.is_floating_point() else f"{tensor.dtype}"
            raise ValueError(f"{path}: {name} is {actual[name].dtype}, expected {kind}")
