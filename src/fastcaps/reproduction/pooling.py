"""Pool the runs: a random-effects estimate over data sets.

Each data set has an effect of its own, measured with an error, and the mean of the effects is estimated. The
variance between data sets is Paule and Mandel's (1982), which also holds where the errors of the data sets differ
much. The interval of the mean is Hartung and Knapp's (2001), which also holds for few data sets; it is never narrower
than the measurement errors alone imply.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fastcaps._result import Table
from fastcaps.analysis.results import Comparison, Variant
from fastcaps.reproduction.cells import Cell
from fastcaps.reproduction.paper import NORMALIZATIONS, TITLES
from fastcaps.reproduction.results import RunResult
from fastcaps.reproduction.table import format_difference

Compare = Callable[[Variant], Comparison | None]

_BASELINES: dict[str, Compare] = {
    "dynamic": lambda fast: fast.against_dynamic,
    "all ones": lambda fast: fast.against_uniform,
}
# Half the width of a 95 % interval, in standard errors.
_NORMAL = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Effect:
    """A difference of accuracies, and the variance of its error."""

    value: float
    variance: float

    def __sub__(self, other: "Effect") -> "Effect":
        """Return the difference of two effects with independent errors."""
        return Effect(self.value - other.value, self.variance + other.variance)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        half = _NORMAL * math.sqrt(self.variance)
        return self.value - half, self.value + half

    @classmethod
    def of(cls, comparison: Comparison) -> "Effect":
        """Return the difference of two routings of one network."""
        low, high = comparison.interval
        return cls(comparison.difference, ((high - low) / (2 * _NORMAL)) ** 2)

    @classmethod
    def mean(cls, effects: Sequence["Effect"]) -> "Effect":
        """Return the mean over seeds.

        All seeds have the same test images, so more seeds reduce only the part of the variance that is between seeds.
        """
        values = [effect.value for effect in effects]
        of_images = statistics.fmean(effect.variance for effect in effects)
        between_seeds = statistics.variance(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), of_images + between_seeds / len(values))


@dataclass(frozen=True)
class Pooled:
    """The mean effect over data sets.

    Attributes:
        mean: mean of the effects.
        interval: 95 % interval of the mean; None for a single data set.
        deviation: standard deviation of the effects between data sets, without measurement errors.
    """

    mean: float
    interval: tuple[float, float] | None
    deviation: float


def pool(effects: Sequence[Effect]) -> Pooled:
    """Return the random-effects estimate.

    Args:
        effects: one per data set, at least one, with variances above 0.
    """
    count = len(effects)
    if count == 1:
        return Pooled(effects[0].value, None, 0.0)
    between = _variance_between(effects)
    mean, spread, weight = _weighted(effects, between)
    # At least the value expected from measurement errors alone: few effects may agree by chance.
    spread = max(spread, count - 1)
    half = student_quantile(count - 1) * math.sqrt(spread / ((count - 1) * weight))
    return Pooled(mean, (mean - half, mean + half), math.sqrt(between))


def _variance_between(effects: Sequence[Effect]) -> float:
    """Return the variance between data sets with which the weighted squares have the sum that is expected of them."""
    expected = len(effects) - 1
    if _weighted(effects, 0.0)[1] <= expected:
        return 0.0
    values = [effect.value for effect in effects]
    # The sum of squares falls as the variance rises; here it is below what is expected.
    low, high = 0.0, sum((value - statistics.fmean(values)) ** 2 for value in values)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _weighted(effects, middle)[1] > expected else (low, middle)
    return high


def _weighted(effects: Sequence[Effect], between: float) -> tuple[float, float, float]:
    """Return the weighted mean, the weighted sum of squares around it, and the sum of the weights."""
    weights = [1 / (effect.variance + between) for effect in effects]
    total = sum(weights)
    mean = sum(w * effect.value for w, effect in zip(weights, effects, strict=True)) / total
    squares = sum(w * (effect.value - mean) ** 2 for w, effect in zip(weights, effects, strict=True))
    return mean, squares, total


def student_quantile(degrees: int, probability: float = 0.95) -> float:
    """Return the t that a variable of Student's distribution exceeds in absolute value with 1 − ``probability``."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _student(angle, degrees) < probability else (low, angle)
    return math.sqrt(degrees) * math.tan(high)


def _student(angle: float, degrees: int) -> float:
    """Return how often ``|t| < √degrees · tan(angle)`` (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    odd = degrees % 2
    term = math.sin(angle) * (math.cos(angle) if odd else 1)
    total = 0.0
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    return 2 / math.pi * (angle + total) if odd else total


def pooled_table(results: Mapping[Cell, RunResult]) -> Table:
    """Return the mean loss by fast routing and the mean gain by master coefficients, over all data sets."""
    first, second = NORMALIZATIONS
    lines = []
    for baseline, compare in _BASELINES.items():
        effects = {rule: effects_by_data(results, rule, compare) for rule in NORMALIZATIONS}
        lines += [_line(f"fast − {baseline}, {NORMALIZATIONS[rule]}", part) for rule, part in effects.items()]
        between = {
            data: {seed: effects[second][data][seed] - effect for seed, effect in seeds.items() if seed in other}
            for data, seeds in effects[first].items()
            if (other := effects[second].get(data, {})).keys() & seeds.keys()
        }
        lines.append(_line(f"fast − {baseline}, {NORMALIZATIONS[second]} − {NORMALIZATIONS[first]}", between))
    columns = ["difference", "mean over data sets", "deviation between them", "data sets", "runs"]
    return Table("Over all data sets", columns, lines)


def effects_by_data(results: Mapping[Cell, RunResult], rule: str, compare: Compare) -> dict[str, dict[int, Effect]]:
    """Return the difference of fast routing from another, for one normalization, by data set and seed."""
    effects: dict[str, dict[int, Effect]] = {}
    for cell in sorted(results, key=lambda cell: (list(TITLES).index(cell.data), cell.seed)):
        comparison = compare(results[cell].evaluation.fast)
        if cell.normalization == rule and comparison is not None:
            effects.setdefault(cell.data, {})[cell.seed] = Effect.of(comparison)
    return effects


def _line(title: str, effects: Mapping[str, Mapping[int, Effect]]) -> list[str]:
    if not effects:
        return [title, "not run", "", "0", "0"]
    pooled = pool([Effect.mean(list(seeds.values())) for seeds in effects.values()])
    deviation = "" if pooled.interval is None else f"{100 * pooled.deviation:.2f}"
    mean = format_difference(pooled.mean, pooled.interval)
    return [title, mean, deviation, str(len(effects)), str(sum(map(len, effects.values())))]
