"""What is known of master coefficients besides the numbers; can be read without PyTorch."""

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


@dataclass(frozen=True, kw_only=True)
class MasterSummary(FormerDict):
    """Everything that a file of master coefficients says of them, besides the large tensors.

    Attributes:
        method: as `MasterCoefficients.method`.
        iteration: as `MasterCoefficients.iteration`.
        filters: one report per filter, in their order.
        model_hash: of the weights they were made with; None when not known.
        trained_with: hash of the weights that were trained with these coefficients in place of routing, if any were.
        provenance: anything else worth knowing, as JSON.
        normalization: name of the network's normalization.
        lower: smallest coefficient that it gives.
        upper: largest coefficient that it gives.
        normalization_options: other options of the normalization, by name; None where it has none.
        counts: images of each class; of a hidden layer, all images.
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
        """Raise when no routing can have had this iteration."""
        check_iteration(self.iteration)

    @classmethod
    def stored(cls, values: dict[str, Any], source: str) -> dict[str, Any]:
        """Replace the former name of a method."""
        former = [new for old, new in FORMER_METHODS.items() if values.get("method") == old]
        return {**values, "method": former[0]} if former else values


def check_iteration(iteration: int | None) -> None:
    """Raise when no routing can have had this iteration."""
    if iteration is not None and iteration < 1:
        raise ValueError(f"iteration is {iteration}, expected at least 1, or None when it is not known")
