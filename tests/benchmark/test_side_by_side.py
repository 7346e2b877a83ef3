"""Engines side by side: whose answers are counted, and what the table says."""

import pytest
import torch

from fastcaps.benchmark.engines import Engine
from fastcaps.benchmark.side_by_side import side_by_side


def answering(*classes: int) -> Engine:
    """Return an engine that gives these answers, again and again."""
    capsules = torch.eye(3)[list(classes)][:, :, None]  # (b, j, 1)
    return Engine(lambda images: capsules[: len(images)], 2_500_000, None, 0)


def test_answers_and_table():
    tests = [(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 2, 0]))] * 2
    result = side_by_side("A network", {"one": answering(0, 1, 2, 1), "two": answering(0, 1, 2, 0)}, tests)
    assert [(row.engine, row.correct, row.accuracy, row.changed) for row in result.engines] == [
        ("one", 6, 0.75, 0),
        ("two", 8, 1.0, 2),
    ]
    assert result.engines[0].times_faster == 1
    assert (result.images, result.batch_size) == (8, 4)
    table = result.tables()[0]
    assert table.title.startswith("A network: 8 test images in batches of 4")
    assert (table.rows[1][0], table.rows[1][1], table.rows[1][2], table.rows[1][-1]) == ("two", "100.00%", "2", "2.5")
    assert " times as fast as one; " in result.sentences()[0]


def test_no_images():
    with pytest.raises(ValueError, match="there are no images to run the engines on"):
        side_by_side("A network", {"one": answering(0)}, [])
