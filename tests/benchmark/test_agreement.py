"""All engines answer alike, and one that doesn't is seen."""

import pytest
import torch

from fastcaps import CapsNet
from fastcaps.benchmark import agreement, engines
from fastcaps.benchmark.agreement import COMPARED, COMPARED_COMPRESSED
from fastcaps.benchmark.settings import Settings

CONFIG = Settings.quick().config


def trained():
    torch.manual_seed(3)
    return CapsNet(CONFIG).eval(), torch.rand(CONFIG.lower_capsules, CONFIG.classes)


def batches():
    images = engines.some_images(CONFIG, 7)
    return [(images[:4], torch.tensor([0, 1, 2, 0])), (images[4:], torch.tensor([1, 2, 0]))]


def test_engines_answer_as_float64_does():
    model, coefficients = trained()
    small, seen = engines.Networks(CONFIG).compressed(), list[int]()
    rows = agreement.agreement(model, coefficients, batches(), [engines.some_images(CONFIG, 16)], small, seen.append)
    assert [row.engine for row in rows] == [*COMPARED, *COMPARED_COMPRESSED]
    assert seen == [4, 3]
    for row in rows:
        tolerance = 0.05 if "int8" in row.engine else 1e-5
        assert row.images == 7
        assert 0 < row.largest_difference < tolerance
        assert row.alone < 1e-5
        assert abs(row.accuracy - row.reference_accuracy) <= row.changed / 7
    exact = rows[0].reference_accuracy
    right = sum(int((model(images).lengths.argmax(1) == labels).sum()) for images, labels in batches())
    assert exact == right / 7


def test_an_engine_that_answers_otherwise_is_seen(monkeypatch):
    model, coefficients = trained()
    honest = agreement.engine_lengths

    def lying(engine, images):
        lengths = honest(engine, images)
        return lengths[:, ::-1] if len(images) > 1 else lengths

    monkeypatch.setattr(agreement, "engine_lengths", lying)
    for row in agreement.agreement(model, coefficients, batches(), [engines.some_images(CONFIG, 16)]):
        assert row.changed > 0
        assert row.largest_difference > 1e-3
        assert row.alone > 1e-3


def test_lengths_that_are_no_numbers_are_refused(monkeypatch):
    model, coefficients = trained()
    honest = agreement.engine_lengths
    monkeypatch.setattr(agreement, "engine_lengths", lambda engine, images: honest(engine, images) * float("nan"))
    with pytest.raises(ValueError, match="plain dynamic gives lengths that are no numbers"):
        agreement.agreement(model, coefficients, batches(), [engines.some_images(CONFIG, 2)])


def test_no_images():
    model, coefficients = trained()
    with pytest.raises(ValueError, match="there are no images to compare the engines on"):
        agreement.agreement(model, coefficients, [], [engines.some_images(CONFIG, 2)])
