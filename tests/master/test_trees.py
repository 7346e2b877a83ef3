"""Accumulating, folding and recording in any module tree: two capsule layers on a backbone with BatchNorm."""

# mypy: disable-error-code="arg-type, attr-defined, call-overload"

import dataclasses

import numpy as np
import pytest
import torch
from tests import reference
from tests.ranks import alone, in_ranks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fastcaps
from fastcaps import functional as F
from fastcaps import nn as caps
from fastcaps.master import Correct, Observations, Selection, apply_filters
from fastcaps.master.accumulator import MeanAccumulator


def network(normalization=None, dropout=0.0):
    routing = caps.DynamicRouting(3, normalization or caps.MaxMin())
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(dropout)),
        caps.PrimaryCapsules(6, types=3, dim=4, kernel_size=3),
        caps.CapsuleLayer(27, 4, 5, 6, routing=routing),
        caps.CapsuleLayer(5, 6, 3, 7, routing=routing, bias=True),
    )


def data(count=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    patterns = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(9))
    return 0.7 * patterns[labels] + 0.3 * torch.rand(count, 1, 12, 12, generator=generator), labels


@pytest.fixture(scope="module")
def trained():
    """A network after a few steps, with everything away from where it started."""
    torch.manual_seed(0)
    model = network()
    images, labels = data()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.margin_loss(model(images).norm(dim=-1), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    return model.eval()


def routed_in_loops(model, images):
    """Of each image the lower capsules, votes and coefficients of both capsule layers, by the procedures in loops."""
    lower = model[1](model[0](images)).detach().double()
    for image in lower:
        capsules, steps = image.numpy(), []
        for layer in (model[2], model[3]):
            votes = reference.prediction_vectors(capsules, layer.weight.detach().double().numpy())
            bias = None if layer.bias is None else layer.bias.detach().double().numpy()
            capsules, used = reference.routing_procedure(votes, 3, layer.routing.normalization.name, bias=bias)
            steps.append((votes, bias, used[-1]))
        yield steps


def test_both_layers_against_loops(trained):
    images, labels = data()
    master = fastcaps.accumulate(trained, [(images[:17], labels[:17]), (images[17:], labels[17:])])
    assert list(master) == ["2", "3"]
    hidden, classes = zip(*routed_in_loops(trained, images), strict=True)
    expected = reference.mean_master([coefficients for _, _, coefficients in hidden])
    np.testing.assert_allclose(master["2"].values, expected, atol=2e-4)
    assert (master["2"].method, master["2"].counts.tolist(), master["2"].iteration) == ("mean", [30], 3)
    expected = reference.master_coefficients([coefficients for _, _, coefficients in classes], labels.tolist())
    np.testing.assert_allclose(master["3"].values, expected, atol=2e-4)
    assert (master["3"].method, master["3"].counts.tolist()) == ("per_class", [10, 10, 10])


def test_folding_is_fast_routing_on_the_votes(trained):
    images, _ = data(seed=1)
    master = fastcaps.accumulate(trained, [data()])
    fast = fastcaps.fold(trained, master)
    assert isinstance(fast, nn.Sequential)
    assert [type(layer) for layer in fast[2:]] == [caps.FoldedCapsuleLayer] * 2
    assert not fast.training
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    assert isinstance(trained[2], caps.CapsuleLayer)  # the model itself is not touched
    lower = trained[1](trained[0](images)).detach()
    for path in ("2", "3"):
        layer = trained[int(path)]
        votes = F.prediction_vectors(lower, layer.weight.detach())
        bias = None if layer.bias is None else layer.bias.detach()
        lower = F.fast_routing(votes, master[path].values.float(), bias=bias)
    torch.testing.assert_close(fast(images), lower, atol=1e-6, rtol=1e-5)


def test_uniform_is_one_iteration(trained):
    images, _ = data(seed=2)
    for normalization in (caps.MaxMin(), caps.Softmax(), caps.LeakySoftmax()):
        model = network(normalization).eval()
        once = network(normalization).eval()
        once.load_state_dict(model.state_dict())
        for layer in once[2:]:
            layer.routing = caps.DynamicRouting(1, normalization)
        torch.testing.assert_close(fastcaps.fold(model, "uniform")(images), once(images), atol=1e-6, rtol=1e-4)


def test_batch_norm_is_merged_where_that_is_exact(trained):
    assert isinstance(fastcaps.fold(trained, "uniform")[0][1], nn.BatchNorm2d)  # unless asked
    fast = fastcaps.fold(trained, "uniform", merge_batch_norm=True)
    assert isinstance(fast[0][1], nn.Identity)
    images, _ = data(seed=3)
    torch.testing.assert_close(fast[0](images), trained[0](images), atol=1e-6, rtol=1e-5)

    def folded(*layers):
        model = nn.Sequential(*layers, nn.Flatten(), nn.Unflatten(1, (-1, 4)), caps.CapsuleLayer(36, 4, 2, 3)).eval()
        return model, fastcaps.fold(model, "uniform", merge_batch_norm=True)

    def norm(channels, **options):
        layer = nn.BatchNorm2d(channels, **options)
        if layer.running_mean is not None:
            nn.init.normal_(layer.running_mean)
            nn.init.uniform_(layer.running_var, 0.5, 2)
        if layer.affine:
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
        return layer

    for conv in (nn.Conv2d(2, 4, 3, stride=2), nn.Conv2d(2, 4, 3, stride=2, bias=False)):
        model, fast = folded(norm(2), conv, nn.ReLU())  # before a convolution without padding
        assert isinstance(fast[0], nn.Identity)
        inputs = torch.rand(2, 2, 13, 13)
        torch.testing.assert_close(fast[:3](inputs), model[:3](inputs), atol=1e-5, rtol=1e-4)
    model, fast = folded(norm(2, affine=False), nn.Conv2d(2, 4, 3, stride=2))
    torch.testing.assert_close(fast[:2](inputs), model[:2](inputs), atol=1e-5, rtol=1e-4)
    for untouched in (
        (norm(2), nn.Conv2d(2, 4, 3, stride=2, padding=1)),  # whose zeros are not shifted
        (norm(2), nn.ReLU(), nn.Conv2d(2, 4, 3, stride=2)),
        (nn.Conv2d(2, 4, 3, stride=2), norm(4, track_running_stats=False)),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 4, 3, stride=2)), norm(4)),
        (Skip(nn.Conv2d(2, 4, 3, stride=2), norm(4)),),
    ):
        _, fast = folded(*untouched)
        assert any(isinstance(layer, nn.BatchNorm2d) for layer in fast.modules())


