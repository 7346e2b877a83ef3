"""Write the tables of the documentation from ``results/``: ``python -m tools.tables``.

A table lies between ``<!-- table: NAME -->`` and ``<!-- end -->``; a test keeps it equal to what this writes.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import TypeVar

from benchmarks.distributed import expected
from benchmarks.training import SHAPES, B

from fastcaps import CapsNet
from fastcaps._files import write_atomically
from fastcaps._result import Result, Table
from fastcaps.analysis.ablation import Ablation, Trial, iteration_name
from fastcaps.analysis.rejection import LengthComparison
from fastcaps.analysis.results import Evaluation
from fastcaps.benchmark.results import Benchmark, EngineTime, RoutingTime
from fastcaps.compression.results import CompressionResult
from fastcaps.nn.meta import without_weights
from fastcaps.reproduction import (
    TITLES,
    Cell,
    RunResult,
    accuracy_table,
    finished,
    losses_table,
    pooled_table,
    rows,
    runs_table,
    summary_table,
    with_tables,
)
from fastcaps.reproduction.paper import NORMALIZATIONS
from fastcaps.reproduction.pooling import Effect, effects_by_data
from fastcaps.reproduction.table import format_difference

R = TypeVar("R", bound=Result)

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    """Update every page."""
    for page in PAGES:
        text = page.read_text()
        new = updated(page, text)
        if new != text:
            write_atomically({page: new.encode()})
            print(f"{page.relative_to(ROOT)} updated")


def updated(page: Path, text: str) -> str:
    """Return the text of a page with updated tables, links relative to the page."""
    up = "../" * (len(page.relative_to(ROOT).parts) - 1)
    tables = {name: lambda make=make: make().replace("](results/", f"]({up}results/") for name, make in TABLES.items()}
    return with_tables(text, tables)


def load(kind: type[R], name: str) -> R:
    """Read ``results/NAME.json``."""
    return kind.load(ROOT / "results" / f"{name}.json")


def ablation(name: str) -> str:
    """Return the matrices of one network: the paper's with each filter, then other methods and iterations without."""
    compared = load(Ablation, name)
    last, held_out = compared.iterations, compared.best is not None
    trials = [
        trial
        for trial in compared.trials
        if (trial.method, trial.iteration) == ("per_class", last)
        or (trial.filter in ("none", "correct") and trial.method == "per_class")
        or (trial.filter in ("none", "correct") and trial.iteration == last)
    ]
    trials.sort(key=lambda t: (t.method != "per_class", t.iteration != last, t.method, t.iteration))
    columns = ["filter", "method", "iteration", "images", *(["held out"] if held_out else [])]
    columns += ["test", "95 %", "against uniform"]
    dynamic = [f"**{compared.dynamic[part]:.2%}**" for part in (["validation"] if held_out else []) + ["test"]]
    rows = [["*dynamic routing*", "", "", "", *dynamic, "", ""]]
    rows.append(["*uniform: all ones*", "", "", "", *_scores(compared.uniform), ""])
    for trial in trials:
        against = trial.test.against_uniform
        matrix = [f"`{trial.filter}`", f"`{trial.method}`", iteration_name(trial.iteration, last), f"{trial.images:,}"]
        rows.append([*matrix, *_scores(trial), f"+{against.gained} −{against.lost}"])
    return Table("", columns, rows).to_markdown()


def retraining() -> str:
    """Return variants of retraining one network of CIFAR-10."""
    start = load(Ablation, "cifar10-ablation")
    paper = next(t for t in start.trials if (t.filter, t.method, t.iteration) == ("none", "per_class", 3))
    dynamic = [f"{start.dynamic[part]:.2%}" for part in ("validation", "test")]
    rows = [
        ["nothing more, dynamic", "", "", *dynamic, "", ""],
        ["nothing more, master", "", "", *_scores(paper), ""],
        ["nothing more, uniform", "", "", *_scores(start.uniform), ""],
    ]
    for name, words in RETRAINED.items():
        run = load(RunResult, name)
        settings = [str(run.about.settings.epochs), f"{run.about.settings.learning_rate:g}"]
        rows.append([_link(words, name), *settings, *_accuracies(run), f"{run.evaluation.dynamic.accuracy:.2%}"])
    columns = ["", "epochs", "learning rate", "held out", "test", "95 %", "its dynamic sibling, test"]
    return Table("", columns, rows).to_markdown()


