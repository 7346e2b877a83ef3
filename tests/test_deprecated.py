"""Old names and arguments work for one release, with a warning that says what to write instead."""

# mypy: disable-error-code="arg-type, attr-defined, call-arg, call-overload, operator"

import dataclasses

import numpy as np
import pytest
import torch

import fastcaps
from fastcaps import functional as F
from fastcaps import nn
from fastcaps.master import KMeans, MasterAccumulator, Similarity
from fastcaps.training import Run, TrainSettings

VOTES = torch.randn(2, 5, 3, 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.dynamic_routing(VOTES, 3, "max_min", 0.1, 0.8).coefficients,
        lambda: F.dynamic_routing(VOTES, lower=0.1, upper=0.8).coefficients,
        lambda: F.dynamic_routing(VOTES, 3, normalization="max_min", lower=0.1, upper=0.8).coefficients,
        lambda: F.routing_trace(VOTES, 3, "max_min", 0.1, upper=0.8)[:, -1],
    ],
)
def test_bounds_beside_a_name(call):
    with pytest.warns(DeprecationWarning, match=r"lower and upper: use normalization=MaxMin\(lower, upper\)"):
        old = call()
    assert torch.equal(old, F.dynamic_routing(VOTES, 3, F.MaxMin(0.1, 0.8)).coefficients)


def test_bounds_of_an_accumulator():
    with pytest.warns(DeprecationWarning, match="lower and upper"):
        sums = MasterAccumulator(5, 3, "max_min", 0.1, 0.8)
    assert sums.normalization == F.MaxMin(0.1, 0.8)


def test_functions_that_are_objects_now():
    logits = torch.randn(4, 3)
    with pytest.warns(DeprecationWarning, match=r"fastcaps.functional.normalize: use MaxMin\(lower, upper\)\(logits\)"):
        assert torch.equal(F.normalize(logits.T, "softmax", dim=0).T, F.Softmax()(logits))
    with pytest.warns(DeprecationWarning, match="fastcaps.functional.max_min: use MaxMin"):
        assert torch.equal(F.max_min(logits, 0.2, 0.7), F.MaxMin(0.2, 0.7)(logits))
    with pytest.warns(DeprecationWarning, match="fastcaps.functional.Routing: use fastcaps.functional.RoutingOutput"):
        assert F.Routing is F.RoutingOutput
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        F.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("name", "kind"),
    [("PrimaryCaps", nn.PrimaryCapsules), ("ClassCaps", nn.CapsuleLayer), ("FoldedCaps", nn.FoldedCapsuleLayer)],
)
def test_layers_from_a_configuration(name, kind):
    with pytest.warns(DeprecationWarning, match=f"fastcaps.nn.{name}: use {kind.__name__}"):
        make = getattr(nn, name)
    assert isinstance(make(fastcaps.CapsNetConfig.mnist(stem_channels=4)), kind)


def test_fold_has_moved():
    with pytest.warns(DeprecationWarning, match="fastcaps.nn.fold: use fastcaps.fold"):
        assert nn.fold is fastcaps.fold


def test_names_that_the_field_knows():
    from fastcaps import distributed, master
    from fastcaps.analysis import correlations

    with pytest.warns(DeprecationWarning, match="fastcaps.master.Em: use fastcaps.master.GaussianMixture"):
        assert master.Em is master.GaussianMixture
    for old, new in {"ALONE": "SINGLE", "joined": "init_distributed", "LostError": "WorkerLostError"}.items():
        with pytest.warns(
            DeprecationWarning, match=f"fastcaps.distributed.{old}: use {new}; the old name will be removed"
        ):
            assert getattr(distributed, old) is getattr(distributed, new)
    with pytest.warns(DeprecationWarning, match="correlations.neighbours: use fastcaps.analysis.correlations.neigh"):
        assert correlations.neighbours is correlations.neighbors
    for module in (master, distributed, correlations):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            module.nothing  # noqa: B018


def test_data_download(monkeypatch, tmp_path):
    from fastcaps import data

    monkeypatch.setenv("FASTCAPS_CACHE", str(tmp_path))
    with pytest.warns(DeprecationWarning, match=r"fastcaps.data.get: use fastcaps.data.download"):
        get = data.get
    status = get("digits")
    assert (status["name"], status["at_hand"], status["image_shape"]) == ("digits", True, [1, 28, 28])


def test_former_modules(monkeypatch, tmp_path):
    from fastcaps import bundled, shipped
    from fastcaps.data import available, stock

    monkeypatch.setenv("FASTCAPS_CACHE", str(tmp_path))
    with pytest.warns(DeprecationWarning, match="fastcaps.shipped.located: use fastcaps.bundled.resolve"):
        assert shipped.located("mnist-small") == bundled.resolve("mnist-small")
    with pytest.warns(DeprecationWarning, match="fastcaps.shipped.described: use fastcaps.bundled.describe"):
        described = shipped.described("mnist-small")
    with pytest.warns(DeprecationWarning, match=r'BundledNetwork\["data"\]: use BundledNetwork.data'):
        assert described["data"] == "mnist"
    with pytest.warns(DeprecationWarning, match="fastcaps.data.stock.available: use fastcaps.data.available"):
        sets = stock.available()
    assert [entry["at_hand"] for entry in sets] == [entry.available for entry in available().sets]
    assert type(available()).from_dict({"sets": sets}).to_dict() == available().to_dict()
    for entry in sets:
        del entry["available"]  # as before
    assert type(available()).from_dict({"sets": sets}).to_dict() == available().to_dict()
    for module in (shipped, stock):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            module.nothing  # noqa: B018


