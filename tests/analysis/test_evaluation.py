"""The four ways of routing against the reference, and the counts made of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests import reference

from fastcaps import CapsNet, CapsNetConfig, accumulate
from fastcaps.analysis import compare, evaluate
from fastcaps.analysis.figures import confusion_figure, figure_bytes


@pytest.fixture
def model():
    config = CapsNetConfig.for_images(
        10, 10, 1, classes=3, stem_channels=4, stem_kernel=3, capsule_types=2, primary_kernel=3, class_dimension=4
    )
    return CapsNet(config).double()


def test_each_way_is_what_it_says(model):
    images, labels = torch.rand(14, 1, 10, 10, dtype=torch.float64), torch.arange(14) % 3
    master = accumulate(model, [(images, labels)])
    seen: list[int] = []
    result = evaluate(model, master, [(images[:5], labels[:5]), (images[5:], labels[5:])], seen.append)
    assert seen == [5, 9]
    weight = model.routing.weight.detach().numpy()
    assert master.containers is not None
    rows = master.containers / master.counts[:, None, None]
    for k, lower in enumerate(model.lower_capsules(images).detach().numpy()):
        votes = reference.prediction_vectors(lower, weight)
        container = np.stack([reference.max_min(row) for row in rows[labels[k]].numpy()])
        expected = {
            "dynamic": reference.routing_procedure(votes)[0],
            "fast": reference.fast_routing(master.values.numpy(), votes),
            "uniform": reference.fast_routing(np.ones_like(container), votes),
            "ceiling": reference.fast_routing(container, votes),
        }
        for name, capsules in expected.items():
            longest = int(np.argmax(np.linalg.norm(capsules, axis=1)))
            assert result.variants[name].predictions[k] == longest, name


def test_counts_and_shares(model):
    images, labels = torch.rand(12, 1, 10, 10, dtype=torch.float64), torch.tensor([0] * 7 + [1] * 5)
    master = accumulate(model, [(images, torch.arange(12) % 3)])
    result = evaluate(model, master, [(images, labels)])
    for variant in result.variants.values():
        assert variant.confusion.sum() == 12
        assert variant.confusion.sum(1).tolist() == [7, 5, 0]
        assert variant.correct == int((variant.predictions == labels.numpy()).sum())
        assert variant.accuracy == variant.correct / 12
        assert np.isnan(variant.per_class[2])
        assert variant.per_class[0] == (variant.predictions[:7] == 0).mean()
    assert result.variants["dynamic"].against_dynamic is None
    plain = result.to_dict()
    assert plain["variants"]["fast"]["per_class"][2] is None
    assert plain["variants"]["fast"]["errors"] == 12 - result.variants["fast"].correct
    figure = confusion_figure({"fast": result.variants["fast"].confusion}, result.class_names)
    assert figure_bytes(figure).startswith(b"\x89PNG")


def test_fast_is_compared_with_no_routing_and_the_model_left_as_it_was(model):
    images, labels = torch.rand(12, 1, 10, 10, dtype=torch.float64), torch.arange(12) % 3
    master = accumulate(model, [(images, labels)])
    model.train()
    result = evaluate(model, master, [(images[:6], labels[:6]), (images[6:], labels[6:])])
    assert model.training
    expected = compare(result.variants["uniform"].predictions, result.variants["fast"].predictions, labels.numpy())
    assert result.variants["fast"].against_uniform == expected
    assert [name for name, variant in result.variants.items() if variant.against_uniform] == ["fast"]
    speeds = {name: variant.images_per_second for name, variant in result.variants.items()}
    assert speeds.pop("ceiling") is None
    assert all(speed is not None and speed > 0 for speed in speeds.values())
    small = evaluate(model, master, [(images[:11], labels[:11]), (images[11:], labels[11:])])
    assert small.variants["fast"].images_per_second is None  # a single image says nothing
    with pytest.raises(ValueError, match="label 3 is outside the classes 0 … 2"):
        evaluate(model, master, [(images[:1], torch.tensor([3]))])


def test_another_network_is_asked_about_the_same_images(model):
    images, labels = torch.rand(12, 1, 10, 10, dtype=torch.float64), torch.arange(12) % 3
    master = accumulate(model, [(images, labels)])
    other = CapsNet(model.config).double().train()
    with torch.no_grad():
        other.routing.weight.normal_()
    result = evaluate(model, master, [(images[:6], labels[:6]), (images[6:], labels[6:])], other=other)
    assert other.training
    answers = result.variants["other"].predictions
    assert answers.tolist() == other(images).lengths.argmax(1).tolist()
    assert answers.tolist() != result.variants["dynamic"].predictions.tolist()
    expected = compare(answers, result.variants["fast"].predictions, labels.numpy())
    assert result.variants["fast"].against_other == expected
    plain = result.to_dict()["variants"]
    assert [name for name in plain if "against_other" in plain[name]] == ["fast"]
    assert plain["fast"]["against_other"]["gained"] == expected.gained
    wider = CapsNet(replace(model.config, width=12))
    with pytest.raises(
        ValueError, match="the network to compare with has width 12, expected 10: take one for the same"
    ):
        evaluate(model, master, [(images, labels)], other=wider)


def test_without_containers_there_is_no_ceiling(model):
    images, labels = torch.rand(6, 1, 10, 10), torch.arange(6) % 3
    master = replace(accumulate(model, [(images, labels)]), containers=None)
    assert set(evaluate(model, master, [(images, labels)]).variants) == {"dynamic", "fast", "uniform"}


def test_no_images(model):
    master = accumulate(model, [(torch.rand(3, 1, 10, 10), torch.arange(3))])
    with pytest.raises(ValueError, match="there are no images, expected at least one"):
        evaluate(model, master, [])