def trainings(prefix: str, variants: dict[str, str]) -> str:
    """Return variants of training, each with its best epoch on the images that it held out."""
    rows = []
    for name, words in variants.items():
        if not (ROOT / "results" / f"{prefix}-{name}.json").exists():
            rows.append([words, *["not run"] * 6])
            continue
        run = load(RunResult, f"{prefix}-{name}")
        others = [f"{variant.accuracy:.2%}" for variant in (run.evaluation.dynamic, run.evaluation.uniform)]
        rows.append([_link(words, f"{prefix}-{name}"), str(run.about.settings.epochs), *_accuracies(run), *others])
    columns = ["", "epochs", "held out, as trained", "folded", "95 %", "its weights, dynamic", "its weights, uniform"]
    return Table("", columns, rows).to_markdown()


def scaling(shape: str) -> str:
    """Return the efficiency that the model predicts for several machines, from a training step measured on one."""
    with without_weights():
        model = CapsNet(SHAPES[shape]())
    gradient = sum(4 * parameter.numel() for parameter in model.parameters())
    return Table("", *expected(STEP[shape] * B, gradient)).to_markdown()


# Seconds per image of a training step on two threads, as in docs/results/training-speed.md.
STEP = {"MNIST": 2.21e-3, "CIFAR-10": 1.30e-3}

VARIANTS = {
    "dynamic": "dynamic routing, then accumulated coefficients",
    "new": "a new network with coefficients accumulated before",
    "switched": "{k} dynamic, accumulated, trained on",
    "refreshed": "the same, refreshed every {n}",
    "afresh": "{k} dynamic on a fifth, then new weights",
    "uniform": "a new network with uniform coefficients",
}
CONTINUED = {
    "fixed": "the first, two more epochs with its coefficients",
    "control": "the first, two more epochs with dynamic routing",
}


def variants(k: str, n: str, **more: str) -> dict[str, str]:
    """Return `VARIANTS` for ``k`` dynamic epochs, refreshed every ``n`` epochs."""
    return {name: words.format(k=k, n=n) for name, words in {**VARIANTS, **more}.items()}


BEST = {
    "best": "from the network of 20 epochs",
    "best-24-before": "from the network of 60 epochs before its weights were rounded",
    "best-24": "from the network of 60 epochs, `cifar10-dynamic`: `--recipe best`, the bundled `cifar10`",
    "best-dynamic": "the same with dynamic routing, the control",
}

REFITTED = {
    "uniform": "with all ones, by cross-entropy",
    "master": "with the master coefficients, by cross-entropy",
    "dynamic": "with dynamic routing, by cross-entropy: the control",
    "margin": "with all ones, by the margin loss",
}

RETRAINED = {
    "cifar10-fixed": "with the master coefficients",
    "cifar10-fixed-low": "with the master coefficients",
    "cifar10-fixed-long": "with the master coefficients",
    "cifar10-uniform": "with uniform coefficients",
    "cifar10-control": "with dynamic routing, the control",
}


def bench(name: str) -> str:
    """Return the milliseconds per image of each engine at each batch size, and the speedup over plain routing."""
    measured = load(Benchmark, name)
    batches = measured.settings.batches
    by_engine: dict[str, dict[int, EngineTime]] = {}
    for row in measured.engines:
        by_engine.setdefault(row.engine, {})[row.batch] = row
    table = []
    for engine, rows_of in by_engine.items():
        last = rows_of[batches[-1]]
        times = [f"{rows_of[batch].ms_per_image:.2f} ({rows_of[batch].times_faster:.1f}×)" for batch in batches]
        shares = "" if last.shares is None else " / ".join(f"{100 * share:.0f}" for share in last.shares.values())
        table.append([engine, *times, f"{last.size_mb:.1f}", shares, f"{last.share_of_peak:.0%}"])
    head = ["", *(f"batch {batch}" for batch in batches), "file or weights, MB"]
    return Table("", [*head, "layers, %", "of peak"], table).to_markdown()


