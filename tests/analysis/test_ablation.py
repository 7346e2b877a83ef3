"""Many matrices on the same images: the answers are those of the folded networks, the choice is on held-out images."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.conftest import make_data, small_config

from fastcaps import CapsNet, fold
from fastcaps.analysis.ablation import Ablation, Trial, ablation_figure, predictions, score
from fastcaps.data import batches


def test_answers_are_those_of_the_networks_one_by_one():
    torch.manual_seed(0)
    model, data = CapsNet(small_config()), make_data()
    matrices = [torch.rand(model.config.lower_capsules, 3) for _ in range(3)]
    seen: list[int] = []
    pairs = lambda: batches(data.test, 8, view=data.augmentation.test_view)  # noqa: E731
    truth, dynamic, actual = predictions(model, matrices, pairs(), seen.append)
    assert seen == [8, 8, 8, 6]
    assert (truth == data.test.labels.numpy()).all()
    images = torch.cat([images for images, _ in pairs()])
    assert (dynamic == model.predict(images).numpy()).all()
    for matrix, one in zip(matrices, actual, strict=True):
        assert (one == fold(model, matrix).predict(images).numpy()).all()
    assert len({one.tobytes() for one in actual}) > 1
    with pytest.raises(ValueError, match="there are no images, expected at least one"):
        predictions(model, matrices, [])


def trial(name, held_out, tested):
    truth = np.zeros(10, np.int64)

    def part(right):
        predicted = np.array([0] * right + [1] * (10 - right))
        return score(truth, truth, np.array([0] * 5 + [1] * 5), predicted)

    return Trial(name, "per_class", 4, 30, None if held_out is None else part(held_out), part(tested))


def test_scores_and_the_choice():
    one = trial("a", 6, 9)
    assert one.validation.accuracy == 0.6
    assert (one.validation.against_uniform.gained, one.validation.against_uniform.lost) == (1, 0)
    assert one.test.against_dynamic.changed == 1
    uniform, other, equal = trial("uniform", 5, 5), trial("b", 7, 4), trial("c", 7, 10)
    ablation = Ablation({"test": 1.0}, {"test": 10}, uniform, (one, other, equal))
    assert ablation.best is other  # the first of the best on held-out images, whatever the test set says
    assert ablation.to_dict()["best"]["filter"] == "b"
    better = trial("uniform", 8, 5)
    assert Ablation({}, {}, better, (one, trial("b", 7, 4))).best is better
    assert Ablation({}, {}, trial("uniform", None, 5), (trial("a", None, 9),)).best is None


@pytest.mark.parametrize("name", ["cifar10-ablation", "mnist-ablation"])
def test_stored_results_come_back_as_they_were(name):
    path = Path(__file__).parents[2] / "results" / f"{name}.json"
    assert Ablation.load(path).to_dict() == json.loads(path.read_text().replace('"containers"', '"per_class"'))


def test_tables_and_the_conclusion():
    compared = Ablation({"test": 1.0}, {"test": 10}, trial("uniform", 5, 5), (trial("a", 6, 9),), data="pets")
    (table,) = compared.tables()
    assert table.title == "pets: dynamic routing 100.00% of 10 test images"
    first, second = table.rows
    assert first[:6] == ["uniform", "per_class", "final", "30", "50.00%", "50.00%"]
    assert second[:6] == ["a", "per_class", "final", "30", "60.00%", "90.00%"]
    assert compared.sentences()[-1].startswith(
        "Best on the held-out images: a, per_class, final, 60.00%; on the test im"
    )
    unchosen = Ablation({"test": 1.0}, {"test": 10}, trial("uniform", None, 5), ())
    assert "held out no images" in unchosen.sentences()[-1]


def test_the_figure_names_every_trial():
    uniform = trial("uniform", None, 5)
    ablation = Ablation({"test": 1.0}, {"test": 10}, uniform, (trial("a", None, 9), trial("b", None, 4)))
    panel = ablation_figure(ablation).axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["a, per_class, final", "b, per_class, final"]
    assert [label.get_text() for label in panel.figure.legends[0].get_texts()] == [
        "dynamic routing, 100.00 %",
        "uniform: no routing, 50.00 %",
    ]
