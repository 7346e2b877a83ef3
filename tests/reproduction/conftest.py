"""Results written by hand: one run's JSON with the accuracies one wants."""

import json

from fastcaps.reproduction import Cell, RunResult, network

MASTER = {
    "iteration": 3,
    "method": "containers",
    "filters": [],
    "normalization": "max_min",
    "lower": 0.0,
    "upper": 1.0,
}


def variant(correct, images, against=False):
    comparison = {
        "difference": -0.01,
        "interval": [-0.02, 0.003],
        "p_value": 0.25,
        "gained": 1,
        "lost": 2,
        "changed": 4,
    }
    return {
        "correct": correct,
        "errors": images - correct,
        "accuracy": correct / images,
        "per_class": [correct / images, None],
        "confusion": [[correct, images - correct], [0, 0]],
        "images_per_second": None,
        "interval": [correct / images - 0.01, correct / images + 0.01],
        "against_dynamic": comparison if against else None,
        "against_uniform": comparison if against else None,
    }


def result(cell: Cell, *accuracies, **options) -> RunResult:
    """The same as `values` gives, read."""
    return RunResult.from_dict(values(cell, *accuracies, **options))


def values(cell: Cell, dynamic=(90, 95, 93), fast=91, uniform=92, *, fasts=None, kind="original", **settings):
    """A run of as many epochs as there are accuracies (right answers of 100) in ``dynamic``; None was not measured."""
    metrics: list[dict[str, float]] = [
        {"epoch": number, "loss": 0.1, "accuracy": 0.9, "learning_rate": 0.001, "seconds": 1.0}
        for number in range(1, len(dynamic) + 1)
    ]
    for name, values in (("test_accuracy", dynamic), ("fast_test_accuracy", fasts or [None] * len(dynamic))):
        for row, value in zip(metrics, values, strict=True):
            if value is not None:
                row[name] = value / 100
    return {
        "state": "finished",
        "command": f"fastcaps reproduce --data {cell.data}",
        "data": {
            "name": cell.data,
            "call": None,
            "fingerprint": "",
            "provenance": {"kind": kind},
            "validation": 0,
            "test": 100,
        },
        "settings": {"seed": cell.seed, "epochs": len(dynamic), "learning_rate": 0.001, **settings},
        "config": json.loads(network(cell).to_json()),
        "metrics": metrics,
        "evaluation": {
            "part": "test",
            "images": 100,
            "class_names": ["a", "b"],
            "master": dict(MASTER),
            "variants": {
                "dynamic": variant(dynamic[-1] or 0, 100),
                "fast": variant(fast, 100, against=True),
                "uniform": variant(uniform, 100),
                "ceiling": variant(100, 100),
            },
        },
        "seconds": 7200.0,
        "threads": 2,
        "versions": {"fastcaps": "0.1.0"},
        "machine": {"processor": "x86_64", "cores": 2},
    }