class Skip(nn.Sequential):
    """A Sequential with a forward pass of its own."""

    def forward(self, maps):
        return self[1](torch.relu(self[0](maps)))


def test_the_papers_network_with_batch_norm_becomes_one_without():
    config = fastcaps.CapsNetConfig.for_images(
        24, 24, 1, classes=3, stem_channels=6, stem_kernel=3, capsule_types=4, lower_dimension=4, primary_kernel=3,
        class_dimension=6, decoder=(8,), batch_norm=True, class_bias=True, stem_layers=((4, 3, 2),),
    )  # fmt: skip
    model = fastcaps.CapsNet(config)
    images, labels = torch.rand(9, 1, 24, 24), torch.arange(9) % 3
    for _ in range(3):
        model(images)  # moves the running statistics
    nn.init.normal_(model.routing.bias, std=0.2)
    assert model.training
    master = fastcaps.accumulate(model, [(images, labels)])
    assert model.training
    fast = fastcaps.fold(model, master)
    assert not fast.config.batch_norm
    assert not any("norm" in name for name in fast.state_dict())
    expected = model.eval()(images, fixed=master.values).lengths
    torch.testing.assert_close(fast(images).lengths, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["list", "loader", "arrays"])
def test_batches_of_any_kind(trained, kind):
    images, labels = data()
    expected = fastcaps.accumulate(trained, [(images, labels)])
    source = {
        "list": [(images[:3], labels[:3]), (images[3:], labels[3:])],
        "loader": DataLoader(TensorDataset(images, labels), batch_size=8),
        "arrays": [(images, labels.numpy())],
    }[kind]
    actual = fastcaps.accumulate(trained, source)
    for path, master in expected.items():
        torch.testing.assert_close(actual[path].values, master.values, rtol=0, atol=1e-6)


def test_modes_are_restored_and_observers_removed_also_after_an_exception():
    model = network(dropout=0.5).train()
    model[0][1].eval()
    modes = [module.training for module in model.modules()]
    images, labels = data()
    first, second = (fastcaps.accumulate(model, [(images, labels)])["3"].values for _ in range(2))
    assert torch.equal(first, second)  # no dropout, no moving statistics
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(ValueError, match="label 7 is outside the classes 0 … 2"):
        fastcaps.accumulate(model, [(images, labels + 7)])
    with pytest.raises(RuntimeError, match="stop"), fastcaps.record(model):
        raise RuntimeError("stop")
    assert [module.training for module in model.modules()] == modes
    with fastcaps.record(model) as recorder:  # nothing is left of the other
        model(images)
    assert recorder.capsules.keys() == {"2", "3"}


