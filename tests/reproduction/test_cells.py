"""What the table is made of, and telling its files from others."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reproduction.conftest import values

from fastcaps.data.registry import SETS
from fastcaps.nn import CapsNetConfig
from fastcaps.reproduction import PAPER, TITLES, Cell, RunResult, all_cells, finished, network, shard

CELL = Cell("mnist", "max_min", 0)


def write(folder: Path, name: str, content) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_papers_table_is_whole():
    assert set(TITLES) <= set(SETS)
    assert len(PAPER) == 20
    assert PAPER["mnist", "max_min", "dynamic"] == (99.55, 0.02)
    assert PAPER["background_mnist", "softmax", "fast"] == (84.34, 4.37)
    assert PAPER["fashion_mnist", "max_min", "fast"] == (91.52, 0.20)
    assert PAPER["rotated_mnist", "softmax", "dynamic"] == (93.72, 0.09)
    assert PAPER["cifar10", "softmax", "fast"] == (47.11, 8.70)


def test_one_seed_of_everything_first():
    wanted = all_cells(["mnist", "cifar10"], ["max_min", "softmax"], [0, 2])
    assert [cell.name for cell in wanted][:5] == [
        *("mnist-max_min-0", "cifar10-max_min-0", "mnist-softmax-0", "cifar10-softmax-0", "mnist-max_min-2")
    ]
    assert len(set(wanted)) == 8


@given(st.integers(0, 40), st.integers(1, 12))
def test_shards_are_disjoint_even_and_together_everything(count, machines):
    wanted = all_cells(["mnist"], ["max_min"], range(count))
    parts = [shard(wanted, number, machines) for number in range(1, machines + 1)]
    assert sorted((cell for part in parts for cell in part), key=lambda cell: cell.seed) == wanted
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("number", [0, 4])
def test_a_shard_that_is_none(number):
    with pytest.raises(ValueError, match=f"there is no part {number} of 3: expected a number from 1 to 3"):
        shard([CELL], number, 3)


def test_networks_are_the_papers():
    assert network(Cell("cifar10", "softmax", 1)) == CapsNetConfig.cifar10(normalization="softmax")
    fashion = network(Cell("fashion_mnist", "max_min", 1))
    assert (fashion.lower_capsules, fashion.class_names[0]) == (1152, "T-shirt/top")
    assert network(CELL) == CapsNetConfig.mnist()


def test_only_files_with_a_runs_name_count(tmp_path):
    other = Cell("cifar10", "softmax", 12)
    write(tmp_path, "mnist-max_min-0.json", values(CELL))
    write(tmp_path, "cifar10-softmax-12.json", values(other))
    for name in ("mnist.json", "mnist-ablation.json", "mnist-max_min-00.json", "digits-max_min-0.json", "notes.json"):
        write(tmp_path, name, "what others keep here")
    assert list(finished(tmp_path)) == [other, CELL]
    stored = finished(tmp_path)[other]
    assert stored.to_dict() == RunResult.from_dict(stored.to_dict()).to_dict()
    assert (stored.about.settings.seed, stored.about.more, len(stored.metrics)) == (12, {}, 3)
    assert finished(tmp_path / "nowhere") == {}


FILTER = {"name": "correct", "options": {}, "reason": "", "seen": [2, 2], "kept": [1, 2]}


def changed(**changes):
    """The hand-made result with some entries replaced, by path."""
    record = values(CELL)
    for path, value in changes.items():
        *way, last = path.split("__")
        place = record
        for step in way:
            place = place[step]
        place[last] = value
    return record


WRONG = [
    ("{", "mnist-max_min-0.json is not JSON: "),
    ([1], "mnist-max_min-0.json is damaged: expected object, got array"),
    ({"state": "finished"}, "mnist-max_min-0.json is not of a fastcaps run: it lacks data, settings or config"),
    (changed(evaluation__images="all"), "mnist-max_min-0.json is damaged: evaluation.images: expected int, got str"),
    (changed(data__name="cifar10"), r"is no run for the paper's table \(data is cifar10, expected mnist\)"),
    (changed(settings__seed=3), r"\(seed is 3, expected 0\): move it to another name"),
    (changed(config__normalization="softmax"), r"\(normalization is softmax, expected max_min\)"),
    (changed(config__stem_channels=64), r"\(stem_channels is 64, the paper's 256\)"),
    (changed(fixed_coefficients=True), "trained with fixed coefficients, or from another run's weights"),
    (
        changed(init={"run": "runs/mnist", "weights": "0"}),
        "trained with fixed coefficients, or from another run's weights",
    ),
    (changed(settings__loss="cross_entropy"), r"\(loss is cross_entropy, the paper's margin\)"),
    (changed(evaluation__images=20), "was evaluated on 20 test images, expected all 100 test images"),
    (changed(evaluation__part="train"), "was evaluated on 100 train images, expected all 100 test images"),
    (changed(evaluation__master__filters=[FILTER]), r"of iteration 3, per_class, 1 filters, expected the paper's"),
    (changed(evaluation__master__iteration=2), r"iteration 2, per_class, 0 filters, expected .*\(iteration 3, per"),
    (changed(evaluation__master__method="pooled"), r"pooled, 0 filters.*: fastcaps accumulate without options makes"),
]


@pytest.mark.parametrize(("content", "message"), WRONG)
def test_a_file_with_a_runs_name_about_something_else_is_refused(content, message, tmp_path):
    write(tmp_path, "mnist-max_min-0.json", content)
    with pytest.raises(ValueError, match=message):
        finished(tmp_path)
