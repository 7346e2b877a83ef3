"""Two passes for many combinations give what two passes for each would."""

from typing import Literal, get_args

import pytest
import torch

from fastcaps import accumulate
from fastcaps.master import Correct, Filter, KMeans, Method, Observations, Similarity, apply_filters, sweep

CHAINS: dict[str, list[Filter]] = {
    "none": [],
    "correct": [Correct()],
    "similarity": [Similarity(keep_fraction=0.6)],
    "both": [Correct(), KMeans(clusters=4, max_outlier_fraction=0.5)],
    "impossible": [Correct(confidence=0.99)],
}


@pytest.fixture
def batches(model):
    """Labels that the untrained network gets right in most cases."""
    images = torch.rand(60, 1, 10, 10)
    labels = model.predict(images)
    assert torch.bincount(labels, minlength=3).min() >= 4
    labels[::7] = (labels[::7] + 1) % 3
    return list(zip(images.split(16), labels.split(16), strict=True))


@pytest.fixture
def model(model):
    # Votes in random directions: the untrained network's classes then depend on the image.
    torch.nn.init.normal_(model.routing.weight, std=0.3)
    return model


@pytest.mark.slow
def test_it_is_accumulate_for_each(model, batches):
    passes = []
    done: list[int] = []

    def source():
        passes.append(1)
        return iter(batches)

    sweeps = sweep(model, source, [1, 2, 3, 4], CHAINS, observe=done.append)
    assert len(passes) == 2
    assert sum(done) == 120
    assert set(sweeps.sums) == {
        (k, name) for k in (1, 2, 3, 4) for name in ("none", "correct", "similarity", "both") if k > 1 or len(name) < 8
    } - {(1, "both")}
    assert set(sweeps.skipped) == {(1, "similarity"), (1, "both"), *((k, "impossible") for k in (1, 2, 3, 4))}
    assert "all equal at iteration 1" in sweeps.skipped[1, "both"]
    assert "filter correct (confidence=0.99) keeps none" in sweeps.skipped[3, "impossible"]
    for (k, name), sums in sweeps.sums.items():
        iteration: int | Literal["final"] = "final" if k == 4 else k
        selection = None
        if CHAINS[name]:
            observations = Observations.collect(model, batches, iteration=iteration)
            selection = apply_filters(CHAINS[name], observations)
            assert 3 <= selection.keep.sum() < 60
        for method in get_args(Method):
            expected = accumulate(model, batches, iteration=iteration, selection=selection, method=method)
            computed = sums.compute(method=method)
            torch.testing.assert_close(computed.values, expected.values, rtol=0, atol=1e-6)
            assert computed.summary() == expected.summary()


def test_one_pass_is_enough_without_filters(model, batches, tmp_path):
    passes = []

    def source():
        passes.append(1)
        return iter(batches)

    sweeps = sweep(model, source, [3], {"all": []}, folder=tmp_path / "is not even looked at")
    assert len(passes) == 1
    assert list(sweeps.sums) == [(3, "all")]
    assert not sweeps.skipped


def test_iterations_that_do_not_exist(model):
    with pytest.raises(ValueError, match="iteration is 5, expected 1 to 3, or 4 for the update after the last"):
        sweep(model, list, [2, 5], {"none": []})


def test_both_passes_must_be_of_the_same_images_and_a_broken_filter_is_no_skipped_one(model, batches):
    passes = iter([batches, batches[:-1]])
    with pytest.raises(ValueError, match="the first pass had 60 images, the second 48: expected the same again"):
        sweep(model, lambda: next(passes), [3], {"correct": [Correct()]})

    class Broken:
        name, reason, uses_columns = "broken", "", False

        def keep(self, observations):
            return observations.labels

    with pytest.raises(ValueError, match="filter broken gave int64 of shape"):
        sweep(model, lambda: batches, [3], {"broken": [Broken()]})