def growth(name: str) -> str:
    """Return the times of the routing layer alone, as each of its sizes grows."""
    by_size: dict[tuple[str, int], dict[str, RoutingTime]] = {}
    for row in load(Benchmark, name).growth:
        by_size.setdefault((row.axis, row.size), {})[row.routing] = row
    table = []
    for (axis, size), by_routing in by_size.items():
        cells = [f"{row.ms_per_image:.3f} ms" for row in by_routing.values()]
        table.append([f"{axis}: {size:,}", *cells, f"{by_routing['folded'].times_faster:.1f}×"])
    return Table("", ["", *next(iter(by_size.values())), "folded against plain"], table).to_markdown()


def answers(name: str) -> str:
    """Return how the answers of the engines differ from those in float64."""
    table = [
        [
            row.engine,
            f"{row.accuracy:.2%}",
            f"{row.changed} of {row.images:,}",
            f"{row.largest_difference:.1e}",
            f"{row.alone:.1e}",
        ]
        for row in load(Benchmark, name).answers or ()
    ]
    columns = ["", "accuracy", "answers changed", "lengths differ by", "alone and in a batch"]
    return Table("", columns, table).to_markdown()


# Files of a compression, and of its evaluation with the original network beside it.
COMPRESSED = {
    "mnist": "MNIST, seed 0: `mnist-small`",
    "mnist-1": "MNIST, seed 1",
    "mnist-2": "MNIST, seed 2",
    "mnist-shifted-0": "MNIST, seed 0, shifted images only",
    "mnist-shifted-1": "MNIST, seed 1, shifted images only, not averaged",
    "mnist-shifted-2": "MNIST, seed 2, shifted images only, not averaged",
    "fashion": "Fashion-MNIST",
    "cifar10-half": "CIFAR-10, `--max-drop 0`",
    "cifar10": "CIFAR-10, `--max-drop 0.5`",
    "cifar10-best": "CIFAR-10 after eight epochs of all ones",
}


def compressed() -> str:
    """Return the compressed networks: size, training, accuracy against the original with dynamic routing."""
    lines = []
    for name, words in COMPRESSED.items():
        if not (ROOT / "results" / f"compress-{name}-test.json").exists():
            lines.append([words, *["not run"] * 7])
            continue
        result, test = load(CompressionResult, f"compress-{name}"), load(Evaluation, f"compress-{name}-test")
        step = next(step for step in result.steps if step.size == result.size)
        fast, other = test.variants["fast"], test.variants["other"]
        against = fast.against_other
        assert against is not None
        lines.append(
            [
                _link(words, f"compress-{name}"),
                f"{step.size.types} of {result.whole.types}, {step.size.maps} of {result.whole.maps}",
                f"{result.settings.refit.epochs}, {result.settings.views}",
                f"{step.accuracy:.2%}",
                f"{fast.accuracy:.2%}",
                f"{other.accuracy:.2%}",
                format_difference(against.difference, against.interval),
                f"{against.p_value:.2g}",
            ]
        )
    columns = ["network", "types, maps", "epochs, views", "held out", "test", "original", "difference", "p"]
    return Table("", columns, lines).to_markdown()


def size_speedups(name: str) -> str:
    """Return how many times as fast as the folded network each size of a search is, by engine and batch size."""
    result = load(CompressionResult, name)
    points = list(dict.fromkeys((time.engine, time.batch) for time in result.times))
    ms = {(time.network, time.engine, time.batch): time.ms_per_image for time in result.times}
    lines = []
    for step in result.steps:
        ratios = [ms["whole", *point] / ms[str(step.size), *point] for point in points]
        lines.append([str(step.size), f"{step.accuracy:.2%}", *(f"{ratio:.1f}×" for ratio in ratios)])
    columns = ["", "held out", *(f"{engine}, batch {batch}" for engine, batch in points)]
    return Table("", columns, lines).to_markdown()


