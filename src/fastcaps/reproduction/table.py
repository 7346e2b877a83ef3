"""Finished cells as tables beside the paper's: means over seeds, single runs, as Markdown and as a page.

*Final* is the trained network's accuracy, for which nothing was chosen on the test set. *Highest* is the best of all
epochs, which is what the paper gives, and which is chosen on the test set. All in per cent.
"""

import html
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fastcaps._page import html_table, page
from fastcaps.reproduction.cells import Cell
from fastcaps.reproduction.paper import NORMALIZATIONS, PAPER, ROUTINGS, TITLES
from fastcaps.training.settings import TrainSettings

_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n)(?:(?!<!-- table:).)*?(<!-- end -->)", re.DOTALL)

_HINT = '<small class="hint">scrolls sideways →</small>'

# What runs may differ in and still be one experiment.
_HARMLESS = {"seed", "test_every", "checkpoint_every"}


@dataclass(frozen=True)
class Row:
    """One number of the paper's table, and ours: an entry a seed.

    Attributes:
        data: name of the data set.
        normalization: of the coefficients.
        routing: ``"dynamic"`` or ``"fast"``.
        paper: its mean and standard deviation.
        seeds: of our runs; none when it was not run.
        epochs: of our runs, each number once.
        final: accuracies of the trained networks.
        highest: of the epochs after which the test set was looked at, which the notes count; of fast routing None
            where that was not every epoch.
        uniform: of the same networks with all coefficients 1.
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

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON, with means and standard deviations."""
        spreads = {name: spread(getattr(self, name)) for name in ("final", "highest", "uniform")}
        return {**asdict(self), "difference": self.difference, "mean_and_deviation": spreads}


def spread(values: Sequence[float] | None) -> tuple[float, float | None] | None:
    """Mean and standard deviation (of a sample: n − 1); no deviation of one value, nothing of none."""
    if not values:
        return None
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def rows(found: Mapping[Cell, dict[str, Any]]) -> list[Row]:
    """The paper's table, row by row, with what was found."""
    return [
        _row(name, rule, routing, {c.seed: r for c, r in found.items() if (c.data, c.normalization) == (name, rule)})
        for name in TITLES
        for rule in NORMALIZATIONS
        for routing in ROUTINGS
    ]


def _row(data: str, normalization: str, routing: str, results: dict[int, dict[str, Any]]) -> Row:
    seeds = tuple(sorted(results))
    runs = [results[seed] for seed in seeds]
    best = [_highest(run, routing) for run in runs]
    return Row(
        data=data,
        normalization=normalization,
        routing=routing,
        paper=PAPER[data, normalization, routing],
        seeds=seeds,
        epochs=tuple(sorted({run["settings"]["epochs"] for run in runs})),
        final=tuple(_accuracy(run, routing) for run in runs),
        highest=tuple(value for value in best if value is not None) if None not in best else None,
        uniform=tuple(_accuracy(run, "uniform") for run in runs),
        images=tuple(sorted({run["data"]["provenance"]["kind"] for run in runs})),
        notes=tuple(_notes(runs)),
    )


def _accuracy(run: dict[str, Any], way: str) -> float:
    return 100 * float(run["evaluation"]["variants"][way]["accuracy"])


def _highest(run: dict[str, Any], routing: str) -> float | None:
    """The best epoch's accuracy on the test set; fast routing only if it was measured at every epoch."""
    entry = "test_accuracy" if routing == "dynamic" else "fast_test_accuracy"
    measured = [100 * float(row[entry]) for row in run["metrics"] if entry in row]
    if not measured or (routing == "fast" and len(measured) < len(run["metrics"])):
        return None
    return max(*measured, _accuracy(run, routing))


def _notes(runs: list[dict[str, Any]]) -> list[str]:
    notes = [
        f"{count:,} training images held out" for count in sorted({run["data"]["validation"] for run in runs}) if count
    ]
    looks = {(sum("test_accuracy" in row for row in run["metrics"]), len(run["metrics"])) for run in runs}
    notes += [f"test set seen after {some} of {every} epochs" for some, every in sorted(looks) if 0 < some < every]
    if any(run.get("rounded") for run in runs):
        notes.append("weights rounded to half precision before evaluation")
    differing = _differing(runs)
    if differing:
        notes.append(f"differ between seeds: {', '.join(differing)}")
    return notes


