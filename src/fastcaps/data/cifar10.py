"""The binary records of CIFAR-10: a label, then 1,024 bytes of red, of green and of blue, row after row."""

from collections.abc import Sequence

import numpy as np

from fastcaps.data.files import LocalFile, read
from fastcaps.data.idx import Arrays, check
from fastcaps.data.registry import NamedSet


def load(entry: NamedSet, items: Sequence[LocalFile]) -> list[Arrays]:
    """Return images ``(n 3 h w)`` and labels ``(n)``, one pair per file."""
    parts = []
    c, h, w = entry.image_shape
    record = 1 + c * h * w
    for item, content in zip(items, read(items), strict=True):
        if not content or len(content) % record:
            raise ValueError(
                f"{item.title} has {len(content)} bytes, expected records of {record} each: "
                "it is truncated or damaged; delete it and download it again"
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, record)
        labels = records[:, 0].astype(np.int64)
        check(entry, (h, w), len(records), item.title, labels, item.title)
        parts.append((records[:, 1:].reshape(-1, c, h, w), labels))
    return parts
