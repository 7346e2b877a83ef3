"""Filters on columns in which the right answer was planted, one after the other, and of one's own."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcaps.master import (
    FILTERS,
    Correct,
    Filter,
    FilterReport,
    GaussianMixture,
    KMeans,
    Observations,
    Similarity,
    apply_filters,
)
from fastcaps.master.filters import is_outlying

CLASSES, WIDTH = 3, 24


def lengths_for(predictions, own=0.9, other=0.2):
    lengths = np.full((len(predictions), CLASSES), other, np.float32)
    lengths[np.arange(len(predictions)), predictions] = own
    return lengths


def planted(each=60, noise=0.02, seed=0):
    """Three classes whose columns are their pattern and a little noise, in mixed order."""
    random = np.random.default_rng(seed)
    patterns = np.kron(np.eye(CLASSES), np.ones(WIDTH // CLASSES))  # (j, i)
    labels = random.permutation(np.repeat(np.arange(CLASSES), each))
    columns = 0.2 + 0.6 * patterns[labels] + noise * random.standard_normal((len(labels), WIDTH))
    return labels, columns, patterns


def observed(labels, columns, lengths=None):
    return Observations(labels, lengths_for(labels) if lengths is None else lengths, columns.astype(np.float16))


def test_correct_keeps_what_routing_classifies_correctly():
    labels = np.array([0, 1, 2, 0, 1, 2])
    lengths = lengths_for([0, 1, 2, 1, 1, 2])
    lengths[4] = [0.5, 0.8, 0.1]
    observations = Observations(labels, lengths)
    assert Correct().keep(observations).tolist() == [True, True, True, False, True, True]
    assert Correct(confidence=0.4).keep(observations).tolist() == [True, True, True, False, False, True]


@pytest.mark.parametrize("measure", ["pearson", "dot", "cosine"])
def test_similarity_by_margin_drops_planted_confusions(measure):
    labels, columns, patterns = planted()
    confused = np.array([3, 50, 101])
    columns[confused] = 0.2 + 0.6 * patterns[(labels[confused] + 1) % CLASSES]
    keep = Similarity(measure=measure, margin=0.0).keep(observed(labels, columns))
    assert np.flatnonzero(~keep).tolist() == confused.tolist()


def similarity_in_loops(columns, labels, measure):
    """Each image with the mean of the others of its class, and the best of the other classes' means."""

    def measured(a, b):
        if measure == "pearson":
            a, b = a - a.mean(), b - b.mean()
        product = sum(x * y for x, y in zip(a, b, strict=True))
        return product if measure == "dot" else product / np.sqrt(sum(a * a)) / np.sqrt(sum(b * b))

    own, other = [], []
    for a in range(len(labels)):
        with_class = {}
        for k in set(labels.tolist()):
            members = [b for b in range(len(labels)) if labels[b] == k and b != a]
            with_class[k] = measured(columns[a], sum(columns[b] for b in members) / len(members))
        own.append(with_class.pop(labels[a]))
        other.append(max(with_class.values()))
    return own, other


@pytest.mark.parametrize("measure", ["pearson", "dot", "cosine"])
def test_similarity_leaves_an_image_out_of_its_own_mean(measure, monkeypatch):
    monkeypatch.setattr("fastcaps.master.observations.CHUNK_BYTES", 4 * 4 * WIDTH)
    random = np.random.default_rng(0)
    labels, columns = np.arange(13) % CLASSES, random.random((13, WIDTH)).astype(np.float16)
    own, other = Similarity(measure=measure).similarities(observed(labels, columns))
    expected = similarity_in_loops(columns.astype(np.float64), labels, measure)
    np.testing.assert_allclose(own, expected[0], rtol=1e-6)
    np.testing.assert_allclose(other, expected[1], rtol=1e-6)


def test_similarity_keeps_the_most_similar_part_of_each_class():
    labels, columns, _ = planted(each=40)
    strange = np.concatenate([np.flatnonzero(labels == k)[:4] for k in range(CLASSES)])
    columns[strange] += 0.3 * np.random.default_rng(5).standard_normal((len(strange), WIDTH))
    observations = observed(labels, columns)
    assert np.flatnonzero(~Similarity(keep_fraction=0.9).keep(observations)).tolist() == sorted(strange.tolist())
    assert observations.subset(Similarity(keep_fraction=0.001).keep(observations)).counts.tolist() == [1, 1, 1]
    assert observations.subset(Similarity().keep(observations)).counts.tolist() == [38, 38, 38]
    assert Similarity(keep_fraction=1).keep(observations).all()