def _differing(runs: list[dict[str, Any]]) -> list[str]:
    """What is not the same for all runs, though it has a say in what they find."""
    known = [
        {
            **{k: v for k, v in TrainSettings.with_defaults(run["settings"]).items() if k not in _HARMLESS},
            **{name: run["data"].get(name) for name in ("augmentation", "fingerprint")},
        }
        for run in runs
    ]
    return [name for name in (known[0] if known else ()) if any(one[name] != known[0][name] for one in known)]


def accuracy_table(table: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The paper's table beside ours, in words."""
    head = ["data set", "routing", "paper", "ours, final", "ours, highest", "difference", "uniform"]
    head += ["seeds", "epochs", "images", "notes"]
    return head, [
        [
            TITLES[row.data],
            f"{row.routing}, {NORMALIZATIONS[row.normalization]}",
            _words(row.paper),
            *(
                [
                    _words(spread(row.final)),
                    _words(spread(row.highest)),
                    _signed(row.difference),
                    _words(spread(row.uniform)) if row.routing == "fast" else "",
                    str(len(row.seeds)),
                    _listed(row.epochs),
                    _listed(row.images),
                    "; ".join(row.notes),
                ]
                if row.seeds
                else ["not run", *[""] * 7]
            ),
        ]
        for row in table
    ]


def runs_table(
    found: Mapping[Cell, dict[str, Any]], link: Callable[[str], str] = lambda name: name
) -> tuple[list[str], list[list[str]]]:
    """Every run by itself, in words, with intervals and paired tests.

    Args:
        found: what was found.
        link: from a run's name to what is shown for it.
    """
    head = ["run", "dynamic", "fast", "uniform", "fast − dynamic", "fast − uniform", "ceiling", "epochs", "hours"]
    table = []
    for cell in sorted(found, key=lambda c: (list(TITLES).index(c.data), c.normalization, c.seed)):
        variants = found[cell]["evaluation"]["variants"]
        table.append(
            [
                link(cell.name),
                *(_with_interval(variants[way]) for way in ("dynamic", "fast", "uniform")),
                *(_paired(variants["fast"][f"against_{way}"]) for way in ("dynamic", "uniform")),
                _with_interval(variants["ceiling"]),
                str(found[cell]["settings"]["epochs"]),
                f"{found[cell]['seconds'] / 3600:.1f}",
            ]
        )
    return head, table


def losses_table(found: Mapping[Cell, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """What fast routing loses with each normalisation, in words: every seed that was run with both.

    Each loss is paired; the interval of their difference takes the two as independent.
    """
    names = list(NORMALIZATIONS.values())
    between = f"{names[1]} − {names[0]}"
    head = ["data set", "seed", *(f"paper, {name}" for name in names), *names, between, "differ in"]
    table = []
    for data in TITLES:
        paper = [PAPER[data, rule, "fast"][0] - PAPER[data, rule, "dynamic"][0] for rule in NORMALIZATIONS]
        seeds = [
            {cell.seed for cell in found if (cell.data, cell.normalization) == (data, rule)} for rule in NORMALIZATIONS
        ]
        both = sorted(set.intersection(*seeds))
        if not both:
            table.append([TITLES[data], "", *map(_signed, paper), "not run with both", "", "", ""])
        for seed in both:
            runs = [found[Cell(data, rule, seed)] for rule in NORMALIZATIONS]
            losses = [run["evaluation"]["variants"]["fast"]["against_dynamic"] for run in runs]
            difference = losses[1]["difference"] - losses[0]["difference"]
            middles, halves = zip(*(_middle_and_half(loss["interval"]) for loss in losses), strict=True)
            middle, half = middles[1] - middles[0], math.hypot(*halves)
            table.append(
                [
                    TITLES[data],
                    str(seed),
                    *map(_signed, paper),
                    *map(_difference, losses),
                    _difference({"difference": difference, "interval": (middle - half, middle + half)}),
                    ", ".join(_differing(runs)),
                ]
            )
    return head, table


def _middle_and_half(interval: Sequence[float]) -> tuple[float, float]:
    low, high = interval
    return (low + high) / 2, (high - low) / 2


def markdown(table: tuple[list[str], list[list[str]]]) -> str:
    """A table of words as Markdown."""
    head, body = table
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *body))


def with_tables(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """A Markdown page with its tables as they are now, each between ``<!-- table: NAME -->`` and ``<!-- end -->``."""
    closed = {found[2] for found in _TABLE.finditer(text)}
    for name in tables:
        if f"<!-- table: {name} -->" in text and name not in closed:
            raise ValueError(f"the table {name} has no end: put <!-- end --> on a line after <!-- table: {name} -->")
    return _TABLE.sub(
        lambda found: f"{found[1]}\n{tables[found[2]]()}\n{found[3]}" if found[2] in tables else found[0], text
    )


def report_page(found: Mapping[Cell, dict[str, Any]]) -> str:
    """Everything as one page that opens from disk."""
    table = rows(found)
    done = sum(bool(row.seeds) for row in table)
    sets = "".join(_section(name, [row for row in table if row.data == name]) for name in TITLES)
    head, body = runs_table(found, lambda name: f'<span class="name">{name}</span>')
    runs = [[line[0], *map(_in_two_lines, line[1:])] for line in body]
    losses_head, body = losses_table(found)
    losses = [[*map(_in_two_lines, line)] for line in body]
    made = "".join(
        f"<dt>{name}</dt><dd>{html.escape(_made(found[cell]))}</dd>"
        for name, cell in sorted((cell.name, cell) for cell in found)
    )
    return page(
        "The paper's table, reproduced",
        f"""<header><h1>The paper's table, reproduced</h1>
<p class="about">Test accuracies in per cent: mean ± standard deviation over seeds. {done} of {len(table)} rows were
run.</p>
<p><small>Paper: mean of the highest test accuracies of five trainings. Final: the trained network, for which nothing
was chosen on the test set. Highest: the best epoch on the test set, as in the paper. Difference: final minus paper,
in points. Uniform: the same network with all coefficients 1, without any routing.</small></p></header>
<main>{sets}
<h2>Every run</h2>{_HINT}{html_table(head, runs)}
<p><small>Small: 95 % intervals, Wilson's for accuracies. Differences are paired, in points, with McNemar's exact
p. Ceiling: each image with its own class's coefficients, which needs the answer. Hours: of training.</small></p>
<h2>What fast routing loses</h2>{_HINT}{html_table(losses_head, losses)}
<p><small>Fast minus dynamic routing of the same network, in points, with 95 % intervals; that of the difference takes
the two networks' losses as independent.</small></p>
<h2>How each was made</h2><dl>{made}</dl></main>
""",
    )


def _section(name: str, table: Sequence[Row]) -> str:
    """One data set of the page: its numbers, and in a sentence how many runs of what they are from."""
    head, body = accuracy_table(table)
    numbers = html_table(head[1:7], [[html.escape(cell) for cell in line[1:7]] for line in body])
    sentences = []
    for row in table:
        if row.routing == "dynamic" and row.seeds:
            parts = [f"{len(row.seeds)} {'seed' if len(row.seeds) == 1 else 'seeds'}", f"{_listed(row.epochs)} epochs"]
            parts += [f"{_listed(row.images)} images", *row.notes]
            sentences.append(f"{NORMALIZATIONS[row.normalization]}: {', '.join(parts)}.")
    return f"<h2>{TITLES[name]}</h2>{_HINT}{numbers}<p><small>{html.escape(' '.join(sentences))}</small></p>"


def _in_two_lines(cell: str) -> str:
    """A number, and below it what is in brackets and after them."""
    parts = re.fullmatch(r"(\S+) \((.*)\)(.*)", cell)
    return f"{parts[1]}<br><small>{parts[2]}{parts[3].replace(', ', '<br>')}</small>" if parts else html.escape(cell)


def _made(run: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    return f"{run['command']} ({run['threads']} threads of {run['machine']['processor']}; {versions})"


def _words(value: tuple[float, float | None] | None) -> str:
    if value is None:
        return "–"
    mean, deviation = value
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def _signed(points: float | None) -> str:
    return "" if points is None else f"{points:+.2f}".replace("-", "−")


def _with_interval(variant: dict[str, Any]) -> str:
    low, high = (100 * end for end in variant["interval"])
    return f"{100 * variant['accuracy']:.2f} ({low:.2f} to {high:.2f})"


def _paired(against: dict[str, Any]) -> str:
    return f"{_difference(against)}, p = {against['p_value']:.2g}"


def _difference(against: dict[str, Any]) -> str:
    low, high = (_signed(100 * end) for end in against["interval"])
    return f"{_signed(100 * against['difference'])} ({low} to {high})"
