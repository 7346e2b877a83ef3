"""The master coefficients with what they were made from, and their file.

The file (safetensors) keeps the sums, not only the result, so that it can be merged, inspected and extended.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import safetensors.torch
from torch import Tensor

from fastcaps._files import recover, write_atomically
from fastcaps._former_dict import FormerDict
from fastcaps._json import parse_json
from fastcaps._result import plain, without_none
from fastcaps._tensors import read_tensors, tensor_hash
from fastcaps.functional import Normalization, get_normalization
from fastcaps.functional._deprecated import warn

Method = Literal["per_class", "columns", "pooled"]

_FORMAT = 1
_KIND = "fastcaps.MasterCoefficients"
_TENSORS = ("values", "containers", "counts")
# Names of methods and of options of filters in files of earlier versions.
FORMER_METHODS: dict[str, Method] = {"containers": "per_class"}
FORMER_OPTIONS = {"kept": "keep_fraction", "outlying": "max_outlier_fraction"}


def current_method(method: Any) -> Any:
    """Return a method, with a warning where it has its former name."""
    if method in FORMER_METHODS:
        warn(f"method={method!r}", f"method={FORMER_METHODS[method]!r}")
    return FORMER_METHODS.get(method, method)


@dataclass(frozen=True)
class FilterReport(FormerDict):
    """What a filter did.

    Attributes:
        name: of the filter.
        options: of the filter, by name.
        reason: what the images that it left out have in common.
        seen: images per class that it has seen.
        kept: images per class that it has kept.
    """

    name: str
    options: Mapping[str, Any]
    reason: str
    seen: tuple[int, ...]
    kept: tuple[int, ...]

    def __post_init__(self) -> None:
        """Replace former names of options; raise when the counts can't be of one filter."""
        seen, kept = self.seen, self.kept
        if len(seen) != len(kept) or not all(0 <= k <= s for s, k in zip(seen, kept, strict=True)):
            raise ValueError(
                f"filter {self.name}: seen is {seen}, kept is {kept}, expected for each class how many images it has "
                "seen, and at most as many kept"
            )
        options = {FORMER_OPTIONS.get(name, name): value for name, value in self.options.items()}
        object.__setattr__(self, "options", options)

    def __str__(self) -> str:
        """Return the name with the options, such as ``correct (confidence=0.5)``."""
        words = ", ".join(f"{option}={value}" for option, value in self.options.items())
        return f"{self.name} ({words})" if words else self.name

    def merged(self, other: "FilterReport") -> "FilterReport":
        """Return what this filter did together with the same one on other images."""
        counts = zip((self.seen, self.kept), (other.seen, other.kept), strict=True)
        seen, kept = (tuple(a + b for a, b in zip(*pair, strict=True)) for pair in counts)
        return replace(self, seen=seen, kept=kept)


def current_reports(reports: Iterable[FilterReport | Mapping[str, Any]]) -> tuple[FilterReport, ...]:
    """Return reports of filters, with a warning where they are dictionaries."""
    reports = tuple(reports)
    if any(isinstance(report, Mapping) for report in reports):
        warn("a filter's report as a dictionary", "fastcaps.master.FilterReport")
    return tuple(FilterReport.from_dict(plain(r)) if isinstance(r, Mapping) else r for r in reports)


def _check_iteration(iteration: int | None) -> None:
    if iteration is not None and iteration < 1:
        raise ValueError(f"iteration is {iteration}, expected at least 1, or None when it is not known")


@dataclass(frozen=True, kw_only=True)
class _Summary:
    """What a file says of its coefficients, as `MasterCoefficients.summary` gives it."""

    normalization: str
    lower: float
    upper: float
    normalization_options: dict[str, Any] = field(default_factory=dict)
    method: Method | Literal["mean", "containers"] = "per_class"
    iteration: int | None = None
    filters: tuple[FilterReport, ...] = ()
    model_hash: str | None = None
    trained_with: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise when no routing can have had this iteration."""
        _check_iteration(self.iteration)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MasterCoefficients:
    """One coefficient per lower capsule and class.

    Attributes:
        values: ``(i j)``, float64.
        containers: sums of the coefficient matrices of each class's images, ``(j i j)``, float64; None where they were
            too large to be kept, and for a hidden layer.
        counts: images of each class ``(j)``; of a hidden layer, whose capsules are no classes, all images ``(1)``.
        normalization: of the containers' rows, the network's own; a name is replaced by its object.
        method: how the values follow from the sums, as for `MasterAccumulator.compute`; ``"mean"`` for a hidden layer,
            whose coefficients are averaged over all images.
        iteration: of routing whose coefficients were added up, from 1; one more than the network has for those of the
            update after its last; None when not known.
        filters: which images were left out: one report per filter, in their order, from `apply_filters`.
        model_hash: of the weights they were made with; None when not known.
        trained_with: hash of the weights that were trained with these coefficients in place of routing, if any were.
        provenance: anything else worth knowing, as JSON.
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
        _check_iteration(self.iteration)

    @property
    def values_hash(self) -> str:
        """SHA-256 of the matrix alone."""
        return tensor_hash(self.values)

    def summary(self) -> dict[str, Any]:
        """Return everything but the large tensors, as JSON."""
        names = ("method", "iteration", "filters", "model_hash", "trained_with", "provenance")
        lower, upper = self.normalization.bounds
        options = {k: v for k, v in self.normalization.options().items() if k not in ("lower", "upper")}
        return {
            **{name: plain(getattr(self, name)) for name in names},
            "normalization": self.normalization.name,
            "lower": lower,
            "upper": upper,
            **without_none(normalization_options=options or None),
            "counts": self.counts.tolist(),
        }

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all."""
        write_atomically({Path(path): self.to_bytes()})

    def to_bytes(self) -> bytes:
        """Return the content of the file that `save` writes, to write it together with others."""
        present = {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in present.items()}
        metadata = {"kind": _KIND, "format": str(_FORMAT), "summary": json.dumps(self.summary())}
        return safetensors.torch.save(tensors, metadata=metadata)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
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
        summary = parse_json(metadata.get("summary", ""), _Summary, f"the summary in {path}")
        options = {"lower": summary.lower, "upper": summary.upper, **summary.normalization_options}
        try:
            normalization = get_normalization(summary.normalization, **options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None
        master = cls(
            values=stored["values"],
            containers=stored.get("containers"),
            counts=stored["counts"],
            normalization=normalization,
            method="per_class" if summary.method == "containers" else summary.method,
            iteration=summary.iteration,
            filters=summary.filters,
            model_hash=summary.model_hash,
            trained_with=summary.trained_with,
            provenance=summary.provenance,
        )
        master._check(path)
        return master

    def _check(self, path: Path) -> None:
        """Refuse a file whose parts don't belong together."""
        i, j = self.values.shape if self.values.ndim == 2 else (0, 0)
        present = {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}
        counts = (1,) if self.method == "mean" else (j,)
        if present.get("containers", self.values.new_empty(j, i, j)).shape != (j, i, j) or self.counts.shape != counts:
            shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in present.items())
            raise ValueError(f"{path} is damaged: its parts don't fit together ({shapes})")
        if not all(bool(tensor.isfinite().all()) for tensor in present.values()):
            raise ValueError(f"{path} is damaged: it holds numbers that are not finite")
