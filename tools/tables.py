"""Write the tables of the documentation from ``results/``: ``python -m tools.tables``.

A table lies between ``<!-- table: NAME -->`` and ``<!-- end -->``; a test keeps it equal to what this writes.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.distributed import expected
from benchmarks.training import SHAPES, B

from fastcaps import CapsNet
from fastcaps._files import write_atomically
from fastcaps.reproduction import accuracy_table, finished, losses_table, rows, runs_table, with_tables
from fastcaps.reproduction.table import markdown

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    """Bring every page up to date."""
    for page in PAGES:
        text = page.read_text()
        new = with_tables(text, TABLES)
        if new != text:
            write_atomically({page: new.encode()})
            print(f"{page.relative_to(ROOT)} was brought up to date")


def result(name: str) -> dict[str, Any]:
    """What ``results/NAME.json`` says."""
    found: dict[str, Any] = json.loads((ROOT / "results" / f"{name}.json").read_text())
    return found


def ablation(name: str) -> str:
    """Matrices of one network: the paper's with each filter, then other methods and iterations without."""
    found = result(name)
    last = found["iterations"]
    held_out = found["best"] is not None
    trials = [
        trial
        for trial in found["trials"]
        if (trial["method"], trial["iteration"]) == ("containers", last)
        or (trial["filter"] in ("none", "correct") and trial["method"] == "containers")
        or (trial["filter"] in ("none", "correct") and trial["iteration"] == last)
    ]
    trials.sort(key=lambda t: (t["method"] != "containers", t["iteration"] != last, t["method"], t["iteration"]))
    head = ["filter", "method", "iteration", "images", *(["held out"] if held_out else [])]
    head += ["test", "95 %", "against uniform"]
    dynamic = [f"**{found['dynamic'][part]:.2%}**" for part in (["validation"] if held_out else []) + ["test"]]
    table = [["*dynamic routing*", "", "", "", *dynamic, "", ""]]
    uniform = found["uniform"]
    table.append(["*uniform: all ones*", "", "", "", *_scores(uniform, held_out), ""])
    for trial in trials:
        against = trial["test"]["against_uniform"]
        iteration = "after" if trial["iteration"] == last + 1 else str(trial["iteration"])
        table.append(
            [
                f"`{trial['filter']}`",
                f"`{trial['method']}`",
                iteration,
                f"{trial['images']:,}",
                *_scores(trial, held_out),
                f"+{against['gained']} −{against['lost']}",
            ]
        )
    return markdown((head, table))


def retraining() -> str:
    """CIFAR-10, going on from one network in several ways."""
    start = result("cifar10-ablation")
    plain = next(t for t in start["trials"] if (t["filter"], t["method"], t["iteration"]) == ("none", "containers", 3))
    table = [
        ["nothing more, dynamic", "", "", *_parts(start["dynamic"]), "", ""],
        ["nothing more, master", "", "", *_scores(plain, True), ""],
        ["nothing more, uniform", "", "", *_scores(start["uniform"], True), ""],
    ]
    for name, words in RETRAINED.items():
        found = result(name)
        best = max(found["metrics"], key=lambda row: float(row["validation_accuracy"]))
        fast, settings = found["evaluation"]["variants"]["fast"], found["settings"]
        low, high = fast["interval"]
        table.append(
            [
                f"[{words}](../results/{name}.json)",
                str(settings["epochs"]),
                f"{settings['learning_rate']:g}",
                f"{best['validation_accuracy']:.2%}",
                f"{fast['accuracy']:.2%}",
                f"{100 * low:.1f} – {100 * high:.1f}",
                f"{found['evaluation']['variants']['dynamic']['accuracy']:.2%}",
            ]
        )
    head = ["", "epochs", "learning rate", "held out", "test", "95 %", "its dynamic sibling, test"]
    return markdown((head, table))


def trainings(prefix: str, ways: dict[str, str]) -> str:
    """Every way of training, each run with its best epoch on the images that it held out."""
    table = []
    for name, words in ways.items():
        if not (ROOT / "results" / f"{prefix}-{name}.json").exists():
            table.append([words, *["not run"] * 6])
            continue
        found = result(f"{prefix}-{name}")
        variants = found["evaluation"]["variants"]
        low, high = variants["fast"]["interval"]
        best = max(found["metrics"], key=lambda row: float(row["validation_accuracy"]))
        table.append(
            [
                f"[{words}](../results/{prefix}-{name}.json)",
                str(found["settings"]["epochs"]),
                f"{best['validation_accuracy']:.2%}",
                f"{variants['fast']['accuracy']:.2%}",
                f"{100 * low:.1f} – {100 * high:.1f}",
                *(f"{variants[way]['accuracy']:.2%}" for way in ("dynamic", "uniform")),
            ]
        )
    head = ["", "epochs", "held out, as trained", "folded", "95 %", "its weights, dynamic", "its weights, uniform"]
    return markdown((head, table))


def scaling(shape: str) -> str:
    """What the model of several machines expects of a network, from a training step measured on one."""
    with torch.device("meta"):
        model = CapsNet(SHAPES[shape]())
    gradient = sum(4 * parameter.numel() for parameter in model.parameters())
    return markdown(expected(STEP[shape] * B, gradient))