def headline(runs: Mapping[str, str]) -> str:
    """Return the speeds that the README names, one column per run of the benchmark."""
    measured = [_Speeds(load(Benchmark, name)) for name in runs.values()]
    rows: dict[str, Callable[[_Speeds], str]] = {
        "folded network, batches of 128": lambda run: f"{run.times('folded', 128):.1f}×",
        "int8 file of the folded network, one image at a time": lambda run: f"{run.times('ONNX folded int8', 1):.1f}×",
        "compressed network, one image at a time": lambda run: f"{run.compressed[1]:.0f}×",
        "compressed network, batches of 128": lambda run: f"{run.compressed[128]:.0f}×",
        "against Efficient-CapsNet: compressed network, best engine of each, any batch size": lambda run: (
            f"at least {math.floor(10 * min(run.ahead)) / 10:.1f}×"  # a lower bound is rounded down
        ),
        "answers that folding, ONNX and int8 change": lambda run: run.answers,
    }
    table = [[what, *(cell(run) for run in measured)] for what, cell in rows.items()]
    columns = ["times as fast as plain dynamic routing: MNIST, two threads of a CPU", *runs]
    return Table("", columns, table).to_markdown()


def speeds() -> str:
    """Return what every processor gains, one column per run of the benchmark."""
    runs = {
        "AMD EPYC, AVX-512 and VNNI": "bench-mnist",
        "[AVX2](#on-avx2)": "bench-mnist-avx2",
        "[Xeon](#on-another-processor-with-avx-512), AVX-512 and VNNI": "bench-mnist-xeon",
    }
    measured = [_Speeds(load(Benchmark, name)) for name in runs.values()]
    rows: dict[str, Callable[[_Speeds], str]] = {
        "folded network, PyTorch, batch 128": lambda run: f"{run.times('folded', 128):.1f}×",
        "its routing layer alone": lambda run: f"{run.layer:.0f}×",
        "compressed network, fastest engine, by batch size": lambda run: _range(run.compressed.values(), 0),
        "compressed network against Efficient-CapsNet, fastest engine of each": lambda run: _range(run.ahead, 1),
    }
    table = [[what, *(cell(run) for run in measured)] for what, cell in rows.items()]
    return Table("", ["", *runs], table).to_markdown()


def _range(values: Iterable[float], digits: int) -> str:
    low, high = min(values := list(values)), max(values)
    return f"{low:.{digits}f} to {high:.{digits}f}×"


class _Speeds:
    """Ratios of one run, against plain dynamic routing alone or in turns, whichever was faster."""

    def __init__(self, result: Benchmark) -> None:
        self._ms = {(row.engine, row.batch): row.ms_per_image for row in result.engines}
        self._plain = {row.batch: min(row.ms_per_image, row.alone_ms_per_image) for row in result.disturbance}
        self.compressed = {batch: self._plain[batch] / self._best("compressed", batch) for batch in self._plain}
        self.ahead = [self._best("Efficient-CapsNet", batch) / self._best("compressed", batch) for batch in self._plain]
        (self.layer,) = [
            row.times_faster for row in result.growth if (row.axis, row.size, row.routing) == ("batch", 128, "folded")
        ]
        rows = [row for row in result.answers or () if row.engine in ("folded", "ONNX folded", "ONNX folded int8")]
        if rows:
            self.answers = f"{sum(row.changed for row in rows)} of {min(row.images for row in rows):,}"

    def times(self, engine: str, batch: int) -> float:
        """Return how many times as fast an engine is."""
        return self._plain[batch] / self._ms[engine, batch]

    def _best(self, network: str, batch: int) -> float:
        return min(time for (engine, b), time in self._ms.items() if b == batch and network in engine)


def helps(results: Mapping[Cell, RunResult]) -> str:
    """Return master coefficients compared with all ones, by data set and normalization."""
    effects = [effects_by_data(results, rule, lambda fast: fast.against_uniform) for rule in NORMALIZATIONS]
    lines = [[title, *(_mean_effect(by_data.get(data, {})) for by_data in effects)] for data, title in TITLES.items()]
    return Table("", ["master coefficients − all ones", *NORMALIZATIONS.values()], lines).to_markdown()


def _mean_effect(by_seed: Mapping[int, Effect]) -> str:
    if not by_seed:
        return "not run"
    mean = Effect.mean(list(by_seed.values()))
    seeds = "" if len(by_seed) == 1 else f", {len(by_seed)} seeds"
    return format_difference(mean.value, mean.interval) + seeds


