"""The binary records of CIFAR-10: a label, then 1,024 bytes of red, of green and of blue, row after row."""

from collections.abc import Sequence

import numpy as np

from fastcaps.data.files import Found, read
from fastcaps.data.idx import Arrays, check
from fastcaps.data.registry import NamedSet


def load(entry: NamedSet, found: Sequence[Found]) -> list[Arrays]:
    """Images ``(n 3 h w)`` with labels ``(n)``, one part from every file."""
    parts = []
    c, h, w = entry.image_shape
    record = 1 + c * h * w
    for item, content in zip(found, read(found), strict=True):
        if not content or len(content) % record:
            raise ValueError(
                f"{item.title} has {len(content)} bytes, expected records of {record} each: "
                "it is truncated or damaged; delete it and fetch it again"
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, record)
        labels = records[:, 0].astype(np.int64)
        check(entry, (h, w), len(records), item.title, labels, item.title)
        parts.append((records[:, 1:].reshape(-1, c, h, w), labels))
    return parts
