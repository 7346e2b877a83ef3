"""Few images of one's own: the settings that are chosen for them, and warnings where nothing is learned."""

import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.analysis.test_results import evaluation
from tests.data import tiny
from tests.training.conftest import make_data
from tests.workflows.test_training import TINY

from fastcaps import workflows
from fastcaps.training import Run

NETWORK: dict[str, Any] = {name: value for name, value in TINY.items() if name not in ("batch_size", "warmup")} | {
    "loggers": []
}


@pytest.mark.slow
def test_few_images_are_learned_with_the_defaults(tmp_path):
    folder = tiny.write_shapes(tmp_path / "shapes", 24)
    network: dict[str, Any] = {"stem_channels": 16, "decoder": [32]}  # with as many capsules as by default
    result = workflows.train(
        folder, tmp_path / "run", size=32, epochs=7, test_every=7, threads=1, loggers=[], **network
    )
    assert result.selected.accuracy > 0.75
    assert result.selected.test_accuracy is not None
    assert result.selected.test_accuracy > 0.5
    assert result.warnings == ()


@pytest.mark.slow
def test_batch_size_and_learning_rate_follow_the_number_of_images(tmp_path, capsys):
    folder = tiny.write_shapes(tmp_path / "shapes", 25)
    result = workflows.train(folder, tmp_path / "run", epochs=1, **NETWORK)
    assert "with 8 images per step, at a learning rate of 0.00025" in capsys.readouterr().err
    settings = Run.open(result.run).settings
    assert (settings.batch_size, settings.learning_rate, settings.warmup) == (8, 0.00025, 100)
    stored = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["training"]
    assert (stored["batch_size"], stored["learning_rate"]) == (8, 0.00025)
    for name, value, expected in (("batch_size", 32, (32, 0.001)), ("learning_rate", 0.002, (8, 0.002))):
        options: dict[str, Any] = {**NETWORK, name: value}
        settings = Run.open(workflows.train(folder, tmp_path / name, epochs=1, **options).run).settings
        assert (settings.batch_size, settings.learning_rate) == expected


def test_a_resumed_run_keeps_what_it_was_started_with(tmp_path):
    folder = tiny.write_shapes(tmp_path / "shapes", 25)
    workflows.train(folder, tmp_path / "run", epochs=1, batch_size=128, learning_rate=0.001, **NETWORK)
    longer = workflows.train(folder, tmp_path / "run", epochs=2, resume=True, **NETWORK)
    settings = Run.open(longer.run).settings
    assert (len(longer.history), settings.batch_size, settings.learning_rate) == (2, 128, 0.001)


def test_images_from_arrays_have_the_common_defaults(tmp_path):
    run = Run.open(workflows.train(make_data(), tmp_path / "run", epochs=1, **NETWORK).run)
    assert (run.settings.batch_size, run.settings.learning_rate) == (128, 0.001)


def test_few_steps_and_a_network_that_has_learned_nothing_are_warned_of(tmp_path, capsys):
    for name in ("one", "other", "third"):
        for number in range(5):
            (tmp_path / "same" / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), "gray").save(tmp_path / "same" / name / f"{number}.png")
    result = workflows.train(tmp_path / "same", tmp_path / "run", epochs=1, batch_size=128, **NETWORK)
    few, nothing = result.warnings
    assert few.startswith("an epoch has 1 step: use a smaller batch size than 128")
    assert nothing.startswith("the network has learned nothing: its training accuracy of ")
    assert "most frequent class (33.33%)" in nothing
    said = capsys.readouterr().err
    assert all(f"warning: {words}\n" in said for words in result.warnings)
    assert result.to_dict()["warnings"] == [few, nothing]


@pytest.mark.parametrize(
    ("confusion", "words"),
    [
        ([[15, 0], [15, 0]], "All 30 test images were classified as cat: the network has learned nothing."),
        ([[1, 14], [0, 15]], "29 of 30 test images were classified as dog: the network has learned nothing."),
        ([[13, 2], [12, 3]], None),
        ([[29, 0], [1, 0]], None),  # nearly all images are cats
        ([[2, 0], [2, 0]], None),  # too few to tell
    ],
)
def test_an_evaluation_says_when_all_images_get_one_class(confusion, words):
    counts, base = np.array(confusion), evaluation()
    variants = {**base.variants, "dynamic": replace(base.dynamic, confusion=counts)}
    sentences = replace(base, images=int(counts.sum()), variants=variants).sentences()
    assert [sentence for sentence in sentences if "learned nothing" in sentence] == ([] if words is None else [words])
