"""Random-effects estimates, against the formulas written out and against SciPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats
from tests.reproduction.conftest import values

from fastcaps.reproduction import Cell, RunResult, pooled_table
from fastcaps.reproduction.pooling import Effect, pool, student_quantile


@pytest.mark.parametrize("degrees", range(1, 31))
def test_quantiles_are_students(degrees):
    for probability in (0.5, 0.95, 0.99):
        expected = stats.t.ppf((1 + probability) / 2, degrees)
        assert student_quantile(degrees, probability) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(1e-4, 1)), min_size=2, max_size=8))
def test_the_estimate_follows_the_formulas(pairs):
    y, v = np.array(pairs).T

    def squares(between):
        w = 1 / (v + between)
        return (w * (y - (w * y).sum() / w.sum()) ** 2).sum() - (len(y) - 1)

    between = optimize.brentq(squares, 0, 100, xtol=1e-14) if squares(0) > 0 else 0
    w = 1 / (v + between)
    mean = (w * y).sum() / w.sum()
    error = np.sqrt(max(1, (w * (y - mean) ** 2).sum() / (len(y) - 1)) / w.sum())
    pooled = pool([Effect(*pair) for pair in pairs])
    assert pooled.mean == pytest.approx(mean, abs=1e-9)
    assert pooled.deviation**2 == pytest.approx(between, abs=1e-9)
    low, high = pooled.interval or (np.nan, np.nan)
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, len(y) - 1) * error, abs=1e-9)


def test_the_deviation_is_that_of_the_effects_where_errors_are_small():
    """Also if one data set is measured much better than the others."""
    values = [-0.09, -0.30, -0.83, -1.63, -7.98]
    effects = [Effect(value, variance) for value, variance in zip(values, [1e-6, 1e-4, 1e-4, 1e-3, 1e-2], strict=True)]
    assert pool(effects).deviation == pytest.approx(np.std(values, ddof=1), rel=0.01)
    assert pool(effects).mean == pytest.approx(np.mean(values), rel=0.01)


def test_one_data_set_has_no_interval():
    assert pool([Effect(0.5, 0.1)]).interval is None


def test_several_seeds_count_as_one_data_set():
    mean = Effect.mean([Effect(0.1, 0.01), Effect(0.5, 0.01)])
    assert [mean.value, mean.variance] == pytest.approx([0.3, 0.01 + 0.08 / 2])
    assert Effect.mean([Effect(0.1, 0.01), Effect(0.1, 0.03)]).variance == pytest.approx(0.02)
    assert Effect.mean([Effect(0.1, 0.01)]) == Effect(0.1, 0.01)


def test_an_effect_has_the_interval_it_was_measured_with():
    comparison = run(-0.02).evaluation.fast.against_uniform
    assert Effect.of(comparison).interval == pytest.approx((-0.03, -0.01))


def run(difference):
    content = values(Cell("mnist", "max_min", 0))
    for baseline in ("dynamic", "uniform"):
        comparison = content["evaluation"]["variants"]["fast"][f"against_{baseline}"]
        comparison |= {"difference": difference, "interval": [difference - 0.01, difference + 0.01]}
    return RunResult.from_dict(content)


def test_the_table_pairs_normalizations_by_data_set_and_seed():
    results = {
        Cell("mnist", "max_min", 0): run(-0.01),
        Cell("mnist", "softmax", 0): run(-0.04),
        Cell("cifar10", "max_min", 0): run(-0.03),
        Cell("cifar10", "max_min", 1): run(-0.03),
        Cell("cifar10", "softmax", 1): run(-0.06),
        Cell("fashion_mnist", "softmax", 0): run(-0.9),
    }
    lines = {line[0]: line[1:] for line in pooled_table(results).rows}
    assert lines["fast − dynamic, Max-Min"][2:] == ["2", "3"]
    assert lines["fast − dynamic, softmax − Max-Min"] == ["−3.00 (−9.48 to +3.48)", "0.00", "2", "2"]
    assert lines["fast − all ones, softmax"][2:] == ["3", "3"]
    assert {tuple(line[1:]) for line in pooled_table({}).rows} == {("not run", "", "0", "0")}
