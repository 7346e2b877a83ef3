"""Summaries of master coefficients without the large tensors; this module does not import PyTorch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fastcaps._former_dict import FormerDict
from fastcaps._result import json_field

Method = Literal["per_class", "columns", "pooled"]

# Names of methods and of options of filters in files of earlier versions.
FORMER_METHODS: dict[str, Method] = {"containers": "per_class"}
FORMER_OPTIONS = {"kept": "keep_fraction", "outlying": "max_outlier_fraction"}


@dataclass(frozen=True)
class FilterReport(FormerDict):
    """Report of a filter.

    Attributes:
        name: name of the filter.
        options: options of the filter, by name.
        reason: what the left-out images have in common.
        seen: number of images per class before the filter.
        kept: number of images per class after the filter.
    """

    name: str
    options: Mapping[str, Any]
    reason: str
    seen: tuple[int, ...]
    kept: tuple[int, ...]

    def __post_init__(self) -> None:
        """Replace former names of options; raise ValueError for inconsistent counts."""
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
        """Return the report of this filter combined with that of the same filter on other images."""
        counts = zip((self.seen, self.kept), (other.seen, other.kept), strict=True)
        seen, kept = (tuple(a + b for a, b in zip(*pair, strict=True)) for pair in counts)
        return replace(self, seen=seen, kept=kept)


@dataclass(frozen=True, kw_only=True)
class MasterSummary(FormerDict):
    """Everything that a file of master coefficients stores, except the large tensors.

    Attributes:
        method: as `MasterCoefficients.method`.
        iteration: as `MasterCoefficients.iteration`.
        filters: one report per filter, in their order.
        model_hash: hash of the weights that they were accumulated with; None if unknown.
        trained_with: hash of the weights that were trained with these coefficients in place of routing, if any were.
        provenance: further information, as JSON.
        normalization: name of the network's normalization.
        lower: smallest coefficient of the normalization.
        upper: largest coefficient of the normalization.
        normalization_options: other options of the normalization, by name; None if it has none.
        counts: number of images per class; for a hidden layer, number of all images.
    """

    method: Method | Literal["mean"] = "per_class"
    iteration: int | None = None
    filters: tuple[FilterReport, ...] = ()
    model_hash: str | None = None
    trained_with: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    normalization: str
    lower: float
    upper: float
    normalization_options: Mapping[str, Any] | None = json_field(omit_none=True)
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for an iteration that no routing can have."""
        check_iteration(self.iteration)

    @classmethod
    def stored(cls, values: dict[str, Any], source: str) -> dict[str, Any]:
        """Replace the former name of a method."""
        former = [new for old, new in FORMER_METHODS.items() if values.get("method") == old]
        return {**values, "method": former[0]} if former else values


def check_iteration(iteration: int | None) -> None:
    """Raise ValueError for an iteration that no routing can have."""
    if iteration is not None and iteration < 1:
        raise ValueError(f"iteration is {iteration}, expected at least 1, or None when it is not known")