# Seconds an image of a training step on two threads, as in docs/training.md.
STEP = {"MNIST": 3.71e-3, "CIFAR-10": 3.17e-3}

WAYS = {
    "dynamic": "dynamic routing, then accumulated",
    "new": "a new network with coefficients accumulated before",
    "switched": "{k} dynamic, accumulated, trained on",
    "refreshed": "the same, refreshed every {n}",
    "afresh": "{k} dynamic on a fifth, then afresh",
    "uniform": "a new network with uniform coefficients",
}
GOING_ON = {"fixed": "going on from the first with its coefficients", "control": "going on with dynamic routing"}


def ways(k: str, n: str, **more: str) -> dict[str, str]:
    """`WAYS` of runs with so many dynamic epochs that refresh after so many."""
    return {name: words.format(k=k, n=n) for name, words in {**WAYS, **more}.items()}


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
    """Milliseconds an image of each engine at each batch, and how many times faster than plain that is."""
    found = result(name)
    batches = found["settings"]["batches"]
    by_engine: dict[str, dict[int, dict[str, Any]]] = {}
    for row in found["engines"]:
        by_engine.setdefault(row["engine"], {})[row["batch"]] = row
    table = []
    for engine, rows_of in by_engine.items():
        last = rows_of[batches[-1]]
        times = [f"{rows_of[batch]['ms_per_image']:.2f} ({rows_of[batch]['times_faster']:.1f}×)" for batch in batches]
        shares = "" if last["shares"] is None else " / ".join(f"{100 * share:.0f}" for share in last["shares"].values())
        memory = f"{rows_of[1]['peak_mb']:.0f} / {last['peak_mb']:.0f}"
        table.append([engine, *times, memory, f"{last['size_mb']:.1f}", shares, f"{last['share_of_peak']:.0%}"])
    head = ["", *(f"batch {batch}" for batch in batches), f"MB, batch 1 / {batches[-1]}", "file or weights, MB"]
    return markdown(([*head, "layers, %", "of peak"], table))


def growth(name: str) -> str:
    """The routing layer alone as one size after the other grows."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in result(name)["growth"]:
        found.setdefault((row["axis"], row["size"]), {})[row["routing"]] = row
    table = []
    for (axis, size), by_way in found.items():
        cells = [f"{row['ms_per_image']:.3f} ms, {row['peak_mb']:.0f} MB" for row in by_way.values()]
        table.append([f"{axis}: {size:,}", *cells, f"{by_way['folded']['times_faster']:.1f}×"])
    return markdown((["", *next(iter(found.values())), "folded against plain"], table))


def answers(name: str) -> str:
    """How the engines' answers differ from float64's."""
    table = [
        [
            row["engine"],
            f"{row['accuracy']:.2%}",
            f"{row['changed']} of {row['images']:,}",
            f"{row['largest_difference']:.1e}",
            f"{row['alone']:.1e}",
        ]
        for row in result(name)["answers"]
    ]
    return markdown((["", "accuracy", "answers changed", "lengths differ by", "alone and in a batch"], table))


def aims(name: str) -> str:
    """What a benchmark was to reach, and what it did."""
    table = [[aim["what"], f"{aim['aim']:g}×", f"{aim['measured']:.1f}×"] for aim in result(name)["aims"]]
    return markdown((["times faster than plain dynamic routing", "aim", "measured"], table))


TABLES: dict[str, Callable[[], str]] = {
    "cifar10-ablation": lambda: ablation("cifar10-ablation"),
    "mnist-ablation": lambda: ablation("mnist-ablation"),
    "retraining": retraining,
    "scaling-mnist": lambda: scaling("MNIST"),
    "scaling-cifar10": lambda: scaling("CIFAR-10"),
    "cifar10-ways": lambda: trainings("cifar10-3", ways("1 epoch", "epoch")),
    "fashion-ways": lambda: trainings("fashion-3", ways("1 epoch", "epoch", **GOING_ON)),
    "refits": lambda: trainings("cifar10-refit", REFITTED),
    "digits": lambda: trainings("digits", ways("3 epochs", "2 epochs")),
    "bench": lambda: bench("bench-mnist"),
    "aims": lambda: aims("bench-mnist"),
    "growth": lambda: growth("bench-mnist"),
    "answers": lambda: answers("bench-mnist"),
    "reproduction": lambda: markdown(accuracy_table(rows(finished(ROOT / "results")))),
    "losses": lambda: markdown(losses_table(finished(ROOT / "results"))),
    "runs": lambda: markdown(runs_table(finished(ROOT / "results"), lambda name: f"[{name}](../results/{name}.json)")),
}


def _scores(trial: dict[str, Any], held_out: bool) -> list[str]:
    low, high = trial["test"]["interval"]
    accuracies = [trial["validation"]["accuracy"]] if held_out else []
    shares = [f"{share:.2%}" for share in (*accuracies, trial["test"]["accuracy"])]
    return [*shares, f"{100 * low:.1f} – {100 * high:.1f}"]


def _parts(shares: dict[str, float]) -> list[str]:
    return [f"{shares['validation']:.2%}", f"{shares['test']:.2%}"]


if __name__ == "__main__":
    main()