def test_record(trained):
    images, _ = data()
    with fastcaps.record(trained) as recorder:
        first = trained(images[:4])
        second = trained(images[4:])
        with pytest.raises(RuntimeError, match="layer '2' is being recorded already"), fastcaps.record(trained):
            pass
    trained(images)  # is not recorded any more
    assert {path: tensor.shape for path, tensor in recorder.coefficients.items()} == {
        "2": (30, 27, 5),
        "3": (30, 5, 3),
    }
    assert torch.equal(recorder.capsules["3"], torch.cat([first, second]).detach())
    lower = recorder.capsules["2"]
    assert torch.equal(recorder.coefficients["3"], trained[3].route(lower).coefficients)
    recorder.clear()
    assert recorder.coefficients == {}


def test_record_a_capsnet_with_its_options():
    model = fastcaps.CapsNet(fastcaps.CapsNetConfig.mnist(stem_channels=4))
    images = torch.rand(3, 1, 28, 28)
    with fastcaps.record(model) as recorder:
        output = model(images, with_coefficients=True, iterations=2)
        assert torch.equal(recorder.coefficients["routing"], output.coefficients)
        assert torch.equal(recorder.capsules["routing"], output.capsules)
        model(images, iterations=1)
    assert torch.equal(recorder.coefficients["routing"][3:], torch.ones(3, 1152, 10))


class Aliased(nn.Module):
    """A model that has its class layer under two names, in a list, and a CapsNet beside it."""

    def __init__(self):
        super().__init__()
        self.head = caps.CapsuleLayer(5, 3, 2, 3)
        self.net = nn.Sequential(caps.CapsuleLayer(4, 3, 5, 3), self.head)
        self.plain = [self.head]

    def forward(self, lower):
        return self.plain[0](self.net[0](lower)) + 0 * self.net(lower)


def test_every_reference_to_a_layer_is_replaced_and_the_model_left_alone():
    model = Aliased().train()
    lower = torch.rand(3, 4, 3)
    fast = fastcaps.fold(model, "uniform")
    assert not any(isinstance(module, caps.CapsuleLayer) for module in fast.modules())
    assert fast.plain[0] is fast.head is fast.net[1]
    torch.testing.assert_close(fast(lower), fastcaps.fold(model.net, "uniform")(lower))
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_capsnet_inside_another_model():
    config = fastcaps.CapsNetConfig.for_images(
        12, 12, 1, classes=3, stem_channels=6, stem_kernel=3, capsule_types=3, lower_dimension=4, primary_kernel=3,
        batch_norm=True,
    )  # fmt: skip

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = fastcaps.CapsNet(config)

        def forward(self, images):
            return self.net(2 * images).capsules

    model, (images, labels) = Wrapper(), data()
    master = fastcaps.accumulate(model, [(images, labels)])
    assert list(master) == ["net.routing"]
    fast = fastcaps.fold(model, master)
    assert type(fast.net).__name__ == "FastCapsNet"
    expected = model.eval().net(2 * images, fixed=master["net.routing"].values).capsules
    torch.testing.assert_close(fast(images), expected.detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            torch.rand(3, 4, 3),
            r"a batch is a Tensor, expected a pair of inputs \(b, …\) and labels \(b\): give an iterable",
        ),
        ((1, 2, 3), "a batch is a tuple of 3 entries, expected a pair"),
        (({"a": 1}, [0]), "the inputs of a batch are a dict, expected a tensor"),
        (
            (torch.rand(3, 4, 3), [0, 1]),
            r"inputs of shape \(3, 4, 3\) and labels of shape \(2,\), expected one label per",
        ),
    ],
)
def test_batches_of_another_form_are_refused(batch, message):
    layer = caps.CapsuleLayer(4, 3, 2, 5)
    with pytest.raises(ValueError, match=message):
        fastcaps.accumulate(layer, [batch])
    with pytest.raises(ValueError, match=message):
        Observations.collect(layer, [batch])


