"""The ``.amat`` files of 2007 (Larochelle et al.): one image a line, 784 numbers between 0 and 1, then the label.

Public readers take the pixels of the rotation files row after row. Of the background files some say that they go column
after column, as MATLAB writes. Rather than trust either, the background digits are looked at: the mean of all ones
stands upright, so its pixels spread more down than across. (Rotated digits don't tell: their mean is round either way.)
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fastcaps.data.files import Found, lines
from fastcaps.data.idx import Arrays, check
from fastcaps.data.registry import NamedSet

# Lines parsed at a time: a whole file would take a gigabyte as text and numbers.
_LINES = 2000


def load(entry: NamedSet, found: Sequence[Found]) -> tuple[Arrays, Arrays, dict[str, str]]:
    """Training and test images ``(n 1 h w)`` with labels ``(n)``, and the SHA-256 of each file."""
    parts, digests = [], {}
    for item, count in zip(found, (entry.train, entry.test), strict=True):
        images, labels, digests[item.file.name] = _parse(entry, item)
        check(entry, entry.image_shape[1:], len(images), item.title, labels, item.title)
        if len(images) != count:
            raise ValueError(
                f"{item.title} has {len(images)} images, expected {count}: "
                "it is truncated or another file; fetch it again"
            )
        parts.append((images, labels))
    if entry.name == "background_mnist" and lies_down(*parts[0]):
        parts = [(images.transpose(0, 1, 3, 2).copy(), labels) for images, labels in parts]
    return parts[0], parts[1], digests


def lies_down(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> bool:
    """Whether the ones among images ``(n 1 h w)`` lie on their side: columns read as rows."""
    ones = images[labels == 1, 0]  # (n, h, w)
    if not len(ones):
        return False
    # What is brighter than usual is the digit; the backgrounds average out.
    mean = np.maximum(ones.mean(0) - np.median(ones.mean(0)), 0.0)
    down, across = (_spread(mean.sum(axis)) for axis in (1, 0))
    return bool(down < across)


def _spread(weights: NDArray[np.float64]) -> float:
    places = np.arange(len(weights))
    total = max(float(weights.sum()), 1e-12)
    centre = (weights * places).sum() / total
    return float((weights * (places - centre) ** 2).sum() / total)


def _parse(entry: NamedSet, item: Found) -> tuple[NDArray[np.uint8], NDArray[np.int64], str]:
    pixels = entry.image_shape[1] * entry.image_shape[2]
    digest = hashlib.sha256()
    images, labels = [], []

    def hashed() -> Iterator[tuple[int, bytes]]:
        for number, line in enumerate(lines(item), 1):
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
                f"{item.title} has a pixel outside 0 to 1 in line {text[wrong[0]][0]}: it is damaged; fetch it again"
            )
        wrong = np.flatnonzero(rows[:, -1] != np.floor(rows[:, -1]))
        if len(wrong):
            raise ValueError(
                f"{item.title} has label {rows[wrong[0], -1]:g} in line {text[wrong[0]][0]}, expected a whole number"
            )
        images.append(np.rint(values * 255).astype(np.uint8).reshape(-1, *entry.image_shape))
        labels.append(rows[:, -1].astype(np.int64))
    if not images:
        raise ValueError(f"{item.title} is empty: fetch it again")
    return np.concatenate(images), np.concatenate(labels), digest.hexdigest()


def _numbers(text: list[tuple[int, bytes]], item: Found, columns: int) -> NDArray[np.float64]:
    """Numbered lines as numbers; only when that fails are they looked at one by one, to say which."""
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
                "it is truncated or damaged; fetch it again"
            )
        for field in fields:
            try:
                float(field)
            except ValueError:
                raise ValueError(
                    f"{item.title} has {field.decode(errors='replace')!r} in line {number}, expected a number"
                ) from None
    raise ValueError(f"{item.title} can't be read as numbers in lines {text[0][0]} to {text[-1][0]}")