def test_similarity_without_anything_to_compare_with():
    labels, columns = np.array([0, 0, 0, 1]), np.array([[1, 0, 0], [1, 0.1, 0], [0.5, 0.5, 0.5], [0, 0, 1.0]])
    observations = observed(labels, columns)
    own, other = Similarity().similarities(observations)
    assert own[3] == np.inf  # the only one of its class
    assert (own[2], other[2]) == (0, 0)  # constant
    assert Similarity(margin=0.5).keep(observations).tolist() == [True, True, False, True]
    alone = observed(np.zeros(3, np.int64), columns[:3])  # no other class has images
    assert (Similarity().similarities(alone)[1] == -np.inf).all()


@pytest.mark.parametrize("kind", [KMeans, GaussianMixture])
@pytest.mark.parametrize("seed", [0, 1])
def test_clusters_of_outliers_are_dropped(kind, seed, monkeypatch):
    monkeypatch.setattr("fastcaps.master.observations.CHUNK_BYTES", 50 * 4 * WIDTH)
    labels, columns, patterns = planted(each=100, noise=0.05)
    strange = np.flatnonzero(labels == 1)[[5, 17, 40]]
    columns[strange] = 0.2 + 0.6 * patterns[2] + 0.01 * np.arange(3)[:, None]
    # Another way of writing class 0, as far from its mean, but too common for an outlier.
    columns[np.flatnonzero(labels == 0)[:20]] = 0.2 + 0.6 * patterns[1]
    keep = kind(clusters=4, max_outlier_fraction=0.06, seed=seed).keep(observed(labels, columns))
    assert set(strange) <= set(np.flatnonzero(~keep))
    assert keep[np.flatnonzero(labels == 0)[:20]].all()
    assert all((~keep[labels == k]).mean() <= 0.06 for k in range(CLASSES))


def test_outlying_is_from_the_outside_inwards_up_to_a_share():
    centers = np.array([[0.1], [-3.0], [2.0], [1.0], [0.0]])
    assert is_outlying(np.array([80, 2, 3, 5, 10]), centers, 0.05).tolist() == [False, True, True, False, False]
    assert is_outlying(np.array([80, 2, 3, 5, 10]), centers, 0.1).tolist() == [False, True, True, True, False]
    # Nothing inside a large cluster is an outlier, however small.
    assert not is_outlying(np.array([80, 15, 1, 1, 3]), centers, 0.1).any()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_outlying_clusters_never_hold_more_than_their_share(sizes, outlying, seed):
    counted = np.array([*sizes, 1])
    chosen = is_outlying(counted, np.random.default_rng(seed).standard_normal((len(counted), 3)), outlying)
    assert counted[chosen].sum() <= outlying * counted.sum() < counted.sum()


@pytest.mark.parametrize("kind", [KMeans, GaussianMixture])
def test_clustering_is_reproducible_bounded_and_bears_small_and_constant_classes(kind, monkeypatch):
    monkeypatch.setattr("fastcaps.master.filters.SAMPLE_SIZE", 30)
    monkeypatch.setattr("fastcaps.master.observations.CHUNK_BYTES", 8 * 4 * WIDTH)
    labels, columns, _ = planted(each=60, noise=0.1)
    columns[labels == 2] = 0.5
    labels[np.flatnonzero(labels == 1)[1:]] = 0  # one image of class 1
    largest = 0
    real = Observations.columns

    def spy(self, numbers=None):
        nonlocal largest
        for part in real(self, numbers):
            largest = max(largest, len(part[0]))
            yield part

    monkeypatch.setattr(Observations, "columns", spy)
    observations = observed(labels, columns)
    first = kind(max_outlier_fraction=0.2).keep(observations)
    assert (kind(max_outlier_fraction=0.2).keep(observations) == first).all()
    assert largest == 8
    assert first[labels == 1].all()


def test_each_filter_sees_what_those_before_it_kept():
    labels, columns, patterns = planted(each=20)
    predictions = labels.copy()
    wrong = np.flatnonzero(labels == 0)[:3]
    predictions[wrong] = 2
    confused = np.flatnonzero(labels == 1)[:2]
    columns[confused] = 0.2 + 0.6 * patterns[2]
    keep, report = apply_filters(
        [Correct(), Similarity(margin=0.0)], observed(labels, columns, lengths_for(predictions))
    )
    assert np.flatnonzero(~keep).tolist() == sorted([*wrong, *confused])
    assert report == (
        FilterReport(
            name="correct",
            options={"confidence": 0.0},
            reason="dynamic routing gives them another class",
            seen=(20, 20, 20),
            kept=(17, 20, 20),
        ),
        FilterReport(
            name="similarity",
            options={"measure": "pearson", "keep_fraction": None, "margin": 0.0},
            reason="their columns are not more like their class's mean than another's by 0 (pearson)",
            seen=(17, 20, 20),
            kept=(17, 18, 20),
        ),
    )
    none, empty = apply_filters([], observed(labels, columns))
    assert none.all()
    assert empty == ()


