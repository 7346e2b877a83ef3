"""Finished runs as tables beside the paper's: means over seeds, single runs, losses.

*Final* is the accuracy of the trained network; nothing was selected on the test set. *Highest* is the best of all
epochs, as in the paper, and is selected on the test set. All in percent.
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fastcaps._result import Table
from fastcaps.analysis.results import Comparison, Variant
from fastcaps.reproduction.cells import Cell
from fastcaps.reproduction.paper import NORMALIZATIONS, PAPER, ROUTINGS, TITLES
from fastcaps.reproduction.results import RunResult, differing_settings

_MARKED_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n)(?:(?!<!-- table:).)*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Row:
    """One number of the paper's table, and ours: one entry per seed.

    Attributes:
        data: name of the data set.
        normalization: normalization of the coefficients.
        routing: ``"dynamic"`` or ``"fast"``.
        paper: the paper's mean and standard deviation.
        seeds: seeds of our runs; empty if there are none.
        epochs: numbers of epochs of our runs, without duplicates.
        final: accuracies of the trained networks.
        highest: highest accuracies of the epochs that were evaluated on the test set; None for fast routing if not
            every epoch was.
        uniform: accuracies of the same networks with equal coefficients.
        images: ``"original"`` or ``"generated"``, or both.
        notes: what else a reader must know.
    """

    data: str
    normalization: str
    routing: str
    paper: tuple[float, float]
    seeds: tuple[int, ...]
    epochs: tuple[int, ...]
    final: tuple[float, ...]
    highest: tuple[float, ...] | None
    uniform: tuple[float, ...]
    images: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def difference(self) -> float | None:
        """Our final mean minus the paper's, in points."""
        return statistics.mean(self.final) - self.paper[0] if self.final else None

    @property
    def source(self) -> str:
        """Description of the runs behind the numbers."""
        seeds = f"{len(self.seeds)} {'seed' if len(self.seeds) == 1 else 'seeds'}"
        parts = [seeds, f"{_join(self.epochs)} epochs", f"{_join(self.images)} images", *self.notes]
        return f"{NORMALIZATIONS[self.normalization]}: {', '.join(parts)}."

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with means and standard deviations."""
        spreads = {name: spread(getattr(self, name)) for name in ("final", "highest", "uniform")}
        return {**asdict(self), "difference": self.difference, "mean_and_deviation": spreads}


def spread(values: Sequence[float] | None) -> tuple[float, float | None] | None:
    """Return mean and sample standard deviation; the deviation of one value is None; None without values."""
    if not values:
        return None
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def rows(results: Mapping[Cell, RunResult]) -> list[Row]:
    """Return the rows of the paper's table with our results."""
    return [
        _row(data, rule, routing, {c.seed: r for c, r in results.items() if (c.data, c.normalization) == (data, rule)})
        for data in TITLES
        for rule in NORMALIZATIONS
        for routing in ROUTINGS
    ]


def _row(data: str, normalization: str, routing: str, results: Mapping[int, RunResult]) -> Row:
    seeds = tuple(sorted(results))
    runs = [results[seed] for seed in seeds]
    best = [_highest(run, routing) for run in runs]
    return Row(
        data=data,
        normalization=normalization,
        routing=routing,
        paper=PAPER[data, normalization, routing],
        seeds=seeds,
        epochs=tuple(sorted({run.about.settings.epochs for run in runs})),
        final=tuple(100 * run.accuracy(routing) for run in runs),
        highest=tuple(value for value in best if value is not None) if None not in best else None,
        uniform=tuple(100 * run.evaluation.uniform.accuracy for run in runs),
        images=tuple(sorted({run.about.data.kind for run in runs})),
        notes=tuple(_notes(runs)),
    )


def _highest(run: RunResult, routing: str) -> float | None:
    """Return the test accuracy of the best epoch; for fast routing only if it was measured after every epoch."""
    values = [
        epoch.test_accuracy if routing == "dynamic" else epoch.measures.get("fast_test_accuracy")
        for epoch in run.metrics
    ]
    measured = [100 * value for value in values if value is not None]
    if not measured or (routing == "fast" and len(measured) < len(values)):
        return None
    return max(*measured, 100 * run.accuracy(routing))


def _notes(runs: Sequence[RunResult]) -> list[str]:
    notes = [
        f"{count:,} training images held out" for count in sorted({run.about.data.validation for run in runs}) if count
    ]
    tests = {(sum(epoch.test_accuracy is not None for epoch in run.metrics), len(run.metrics)) for run in runs}
    notes += [f"test set seen after {some} of {every} epochs" for some, every in sorted(tests) if 0 < some < every]
    if any(run.about.rounded for run in runs):
        notes.append("weights rounded to half precision before evaluation")
    differing = differing_settings(list(runs))
    if differing:
        notes.append(f"differ between seeds: {', '.join(differing)}")
    return notes


def accuracy_table(table: Sequence[Row]) -> Table:
    """Return the paper's table beside ours."""
    columns = ["data set", "routing", "paper", "ours, final", "ours, highest", "difference", "uniform"]
    columns += ["seeds", "epochs", "images", "notes"]
    lines = []
    for row in table:
        ours = ["not run", *[""] * 7]
        if row.seeds:
            ours = [
                _mean(spread(row.final)),
                _mean(spread(row.highest)),
                _signed(row.difference),
                _mean(spread(row.uniform)) if row.routing == "fast" else "",
                str(len(row.seeds)),
                _join(row.epochs),
                _join(row.images),
                "; ".join(row.notes),
            ]
        routing = f"{row.routing}, {NORMALIZATIONS[row.normalization]}"
        lines.append([TITLES[row.data], routing, _mean(row.paper), *ours])
    return Table("Test accuracies, %", columns, lines)


