"""Out-of-distribution detection by the lengths of class capsules: do they separate images of no class from others?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from fastcaps._result import Result, Table
from fastcaps.nn import CapsuleNetwork
from fastcaps.nn.inference import Batches, gather_batches


@dataclass(frozen=True, kw_only=True)
class LengthRow:
    """Statistics of the lengths of one network.

    Attributes:
        network: its name.
        accuracy: accuracy on the images of the classes.
        own_length: mean length of the capsule of the label.
        other_length: mean length of all other capsules.
        agreement: fraction of predictions that equal those of the first network.
        auroc: probability that the longest capsule of an image of a class is longer than that of another image.
    """

    network: str
    accuracy: float
    own_length: float
    other_length: float
    agreement: float
    auroc: float


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class LengthComparison(Result):
    """The lengths of several networks, on images of their classes and on others.

    Attributes:
        data: name of the data set of the classes.
        outside: name of the data set of the other images.
        images: number of images of the classes.
        outside_images: number of other images.
        rows: one per network; predictions are compared with those of the first.
        command: command line that measured it.
    """

    data: str
    outside: str
    images: int
    outside_images: int
    rows: tuple[LengthRow, ...]
    command: str | None = None

    def tables(self) -> Sequence[Table]:
        """Return one row per network."""
        columns = ["network", "accuracy", "own length", "other lengths", "as the first row", f"AUROC, {self.outside}"]
        rows = [
            [
                row.network,
                f"{row.accuracy:.2%}",
                f"{row.own_length:.3f}",
                f"{row.other_length:.3f}",
                f"{row.agreement:.2%}",
                f"{row.auroc:.4f}",
            ]
            for row in self.rows
        ]
        return [Table(f"{self.data}: {self.images:,} images, {self.outside_images:,} of {self.outside}", columns, rows)]


def compare_lengths(
    networks: Mapping[str, CapsuleNetwork],
    inside: Callable[[], Batches],
    outside: Callable[[], Batches],
    observe: Callable[[int], None] = lambda images: None,
) -> tuple[LengthRow, ...]:
    """Return the lengths of networks on images of their classes and on others.

    Args:
        networks: networks by name; predictions are compared with those of the first.
        inside: returns batches of images and labels of the classes.
        outside: returns batches of other images; their labels are not used.
        observe: called with the number of images after each batch.
    """
    rows: list[LengthRow] = []
    reference: NDArray[np.int64] | None = None
    for name, network in networks.items():
        inside_outputs = _lengths(network, inside(), observe)
        outside_lengths = _lengths(network, outside(), observe)["lengths"]
        lengths, labels = inside_outputs["lengths"], inside_outputs["labels"]
        answers = lengths.argmax(1)
        reference = answers if reference is None else reference
        own = lengths[np.arange(len(labels)), labels]
        rows.append(
            LengthRow(
                network=name,
                accuracy=float((answers == labels).mean()),
                own_length=float(own.mean()),
                other_length=float((lengths.sum() - own.sum()) / (lengths.size - len(own))),
                agreement=float((answers == reference).mean()),
                auroc=auroc(lengths.max(1), outside_lengths.max(1)),
            )
        )
    return tuple(rows)


def auroc(positive: NDArray[np.floating], negative: NDArray[np.floating]) -> float:
    """Return the probability that a positive score is larger than a negative one; ties count half."""
    ranks = rankdata(np.concatenate([positive, negative]))
    m, n = len(positive), len(negative)
    return float((ranks[:m].sum() - m * (m + 1) / 2) / (m * n))


def _lengths(
    network: CapsuleNetwork, batches: Batches, observe: Callable[[int], None]
) -> dict[str, NDArray[np.float64]]:
    return gather_batches(
        network, batches, lambda images, labels: {"lengths": network(images).lengths.double()}, observe=observe
    )