def test_reasons_and_options_say_what_was_done():
    assert Correct(confidence=0.5).reason == "their label's capsule is not longer than all others by 0.5"
    assert Similarity().reason == "their columns tell their class's mean from others less than the 0.95 kept (pearson)"
    assert GaussianMixture().reason == KMeans().reason
    assert "at most 0.05 of it" in KMeans().reason
    assert dataclasses.asdict(Similarity())["keep_fraction"] == 0.95
    assert all(kind.name == name for name, kind in FILTERS.items())


@dataclass(frozen=True)
class Dark:
    """Keep images with small coefficients: a filter of one's own."""

    limit: float = 0.5
    name = "dark"
    reason = "their coefficients are large"
    uses_columns = True

    def keep(self, observations):
        return np.concatenate([columns.mean(1) < self.limit for _, columns in observations.columns()])


def test_a_filter_of_ones_own():
    labels, columns, _ = planted(each=5)
    columns[2] += 0.5
    own: Filter = Dark()
    keep, report = apply_filters([own, Correct()], observed(labels, columns))
    assert np.flatnonzero(~keep).tolist() == [2]
    assert (report[0].name, report[0].options) == ("dark", {"limit": 0.5})


class Odd:
    name, reason, uses_columns = "odd", "", False

    def __init__(self, result):
        self.result = result

    def keep(self, observations):
        return self.result


def test_what_a_filter_must_not_do():
    labels, columns, _ = planted(each=4)
    with pytest.raises(
        ValueError,
        match=r"filter correct \(confidence=0.5\) keeps none of the 4 images of class 2: loosen its options, or leave",
    ):
        apply_filters([Correct(confidence=0.5)], observed(labels, columns, lengths_for(labels % 2)))
    with pytest.raises(ValueError, match=r"filter odd keeps none of the 4 images of class 0: loosen its options"):
        apply_filters([Odd(labels > 0)], observed(labels, columns))
    with pytest.raises(
        ValueError, match=r"filter odd gave int64 of shape \(12,\), expected true or false for each of 12 images"
    ):
        apply_filters([Odd(np.ones(12, np.int64))], observed(labels, columns))
    with pytest.raises(
        ValueError, match=r"filter odd gave bool of shape \(3,\), expected true or false for each of 12"
    ):
        apply_filters([Odd(np.ones(3, bool))], observed(labels, columns))
    # A class without images from the beginning is no filter's fault.
    assert apply_filters([Correct()], observed(labels[labels > 0], columns[labels > 0]))[0].all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Correct(confidence=1.0), "confidence is 1.0, expected a number from 0 to below 1"),
        (lambda: Correct(confidence=float("nan")), "confidence is nan, expected a number from 0 to below 1"),
        (lambda: Similarity(measure="x"), "measure is 'x', expected one of pearson, dot, cosine"),  # type: ignore[arg-type]
        (
            lambda: Similarity(keep_fraction=0),
            "keep_fraction is 0, expected a fraction of each class, above 0 and at most 1",
        ),
        (
            lambda: Similarity(keep_fraction=1.5),
            "keep_fraction is 1.5, expected a fraction of each class, above 0 and at most 1",
        ),
        (lambda: Similarity(margin=float("inf")), "margin is inf, expected a finite number"),
        (
            lambda: Similarity(margin=0.5, keep_fraction=0.25),
            "margin is 0.5, expected none together with keep_fraction=0.25",
        ),
        (lambda: KMeans(clusters=1), "clusters is 1, expected at least 2"),
        (lambda: GaussianMixture(clusters=1), "clusters is 1, expected at least 2"),
        (
            lambda: KMeans(max_outlier_fraction=0),
            "max_outlier_fraction is 0, expected a fraction of each class, above 0 and below 1",
        ),
        (lambda: KMeans(seed=-1), "seed is -1, expected a whole number from 0 to 2³² − 1"),
        (lambda: GaussianMixture(components=0), "components is 0, expected at least 1"),
    ],
)
def test_options_that_mean_nothing_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_is_not_installed_is_named(missing_package):
    missing_package("sklearn")
    labels, columns, _ = planted(each=4)
    with pytest.raises(
        ModuleNotFoundError, match=r"filter kmeans needs sklearn, not installed here: python -m pip install"
    ):
        KMeans().keep(observed(labels, columns))
