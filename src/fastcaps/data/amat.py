"""The ``.amat`` files of 2007 (Larochelle et al.): one image per line, 784 numbers between 0 and 1, then the label.

Public readers take the pixels of the rotation files by rows. Some take those of the background files by columns, as
MATLAB writes them. The digits themselves decide: the mean of all ones is upright, so its pixels spread more vertically
than horizontally. (The mean of rotated digits is round either way, and decides nothing.)
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fastcaps.data.files import LocalFile, lines
from fastcaps.data.idx import Arrays, check
from fastcaps.data.registry import NamedSet

# Number of lines parsed at a time: a whole file would take a gigabyte as text and numbers.
_LINES = 2000


def load(entry: NamedSet, items: Sequence[LocalFile]) -> tuple[Arrays, Arrays, dict[str, str]]:
    """Return training and test images ``(n 1 h w)`` with labels ``(n)``, and the SHA-256 of each file."""
    parts, digests = [], {}
    for item, count in zip(items, (entry.train, entry.test), strict=True):
        images, labels, digests[item.file.name] = _parse(entry, item, count)
        check(entry, entry.image_shape[1:], len(images), item.title, labels, item.title)
        if len(images) != count:
            raise ValueError(
                f"{item.title} has {len(images)} images, expected {count}: "
                "it is truncated or another file; download it again"
            )
        parts.append((images, labels))
    if entry.name == "background_mnist" and lies_down(*parts[0]):
        parts = [(images.transpose(0, 1, 3, 2).copy(), labels) for images, labels in parts]
    return parts[0], parts[1], digests


def lies_down(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> bool:
    """Return whether the ones among images ``(n 1 h w)`` lie on their side, because columns were read as rows."""
    ones = images[labels == 1, 0]  # (n, h, w)
    if not len(ones):
        return False
    # Pixels brighter than the median are the digit; the backgrounds average out.
    mean = np.maximum(ones.mean(0) - np.median(ones.mean(0)), 0.0)
    vertical, horizontal = (_spread(mean.sum(axis)) for axis in (1, 0))
    return bool(vertical < horizontal)


def _spread(weights: NDArray[np.float64]) -> float:
    places = np.arange(len(weights))
    total = max(float(weights.sum()), 1e-12)
    center = (weights * places).sum() / total
    return float((weights * (places - center) ** 2).sum() / total)


def _parse(entry: NamedSet, item: LocalFile, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], str]:
    pixels = entry.image_shape[1] * entry.image_shape[2]
    digest = hashlib.sha256()
    images, labels = [], []

    def hashed() -> Iterator[tuple[int, bytes]]:
        for number, line in enumerate(lines(item), 1):
            if number > 2 * count + _LINES:  # some may be blank
                raise ValueError(
                    f"{item.title} has more than {number - 1:,} lines, expected {count:,}: it is damaged; download it "
                    "again"
                )
            digest.update(line)
            if line.strip():
                yield number, line

    source = hashed()
    while text := list(islice(source, _LINES)):
        rows = _numbers(text, item, pixels + 1)
        values = rows[:, :-1]
        wrong = np.flatnonzero(~((values >= 0) & (values <= 1)).all(1))
        if len(wrong):
            raise ValueError(
                f"{item.title} has a pixel outside 0 to 1 in line {text[wrong[0]][0]}: it is damaged; download it again"
            )
        wrong = np.flatnonzero(rows[:, -1] != np.floor(rows[:, -1]))
        if len(wrong):
            raise ValueError(
                f"{item.title} has label {rows[wrong[0], -1]:g} in line {text[wrong[0]][0]}, expected a whole number"
            )
        images.append(np.rint(values * 255).astype(np.uint8).reshape(-1, *entry.image_shape))
        labels.append(rows[:, -1].astype(np.int64))
    if not images:
        raise ValueError(f"{item.title} is empty: download it again")
    return np.concatenate(images), np.concatenate(labels), digest.hexdigest()


def _numbers(text: list[tuple[int, bytes]], item: LocalFile, columns: int) -> NDArray[np.float64]:
    """Parse numbered lines; if that fails, parse them one by one to find the wrong line."""
    try:
        rows = np.loadtxt([line for _, line in text], ndmin=2)
        if rows.shape == (len(text), columns):
            return rows
    except ValueError:
        pass
    for number, line in text:
        fields = line.split()
        if len(fields) != columns:
            raise ValueError(
                f"{item.title} has {len(fields)} numbers in line {number}, expected {columns}: "
                "it is truncated or damaged; download it again"
            )
        for field in fields:
            try:
                float(field)
            except ValueError:
                raise ValueError(
                    f"{item.title} has {field.decode(errors='replace')!r} in line {number}, expected a number"
                ) from None
    raise ValueError(f"{item.title} can't be read as numbers in lines {text[0][0]} to {text[-1][0]}")