def dependence(results: Mapping[Cell, RunResult]) -> str:
    """Return what dynamic routing and master coefficients are worth in each network: points more than all ones."""
    networks: dict[str, list[RunResult]] = {}
    for cell, run in results.items():
        networks.setdefault(f"{TITLES[cell.data]}, {NORMALIZATIONS[cell.normalization]}", []).append(run)
    networks["CIFAR-10, Max-Min, 20 epochs"] = [load(RunResult, "cifar10-20")]
    lines = []
    for name, runs in networks.items():
        ones, dynamic, master = (
            100 * mean(getattr(run.evaluation, routing).accuracy for run in runs)
            for routing in ("uniform", "dynamic", "fast")
        )
        lines.append((dynamic - ones, master - ones, name))
    cells = [[name, *(f"{points:+.2f}".replace("-", "−") for points in worth)] for *worth, name in sorted(lines)[::-1]]
    return Table("", ["network", "dynamic routing", "master coefficients"], cells).to_markdown()


TABLES: dict[str, Callable[[], str]] = {
    "cifar10-ablation": lambda: ablation("cifar10-ablation"),
    "mnist-ablation": lambda: ablation("mnist-ablation"),
    "retraining": retraining,
    "scaling-mnist": lambda: scaling("MNIST"),
    "scaling-cifar10": lambda: scaling("CIFAR-10"),
    "cifar10-variants": lambda: trainings("cifar10-3", variants("1 epoch", "epoch")),
    "fashion-variants": lambda: trainings("fashion-3", variants("1 epoch", "epoch", **CONTINUED)),
    "refits": lambda: trainings("cifar10-refit", REFITTED),
    "cifar10-best": lambda: trainings("cifar10", BEST),
    "digits": lambda: trainings("digits", variants("3 epochs", "2 epochs")),
    "rankings": lambda: load(CompressionResult, "compress-mnist-search").tables()[0].to_markdown(),
    "compressed": compressed,
    "compressed-cifar10": lambda: size_speedups("compress-cifar10"),
    "compressed-cifar10-best": lambda: size_speedups("compress-cifar10-best"),
    "rankings-cifar10": lambda: load(CompressionResult, "compress-cifar10").tables()[0].to_markdown(),
    "lengths": lambda: load(LengthComparison, "mnist-lengths").tables()[0].to_markdown(),
    "lengths-small": lambda: load(LengthComparison, "mnist-small-lengths").tables()[0].to_markdown(),
    "headline": lambda: headline({"AVX-512 with VNNI": "bench-mnist", "AVX2": "bench-mnist-avx2"}),
    "bench": lambda: bench("bench-mnist"),
    "bench-avx2": lambda: bench("bench-mnist-avx2"),
    "speeds": speeds,
    "growth": lambda: growth("bench-mnist"),
    "answers": lambda: answers("bench-mnist"),
    "reproduction": lambda: summary_table(rows(finished(ROOT / "results"))).to_markdown(),
    "reproduction-details": lambda: accuracy_table(rows(finished(ROOT / "results"))).to_markdown(),
    "losses": lambda: losses_table(finished(ROOT / "results")).to_markdown(),
    "helps": lambda: helps(finished(ROOT / "results")),
    "dependence": lambda: dependence(finished(ROOT / "results")),
    "pooled": lambda: pooled_table(finished(ROOT / "results")).to_markdown(),
    "runs": lambda: runs_table(finished(ROOT / "results"), lambda name: _link(name, name)).to_markdown(),
}


def _link(words: str, name: str) -> str:
    return f"[{words}](results/{name}.json)"


def _scores(trial: Trial) -> list[str]:
    low, high = trial.test.interval
    scores = [one for one in (trial.validation, trial.test) if one is not None]
    return [*(f"{score.accuracy:.2%}" for score in scores), f"{100 * low:.1f} – {100 * high:.1f}"]


def _accuracies(run: RunResult) -> list[str]:
    """Return the best epoch on the held-out images, if any; fast routing on the test images, with its interval."""
    low, high = run.evaluation.fast.interval
    held_out = run.best_validation_accuracy
    return [
        "–" if held_out is None else f"{held_out:.2%}",
        f"{run.evaluation.fast.accuracy:.2%}",
        f"{100 * low:.1f} – {100 * high:.1f}",
    ]


if __name__ == "__main__":
    main()