def summary_table(table: Sequence[Row]) -> Table:
    """Return one line per data set: dynamic → fast routing, the paper's beside ours."""
    cells = {(row.data, row.normalization, row.routing): row for row in table}
    columns = ["data set"]
    for title in NORMALIZATIONS.values():
        columns += [f"{title}, paper", f"{title}, ours", "all ones", "seeds"]
    lines = []
    for data, title in TITLES.items():
        line = [title]
        for rule in NORMALIZATIONS:
            pair = [cells[data, rule, routing] for routing in ROUTINGS]
            line.append(" → ".join(f"{row.paper[0]:.2f}" for row in pair))
            if pair[0].seeds:
                line.append(" → ".join(_mean(spread(row.final)) for row in pair))
                line += [_mean(spread(pair[0].uniform)), str(len(pair[0].seeds))]
            else:
                line += ["not run", "", ""]
        lines.append(line)
    return Table("Test accuracies, %: dynamic → fast routing", columns, lines)


def runs_table(results: Mapping[Cell, RunResult], link: Callable[[str], str] = lambda name: name) -> Table:
    """Return one row per run, with intervals and paired tests.

    Args:
        results: results by cell.
        link: returns the text to show for the name of a run.
    """
    columns = ["run", "dynamic", "fast", "uniform", "fast − dynamic", "fast − uniform", "ceiling", "epochs", "hours"]
    lines = []
    for cell in sorted(results, key=lambda c: (list(TITLES).index(c.data), c.normalization, c.seed)):
        run, evaluation = results[cell], results[cell].evaluation
        lines.append(
            [
                link(cell.name),
                *map(_with_interval, (evaluation.dynamic, evaluation.fast, evaluation.uniform)),
                *map(_paired, (evaluation.fast.against_dynamic, evaluation.fast.against_uniform)),
                _with_interval(evaluation.variants.get("ceiling")),
                str(run.about.settings.epochs),
                "" if run.about.seconds is None else f"{run.about.seconds / 3600:.1f}",
            ]
        )
    return Table("Every run", columns, lines)


def losses_table(results: Mapping[Cell, RunResult]) -> Table:
    """Return what fast routing loses with each normalization, for every seed that was run with both.

    Each loss is paired; the interval of their difference assumes that the two are independent.
    """
    names = list(NORMALIZATIONS.values())
    between = f"{names[1]} − {names[0]}"
    columns = ["data set", "seed", *(f"paper, {name}" for name in names), *names, between, "differ in"]
    lines = []
    for data, title in TITLES.items():
        paper = [PAPER[data, rule, "fast"][0] - PAPER[data, rule, "dynamic"][0] for rule in NORMALIZATIONS]
        seeds = [{c.seed for c in results if (c.data, c.normalization) == (data, rule)} for rule in NORMALIZATIONS]
        both = sorted(set.intersection(*seeds))
        if not both:
            lines.append([title, "", *map(_signed, paper), "not run with both", "", "", ""])
        for seed in both:
            runs = [results[Cell(data, rule, seed)] for rule in NORMALIZATIONS]
            differing = ", ".join(differing_settings(runs))
            lines.append([title, str(seed), *map(_signed, paper), *_losses(runs), differing])
    return Table("What fast routing loses", columns, lines)


def _losses(runs: Sequence[RunResult]) -> list[str]:
    """Return the losses of two runs, and how much larger the second is, with intervals."""
    first, second = (run.evaluation.fast.against_dynamic for run in runs)
    if first is None or second is None:
        return ["", "", ""]
    middles, halves = zip(*(_middle_and_half(loss.interval) for loss in (first, second)), strict=True)
    middle, half = middles[1] - middles[0], math.hypot(*halves)
    difference = format_difference(second.difference - first.difference, (middle - half, middle + half))
    return [*(format_difference(loss.difference, loss.interval) for loss in (first, second)), difference]


def _middle_and_half(interval: tuple[float, float]) -> tuple[float, float]:
    low, high = interval
    return (low + high) / 2, (high - low) / 2


def with_tables(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """Return a Markdown page with updated tables, each between ``<!-- table: NAME -->`` and ``<!-- end -->``."""
    closed = {match[2] for match in _MARKED_TABLE.finditer(text)}
    for name in tables:
        if f"<!-- table: {name} -->\n" in text and name not in closed:
            raise ValueError(f"the table {name} has no end: put <!-- end --> on a line after <!-- table: {name} -->")
    return _MARKED_TABLE.sub(
        lambda match: f"{match[1]}\n{tables[match[2]]()}\n{match[3]}" if match[2] in tables else match[0], text
    )


def _mean(value: tuple[float, float | None] | None) -> str:
    if value is None:
        return "–"
    mean, deviation = value
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def _join(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def _signed(points: float | None) -> str:
    return "" if points is None else f"{points:+.2f}".replace("-", "−")


def _with_interval(variant: Variant | None) -> str:
    if variant is None:
        return "–"
    low, high = (100 * end for end in variant.interval)
    return f"{100 * variant.accuracy:.2f} ({low:.2f} to {high:.2f})"


def _paired(comparison: Comparison | None) -> str:
    if comparison is None:
        return "–"
    return f"{format_difference(comparison.difference, comparison.interval)}, p = {comparison.p_value:.2g}"


def format_difference(difference: float, interval: tuple[float, float] | None) -> str:
    """Return a difference of accuracies in points, with its interval if there is one."""
    if interval is None:
        return _signed(100 * difference)
    low, high = (_signed(100 * end) for end in interval)
    return f"{_signed(100 * difference)} ({low} to {high})"
