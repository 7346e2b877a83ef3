"""The master coefficients with their origin, and their file.

The file (safetensors) stores the sums beside the result, so that it can be merged, inspected and extended.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import safetensors.torch
from torch import Tensor

from fastcaps._files import recover, write_atomically
from fastcaps._json import parse_json
from fastcaps._result import plain
from fastcaps._tensors import read_tensors, tensor_hash
from fastcaps.functional import Normalization, get_normalization
from fastcaps.functional._deprecated import warn
from fastcaps.master.summary import FORMER_METHODS, FilterReport, MasterSummary, Method, check_iteration

_FORMAT = 1
_KIND = "fastcaps.MasterCoefficients"
_TENSORS = ("values", "containers", "counts")


def current_method(method: Any) -> Any:
    """Return a method; warn if it has its former name."""
    if method in FORMER_METHODS:
        warn(f"method={method!r}", f"method={FORMER_METHODS[method]!r}")
    return FORMER_METHODS.get(method, method)


def current_reports(reports: Iterable[FilterReport | Mapping[str, Any]]) -> tuple[FilterReport, ...]:
    """Return reports of filters; warn if they are dictionaries."""
    reports = tuple(reports)
    if any(isinstance(report, Mapping) for report in reports):
        warn("a filter's report as a dictionary", "fastcaps.master.FilterReport")
    return tuple(FilterReport.from_dict(plain(r)) if isinstance(r, Mapping) else r for r in reports)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MasterCoefficients:
    """One coefficient per lower capsule and class.

    Attributes:
        values: ``(i j)``, float64.
        containers: sum of the coefficient matrices of the images of each class, ``(j i j)``, float64; None if they were
            too large to store, and for a hidden layer.
        counts: number of images per class ``(j)``; for a hidden layer, whose capsules are not classes, number of all
            images ``(1)``.
        normalization: normalization of the rows of the containers, that of the network; a name is replaced by its
            object.
        method: how the values were computed from the sums, as for `MasterAccumulator.compute`; ``"mean"`` for a hidden
            layer, whose coefficients are averaged over all images.
        iteration: iteration of routing whose coefficients were accumulated, from 1; one more than the network has for
            the update after its last iteration; None if unknown.
        filters: one report per filter, in their order, from `apply_filters`.
        model_hash: hash of the weights that the coefficients were accumulated with; None if unknown.
        trained_with: hash of the weights that were trained with these coefficients in place of routing, if any were.
        provenance: further information, as JSON.
    """

    values: Tensor
    containers: Tensor | None
    counts: Tensor
    normalization: Normalization
    method: Method | Literal["mean"] = "per_class"
    iteration: int | None = None
    filters: tuple[FilterReport, ...] = ()
    model_hash: str | None = None
    trained_with: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return sizes, number of images and how they were built."""
        i, j = self.values.shape
        iteration = "" if self.iteration is None else f", iteration {self.iteration}"
        images = f"{int(self.counts.sum()):,} images"
        return f"MasterCoefficients({i}×{j}, {images}, {self.normalization.name}, {self.method}{iteration})"

    def __post_init__(self) -> None:
        """Replace the name of a normalization by its object, the former name of a method, and former reports."""
        object.__setattr__(self, "normalization", get_normalization(self.normalization))
        object.__setattr__(self, "method", current_method(self.method))
        object.__setattr__(self, "filters", current_reports(self.filters))
        check_iteration(self.iteration)

    @property
    def values_hash(self) -> str:
        """SHA-256 of the matrix alone."""
        return tensor_hash(self.values)

    def summary(self) -> MasterSummary:
        """Return everything but the large tensors."""
        lower, upper = self.normalization.bounds
        bounds = {"lower": lower, "upper": upper}
        options = {k: v for k, v in self.normalization.options().items() if k not in bounds or v != bounds[k]}
        return MasterSummary(
            method=self.method,
            iteration=self.iteration,
            filters=self.filters,
            model_hash=self.model_hash,
            trained_with=self.trained_with,
            provenance=plain(self.provenance),
            normalization=self.normalization.name,
            lower=lower,
            upper=upper,
            normalization_options=options or None,
            counts=tuple(self.counts.tolist()),
        )

    def save(self, path: str | Path) -> None:
        """Write one safetensors file atomically."""
        write_atomically({Path(path): self.to_bytes()})

    def to_bytes(self) -> bytes:
        """Return the content of the file that `save` writes, to write it together with other files."""
        present = {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in present.items()}
        metadata = {"kind": _KIND, "format": str(_FORMAT), "summary": json.dumps(self.summary().to_dict())}
        return safetensors.torch.save(tensors, metadata=metadata)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` wrote."""
        path = Path(path)
        recover(path.parent)
        if not path.is_file():
            what = f"is a folder, perhaps {path / 'master.safetensors'} is meant" if path.is_dir() else "does not exist"
            raise FileNotFoundError(f"{path} {what}: expected a file of master coefficients")
        metadata, stored = read_tensors(path)
        if metadata.get("kind") != _KIND or not {"values", "counts"} <= stored.keys() <= set(_TENSORS):
            raise ValueError(f"{path} holds no master coefficients: it was written by something else")
        if metadata.get("format") != str(_FORMAT):
            raise ValueError(
                f"{path} has format {metadata.get('format')}, this version of fastcaps reads {_FORMAT}: "
                "use the version that wrote it, or a newer one"
            )
        where = f"the summary in {path}"
        summary = MasterSummary.from_dict(parse_json(metadata.get("summary", ""), Any, where), where)
        options = {"lower": summary.lower, "upper": summary.upper, **(summary.normalization_options or {})}
        try:
            normalization = get_normalization(summary.normalization, **options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None
        master = cls(
            values=stored["values"],
            containers=stored.get("containers"),
            counts=stored["counts"],
            normalization=normalization,
            method=summary.method,
            iteration=summary.iteration,
            filters=summary.filters,
            model_hash=summary.model_hash,
            trained_with=summary.trained_with,
            provenance=dict(summary.provenance),
        )
        master._check(path)
        return master

    def _check(self, path: Path) -> None:
        """Raise ValueError if the parts of a file don't belong together."""
        i, j = self.values.shape if self.values.ndim == 2 else (0, 0)
        present = {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}
        counts = (1,) if self.method == "mean" else (j,)
        if present.get("containers", self.values.new_empty(j, i, j)).shape != (j, i, j) or self.counts.shape != counts:
            shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in present.items())
            raise ValueError(f"{path} is damaged: its parts don't fit together ({shapes})")
        if not all(bool(tensor.isfinite().all()) for tensor in present.values()):
            raise ValueError(f"{path} is damaged: it holds numbers that are not finite")
