"""All analyses together, where correlations exist and where they don't."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.analysis.conftest import small_network

from fastcaps import CapsNet, accumulate, fold
from fastcaps.analysis import evaluate
from fastcaps.analysis.capsules import output_lengths
from fastcaps.analysis.report_builder import Measurements, build_report
from fastcaps.analysis.training_pass import collect


def built(model, keep_containers=True, **options):
    images, labels = torch.rand(12, 1, 10, 10, dtype=torch.float64), torch.arange(12) % 3
    batches = [(images, labels)]
    master = accumulate(model, batches)
    if not keep_containers:
        master = replace(master, containers=None)
    evaluation = evaluate(model, master, batches)
    lengths = output_lengths(model, fold(model, master), batches)
    measured = Measurements(collect(model, batches), lengths, evaluation, images.__getitem__)
    return build_report(model, master, measured, **options), master, lengths


@pytest.mark.slow
def test_numbers_are_those_of_the_parts(small_model):
    report, master, lengths = built(small_model, examples=[3, 1], sort_by_class=True)
    numbers = report.to_dict()
    correlations = np.array(numbers["class_correlations"]["correlations"])
    for k, row in enumerate(numbers["class_correlations"]["nearest"]):
        others = [other for other in range(3) if other != k]
        best = max(others, key=lambda other: correlations[k, other])
        assert row["others"][0] == {"class": str(best), "correlation": correlations[k, best]}
        assert row["own_is_highest"] == (correlations[k, k] > correlations[k, best])
    assert numbers["class_correlations"]["within"] == pytest.approx(correlations.trace() / 3, abs=1e-6)
    pair = numbers["class_correlations"]["closest_pair"]
    assert pair["correlation"] == (correlations - 9 * np.eye(3)).max()
    assert correlations[int(pair["classes"][0]), int(pair["classes"][1])] == pair["correlation"]
    assert numbers["first_images"]["order"] == [k for label in range(3) for k in range(label, 12, 3)]
    np.testing.assert_allclose(numbers["master"]["values"], master.values.numpy(), atol=1e-6)
    assert numbers["master"]["is_reduction"]
    assert [image["test_image"] for image in numbers["examples"]["images"]] == [3, 1]
    np.testing.assert_allclose(numbers["examples"]["images"][0]["lengths_fast"], lengths.fast[3], atol=1e-6)
    own = [lengths.dynamic[k] for k in range(12) if lengths.labels[k] == 2]
    np.testing.assert_allclose(numbers["tuning"]["dynamic"]["lengths"][2], np.mean(own, axis=0), atol=1e-6)


@pytest.mark.slow
def test_one_iteration_has_no_correlations_and_says_so(small_model):
    config = type(small_model.config).from_dict({**small_model.config.to_dict(), "iterations": 1})
    report, _, _ = built(CapsNet(config).double())
    summary = report.to_dict()["class_correlations"]
    assert (summary["within"], summary["closest_pair"], summary["own_is_highest"]) == (None, None, 0)
    assert (summary["in_words"], summary["nearest"][0]["others"]) == ("none", [])
    assert summary["constant_columns"] == [4, 4, 4]
    assert report.first_images.within is None
    assert "tuning" in report.figures
    empty = {"image_correlations", "class_correlations", "coefficients", "master_matrix", "positions", "types"}
    assert not (empty | {"procedure", "master_correlations"}) & set(report.figures)


@pytest.mark.slow
def test_a_decoder_that_tells_classes_apart_is_shown():
    torch.manual_seed(0)
    model = small_network(decoder=(8,))
    with torch.no_grad():
        for layer in model.decoder.layers:
            if isinstance(layer, torch.nn.Linear):
                layer.weight.mul_(50)
    report, _, lengths = built(model)
    numbers = report.to_dict()["reconstructions"]
    assert numbers["classes"] == len(set(lengths.labels[lengths.dynamic.argmax(1) == lengths.labels])) > 1
    assert numbers["bound"] == pytest.approx(numbers["images"] / 4, abs=1e-6)
    assert numbers["differ"]
    assert numbers["drawn"] > numbers["bound"]
    assert {"dimensions", "strongest_dimensions"} <= set(report.figures)
    assert report.dimensions.bound == pytest.approx(numbers["images"] / 5, abs=1e-6)
    shown = next(one for one in report.dimensions.classes if one.name == report.dimensions.shown.name)
    assert report.dimensions.shown.visible == (shown.effects > report.dimensions.bound).sum() > 0
    assert ("disagreements" in report.figures) == (report.disagreements.changed > 1)
    assert report.finding.title == "a data set: a capsule network with Max-Min routing"


@pytest.mark.slow
def test_sums_that_were_not_kept_are_not_drawn(small_model):
    report, _, _ = built(small_model, keep_containers=False)
    assert "procedure" not in report.figures
    assert report.master.is_reduction
    assert "ceiling" not in report.evaluation.variants


def test_errors(small_model):
    with pytest.raises(ValueError, match="examples=2, 12: expected numbers of test images from 0 to 11"):
        built(small_model, examples=[2, 12])
    with pytest.raises(ValueError, match="examples=none: expected numbers of test images from 0 to 11"):
        built(small_model, examples=[])