def test_observations_check_the_class_layer_too():
    lower, labels = torch.rand(6, 4, 3), torch.arange(6) % 2
    with pytest.raises(
        ValueError, match="layer 'hidden' was taken for the class layer, but 'classes' was computed after"
    ):
        Observations.collect(Reversed(), [(lower, labels)])
    assert Observations.collect(Reversed(), [(lower, labels)], class_layer="classes").classes == 2
    empty = [(lower[:0], labels[:0]), (lower, labels)]
    assert len(Observations.collect(Reversed(), empty, class_layer="classes")) == 6


def test_filters_work_on_trees(trained):
    images, labels = data()
    observations = Observations.collect(trained, [(images, labels)])
    lengths = trained(images).norm(dim=-1)
    np.testing.assert_allclose(observations.lengths, lengths.detach(), rtol=1e-5)
    keep, report = apply_filters([Correct()], observations)
    expected = fastcaps.accumulate(trained, [(images[keep], labels[keep])])
    actual = fastcaps.accumulate(trained, [(images, labels)], selection=Selection(keep, report))
    for path in ("2", "3"):
        torch.testing.assert_close(actual[path].values, expected[path].values)
        assert actual[path].filters == report


def test_iterations_and_methods_are_of_the_class_layer(trained):
    images, labels = data()
    first = fastcaps.accumulate(trained, [(images, labels)], iteration=1)
    assert (first["3"].values == 1).all()
    assert not (first["2"].values == 1).all()
    pooled = fastcaps.accumulate(trained, [(images, labels)], method="pooled")
    with fastcaps.record(trained) as recorder:
        trained(images)
    mean = recorder.coefficients["3"].double().mean(0)
    torch.testing.assert_close(pooled["3"].values, caps.MaxMin()(mean), atol=1e-6, rtol=0)


def test_coefficients_of_hidden_layers_have_files(trained, tmp_path):
    master = fastcaps.accumulate(trained, [data()])
    for path, one in master.items():
        one.save(tmp_path / path)
        again = fastcaps.MasterCoefficients.load(tmp_path / path)
        assert torch.equal(again.values, one.values)
        assert again.summary() == one.summary()


class Recurrent(nn.Module):
    """A model that uses one layer twice."""

    def __init__(self):
        super().__init__()
        self.layer = caps.CapsuleLayer(4, 3, 4, 3)

    def forward(self, lower):
        return self.layer(self.layer(lower))


class Reversed(nn.Module):
    """A model whose class layer is defined first."""

    def __init__(self):
        super().__init__()
        self.classes = caps.CapsuleLayer(5, 3, 2, 3)
        self.hidden = caps.CapsuleLayer(4, 3, 5, 3)

    def forward(self, lower):
        return self.classes(self.hidden(lower))


def test_what_is_refused(trained):
    lower, labels = torch.rand(6, 4, 3), torch.arange(6) % 2
    with pytest.raises(ValueError, match="layer 'layer' was given 12 rows of capsules for 6 images"):
        fastcaps.accumulate(Recurrent(), [(lower, labels)])
    model = Reversed()
    with pytest.raises(
        ValueError, match="layer 'hidden' was taken for the class layer, but 'classes' was computed after"
    ):
        fastcaps.accumulate(model, [(lower, labels)])
    master = fastcaps.accumulate(model, [(lower, labels)], class_layer="classes")
    assert (master["classes"].method, master["hidden"].method) == ("per_class", "mean")
    with pytest.raises(ValueError, match="class_layer is 'x', expected one of 'classes', 'hidden'"):
        fastcaps.accumulate(model, [(lower, labels)], class_layer="x")
    with pytest.raises(ValueError, match="Linear has no CapsuleLayer, expected a model with at least one"):
        fastcaps.accumulate(nn.Linear(2, 2), [])
    with pytest.raises(ValueError, match="master is 'even', expected master coefficients or 'uniform'"):
        fastcaps.fold(model, "even")
    with pytest.raises(ValueError, match="one matrix of coefficients was given for 2 capsule layers"):
        fastcaps.fold(model, master["classes"])
    with pytest.raises(
        ValueError, match="coefficients are for the layers 'classes', this model has 'classes', 'hidden'"
    ):
        fastcaps.fold(model, {"classes": master["classes"]})
    with pytest.raises(
        ValueError, match="master coefficients are for 4×5 capsules, layer 'classes' of this model has 5×2"
    ):
        fastcaps.fold(model, {"classes": master["hidden"], "hidden": master["hidden"]})
    with pytest.raises(
        ValueError, match="master is NoneType, expected what accumulate returned, a matrix, or 'uniform'"
    ):
        fastcaps.fold(model, None)
    with pytest.raises(ValueError, match="the model is MasterCoefficients, expected a torch.nn.Module"):
        fastcaps.fold(master["classes"], model)
    with pytest.raises(ValueError, match="the model is wrapped in DataParallel, expected the model itself: give model"):
        fastcaps.accumulate(nn.DataParallel(model), [(lower, labels)])
    broken = {path: torch.full_like(one.values, torch.nan) for path, one in master.items()}
    with pytest.raises(ValueError, match="the coefficients of layer 'classes' are not all finite"):
        fastcaps.fold(model, broken)
    with pytest.raises(
        ValueError, match="there were no images to accumulate: is the loader empty, or the generator used"
    ):
        fastcaps.accumulate(model, [], class_layer="classes")
    other = Reversed()
    with pytest.raises(ValueError, match="master coefficients of layer 'classes' were accumulated with other weights"):
        fastcaps.fold(other, master)
    assert fastcaps.fold(other, master, any_weights=True)(lower).shape == (6, 2, 3)
    assert fastcaps.fold(other, {path: one.values for path, one in master.items()})(lower).shape == (6, 2, 3)
    with pytest.raises(ValueError, match="no image was accumulated: expected at least one"):
        MeanAccumulator(model.hidden).compute()


