"""The old spelling of `export`; it will be removed in the next release."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fastcaps.exporting.exporter import export


def export_with_tests(
    network: nn.Module, path: str | Path, tests: Iterable[tuple[Tensor, Tensor]], **options: Any
) -> dict[str, Any]:
    """Export with test images as the third argument, and return the metadata of the file."""
    return export(network, path, tests=tests, **options).metadata.to_dict()