def test_former_names_of_a_world():
    from fastcaps.distributed import SINGLE

    values, total = np.arange(3), torch.ones(2)
    for name, new, arguments in (
        ("alone", "is_single", None),
        ("first", "is_main", None),
        ("meet", "barrier", ()),
        ("first_does", "on_main", (lambda: None,)),
        ("after_first", "main_first", (lambda: 3,)),
        ("add_up", "all_reduce", (total,)),
        ("add_up_now", "all_reduce_now", (total,)),
        ("concatenated", "all_gather", (values,)),
        ("least", "all_min", (4,)),
        ("says", "is_first_to_say", ("hello",)),
    ):
        with pytest.warns(DeprecationWarning, match=f"World.{name}: use {new}; the old name will be removed"):
            old = getattr(SINGLE, name)
        result, expected = (value if arguments is None else value(*arguments) for value in (old, getattr(SINGLE, new)))
        assert result is expected or result == expected


def test_former_name_of_drawing_weights():
    layer, coefficients = nn.CapsuleLayer(6, 4, 3, 5), torch.rand(6, 3)
    torch.manual_seed(0)
    with pytest.warns(DeprecationWarning, match="CapsuleLayer.draw_for: use reset_parameters"):
        layer.draw_for(coefficients)
    weight = layer.weight.clone()
    torch.manual_seed(0)
    layer.reset_parameters(coefficients)
    assert torch.equal(layer.weight, weight)


def test_former_names_of_master_coefficients():
    small = {"stem_channels": 4, "stem_kernel": 3, "capsule_types": 2, "primary_kernel": 3}
    model = fastcaps.CapsNet(fastcaps.CapsNetConfig.for_images(10, 10, 1, classes=2, **small))
    batches = [(torch.rand(4, 1, 10, 10), torch.tensor([0, 1, 0, 1]))]
    expected = fastcaps.accumulate(model, batches, iteration="final")
    with pytest.warns(DeprecationWarning, match='iteration="after": use iteration="final"'):
        assert torch.equal(fastcaps.accumulate(model, batches, iteration="after").values, expected.values)
    with pytest.warns(DeprecationWarning, match="method='containers': use method='per_class'"):
        assert fastcaps.accumulate(model, batches, method="containers").method == "per_class"
    with pytest.warns(DeprecationWarning, match=r"keep and filters: use selection=apply_filters"):
        some = fastcaps.accumulate(model, batches, keep=np.array([True, True, False, False]), filters=[])
    assert some.counts.tolist() == [1, 1]
    report = {"name": "own", "options": {"kept": 0.5}, "reason": "", "seen": [2, 2], "kept": [1, 1]}
    arrays = {**report, "seen": np.array([2, 2]), "kept": np.array([1, 1])}
    with pytest.warns(DeprecationWarning, match="a filter's report as a dictionary: use fastcaps.master.FilterReport"):
        some = dataclasses.replace(some, filters=[arrays])
    with pytest.warns(DeprecationWarning, match=r'MasterSummary\["filters"\]: use MasterSummary.filters or .to_dict'):
        assert some.summary()["filters"] == [{**report, "options": {"keep_fraction": 0.5}}]
    with pytest.warns(DeprecationWarning, match=r'FilterReport\["seen"\]: use FilterReport.seen'):
        assert some.filters[0]["seen"] == [2, 2]
    with pytest.warns(DeprecationWarning, match=r"provenance: use dataclasses.replace\(master, provenance=…\)"):
        assert fastcaps.accumulate(model, batches, provenance={"a": 1}).provenance == {"a": 1}


def test_former_options_of_filters():
    with pytest.warns(DeprecationWarning, match=r"Similarity\(kept=…\): use keep_fraction=…"):
        assert Similarity(kept=0.5) == Similarity(keep_fraction=0.5)
    with pytest.warns(DeprecationWarning, match=r"KMeans\(outlying=…\): use max_outlier_fraction=…"):
        assert KMeans(outlying=0.1) == KMeans(max_outlier_fraction=0.1)


def test_former_names_of_settings_and_descriptions_of_runs():
    settings = TrainSettings(epochs=3, dynamic_epochs=1, reinit=True)
    old = {"epochs": 3, "dynamic_epochs": 1, "afresh": True}
    with pytest.warns(DeprecationWarning, match=r"completed: use TrainSettings.from_dict\(values\).to_dict\(\)"):
        assert TrainSettings.with_defaults(old) == TrainSettings.completed(old) == settings.to_dict()
    with pytest.warns(DeprecationWarning, match="TrainSettings.of_the_loss: use TrainSettings.from_dict"):
        assert TrainSettings.of_the_loss(old) == settings.loss_settings()
    with pytest.warns(DeprecationWarning, match="TrainSettings.going_on: use finetune_defaults"):
        assert TrainSettings.going_on(epochs=3) == TrainSettings.finetune_defaults(epochs=3)
    with pytest.warns(DeprecationWarning, match="TrainSettings.renamed: use TrainSettings.from_dict"):
        assert TrainSettings.renamed(old) == {"epochs": 3, "dynamic_epochs": 1, "reinit": True}
    run = Run.open("mnist-small")
    with pytest.warns(DeprecationWarning, match="Run.description: use Run.about"):
        assert run.description == run.about
