"""Training and test sets by name, and the user's own images, ready for a capsule network.

`load` returns a `DataSet`, `batches` iterates over one of its parts. Images are between 0 and 1, as the decoder's
target is; a network that needs standardized images standardizes them itself.
"""

from typing import TYPE_CHECKING

from fastcaps._lazy import lazy_names

if TYPE_CHECKING:
    from fastcaps.data.augment import Augmentation
    from fastcaps.data.batching import batches, steps_per_epoch
    from fastcaps.data.catalog import available, download
    from fastcaps.data.dataset import DataSet, Split
    from fastcaps.data.loading import load
    from fastcaps.data.registry import SETS

__all__ = [
    "load",
    "DataSet",
    "Split",
    "Augmentation",
    "batches",
    "steps_per_epoch",
    "SETS",
    "available",
    "download",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "load": "fastcaps.data.loading",
        "DataSet": "fastcaps.data.dataset",
        "Split": "fastcaps.data.dataset",
        "Augmentation": "fastcaps.data.augment",
        "batches": "fastcaps.data.batching",
        "steps_per_epoch": "fastcaps.data.batching",
        "SETS": "fastcaps.data.registry",
        "available": "fastcaps.data.catalog",
        "download": "fastcaps.data.catalog",
    },
    deprecated={"get": ("fastcaps.data._deprecated", "get", "fastcaps.data.download")},
)