def test_a_single_layer_is_a_model_too():
    layer = caps.CapsuleLayer(4, 3, 2, 5)
    lower, labels = torch.rand(6, 4, 3), torch.arange(6) % 2
    master = fastcaps.accumulate(layer, [(lower, labels)])
    assert list(master) == [""]
    fast = fastcaps.fold(layer, master[""])
    torch.testing.assert_close(fast(lower), layer.apply_coefficients(lower, master[""].values).detach())


def test_a_capsnet_gives_one_and_takes_one_or_a_mapping():
    config = fastcaps.CapsNetConfig.for_images(
        12, 12, 1, classes=3, stem_channels=6, stem_kernel=3, capsule_types=3, lower_dimension=4, primary_kernel=3
    )
    model = fastcaps.CapsNet(config)
    master = fastcaps.accumulate(model, [data()])
    assert isinstance(master, fastcaps.MasterCoefficients)
    images, _ = data()
    one, mapping = fastcaps.fold(model, master), fastcaps.fold(model, {"routing": master})
    assert torch.equal(one(images).lengths, mapping(images).lengths)
    assert one.provenance == mapping.provenance
    assert one.provenance == {"master": master.summary().to_dict(), "coefficients_sha256": master.values_hash}
    assert dataclasses.replace(config) == one.config


def test_a_routing_without_normalization_is_averaged_as_it_is():
    class Even(caps.Routing):
        def __call__(self, lower_capsules, weight, bias=None):
            votes = F.prediction_vectors(lower_capsules, weight)
            coefficients = votes.norm(dim=-1)
            return caps.RoutingOutput(F.fast_routing(votes, coefficients, bias=bias), coefficients)

    layer = caps.CapsuleLayer(4, 3, 2, 5, routing=Even())
    with pytest.raises(
        ValueError, match="the routing of layer '', Even, does not say which coefficients it starts from"
    ):
        fastcaps.fold(layer, "uniform")
    lower, labels = torch.rand(6, 4, 3), torch.arange(6) % 2
    values = fastcaps.accumulate(layer, [(lower, labels)])[""].values
    coefficients = layer.route(lower).coefficients.detach().double()
    expected = torch.stack([coefficients[labels == k].mean(0)[:, k] for k in range(2)], 1)
    torch.testing.assert_close(values, expected)


def accumulate_in_parts(world, path):
    """Each rank has its own images; all get the same coefficients of both layers."""
    torch.manual_seed(0)
    model = network()
    images, labels = data()
    mine = world.share(len(images))
    master = fastcaps.accumulate(model, [(images[mine], labels[mine])], world=world)
    torch.save({name: one.values for name, one in master.items()}, path / f"{world.size}-{world.rank}")


@pytest.mark.slow
def test_several_processes_give_the_same_coefficients(tmp_path):
    in_ranks(2, accumulate_in_parts, tmp_path)
    alone(accumulate_in_parts, tmp_path)
    expected = torch.load(tmp_path / "1-0")
    for rank in range(2):
        for name, values in torch.load(tmp_path / f"2-{rank}").items():
            torch.testing.assert_close(values, expected[name], rtol=0, atol=1e-6)
