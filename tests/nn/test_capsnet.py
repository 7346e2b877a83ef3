"""The capsule network: what it computes, what it does not depend on, how it starts."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import reference

from fastcaps import CapsNet, CapsNetConfig, accumulate
from fastcaps import functional as F
from fastcaps.nn import base
from fastcaps.nn.convolutional import standardized


def test_shapes_and_lengths(model):
    out = model(torch.rand(5, 2, 14, 12))
    i = model.config.lower_capsules
    assert out.capsules.shape == (5, 3, 7)
    assert out.coefficients is None
    torch.testing.assert_close(out.lengths, out.capsules.norm(dim=-1))
    out = model(torch.rand(5, 2, 14, 12), with_coefficients=True)
    assert out.coefficients.shape == (5, i, 3)
    assert not out.coefficients.requires_grad
    assert out.capsules.requires_grad


def test_the_whole_network_follows_the_paper_loop_by_loop(model):
    model.double()
    images = torch.rand(2, 2, 14, 12, dtype=torch.float64)
    out = model(images, with_coefficients=True)
    weight = model.routing.weight.detach().numpy()
    for k, lower in enumerate(model.lower_capsules(images).detach().numpy()):
        capsules, used = reference.routing_procedure(reference.prediction_vectors(lower, weight))
        np.testing.assert_allclose(out.capsules[k].detach(), capsules, atol=1e-12)
        np.testing.assert_allclose(out.coefficients[k], used[-1], atol=1e-9)


def test_primary_capsules_group_channels_at_one_position():
    config = CapsNetConfig.for_images(
        9,
        7,
        1,
        classes=2,
        stem_channels=3,
        stem_kernel=1,
        capsule_types=2,
        lower_dimension=4,
        primary_kernel=3,
    )
    primary = CapsNet(config).primary
    maps = torch.rand(2, 3, 9, 7)
    channels = primary.conv(maps)
    capsules = primary(maps)
    height, width = config.grid
    assert (height, width) == (4, 3)
    for y in range(height):
        for x in range(width):
            for kind in range(2):
                expected = F.squash(channels[:, kind * 4 : kind * 4 + 4, y, x])
                torch.testing.assert_close(capsules[:, (y * width + x) * 2 + kind], expected)


def test_primary_capsules_see_only_their_own_patch():
    """A change in one corner reaches only the capsules whose patch holds it."""
    config = CapsNetConfig.for_images(
        9,
        9,
        1,
        classes=2,
        stem_channels=2,
        stem_kernel=1,
        capsule_types=3,
        lower_dimension=2,
        primary_kernel=3,
    )
    model = CapsNet(config)
    images = torch.rand(1, 1, 9, 9)
    changed = images.clone()
    changed[0, 0, 0, 0] += 0.5
    difference = (model.lower_capsules(changed) - model.lower_capsules(images)).abs().sum(-1)[0]
    assert (difference[:3] > 0).any()
    assert (difference[3:] == 0).all()


@pytest.mark.parametrize("gradients", [True, False])
def test_an_images_result_does_not_depend_on_its_batch(model, monkeypatch, gradients):
    monkeypatch.setattr(base, "CHUNK_IMAGES", 3)
    model.double()  # where only rounding differs, coefficients that divide by a small spread agree, too
    images = torch.rand(8, 2, 14, 12, dtype=torch.float64)
    with torch.set_grad_enabled(gradients):
        whole = model(images, with_coefficients=True)
        reversed_ = model(images.flip(0), with_coefficients=True)
        for k in range(8):
            alone = model(images[k : k + 1], with_coefficients=True)
            for one, other in zip(alone, whole, strict=True):
                torch.testing.assert_close(one[0], other[k], rtol=1e-7, atol=1e-9)
            for one, other in zip(reversed_, whole, strict=True):
                torch.testing.assert_close(one[7 - k], other[k], rtol=1e-7, atol=1e-9)


def test_an_images_lengths_do_not_depend_on_its_batch_in_float32_either(model):
    images = torch.rand(8, 2, 14, 12)
    lengths = model(images).lengths
    for k in range(8):
        torch.testing.assert_close(model(images[k : k + 1]).lengths[0], lengths[k], rtol=1e-4, atol=1e-5)


def test_without_gradients_the_batch_goes_in_pieces(model, monkeypatch):
    monkeypatch.setattr(base, "CHUNK_IMAGES", 4)
    seen = []
    model.stem.register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    images = torch.rand(10, 2, 14, 12)
    with torch.no_grad():
        model(images)
    assert seen == [4, 4, 2]
    model(images)
    assert seen == [4, 4, 2, 10]


@pytest.mark.parametrize("normalization", ["max_min", "softmax"])
def test_black_images_give_no_nan_forward_or_backward(config, normalization):
    model = CapsNet(CapsNetConfig.from_dict({**config.to_dict(), "normalization": normalization, "standardize": True}))
    images = torch.zeros(3, 2, 14, 12, requires_grad=True)
    out = model(images)
    labels = torch.tensor([0, 1, 2])
    loss = F.margin_loss(out.lengths, labels) + F.reconstruction_loss(model.reconstruct(out.capsules, labels), images)
    loss.backward()
    assert torch.isfinite(out.lengths).all()
    gradients = [tensor.grad for tensor in (images, *model.parameters()) if tensor.grad is not None]
    assert len(gradients) == 1 + len(list(model.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_broken_weights_show(config):
    model = CapsNet(config)
    torch.nn.init.constant_(next(model.stem.parameters())[0], torch.nan)
    images, labels = torch.rand(6, 2, 14, 12), torch.arange(6) % 3
    assert model(images).lengths.isnan().all()
    with pytest.raises(ValueError, match="coefficients of image 0 of this batch are not finite: check the network's"):
        accumulate(model, [(images, labels)])


@pytest.mark.parametrize("lower_dimension", [4, 1])  # with votes, without
def test_autocast_routes_in_full_precision(config, lower_dimension):
    config = dataclasses.replace(config, lower_dimension=lower_dimension)
    model = CapsNet(config)
    images = torch.rand(40, 2, 14, 12)
    with torch.autocast("cpu", torch.bfloat16):
        lower = model.lower_capsules(images)
        lengths = model(images).lengths
    expected = model.routing(lower.to(torch.float32)).norm(dim=-1)
    torch.testing.assert_close(lengths, expected)
    torch.testing.assert_close(lengths, model(images).lengths, atol=0.02, rtol=0.1)
    lengths.sum().backward()
    gradient = model.routing.weight.grad
    assert gradient is not None
    assert gradient.isfinite().all()


def test_shapes_without_memory(config):
    with torch.device("meta"):
        assert CapsNet(config)(torch.rand(40, 2, 14, 12)).lengths.shape == (40, 3)


def test_empty_batch_and_bytes(model):
    assert model(torch.zeros(0, 2, 14, 12)).lengths.shape == (0, 3)
    assert model.predict(torch.zeros(0, 2, 14, 12)).shape == (0,)
    bytes_ = torch.randint(0, 256, (2, 2, 14, 12), dtype=torch.uint8)
    torch.testing.assert_close(model(bytes_).lengths, model(bytes_.float() / 255).lengths)


def test_reconstruction_masks_all_but_one_capsule(model):
    capsules = torch.rand(4, 3, 7)
    labels = torch.tensor([2, 0, 1, 1])
    drawn = model.reconstruct(capsules, labels)
    assert drawn.shape == (4, 2, 14, 12)
    assert ((drawn > 0) & (drawn < 1)).all()
    masked = torch.zeros_like(capsules)
    masked[torch.arange(4), labels] = capsules[torch.arange(4), labels]
    torch.testing.assert_close(model.reconstruct(masked, labels), drawn)
    longest = capsules.norm(dim=-1).argmax(1)
    torch.testing.assert_close(model.reconstruct(capsules), model.reconstruct(capsules, longest))


def test_predict_is_the_longest_capsule(model):
    images = torch.rand(6, 2, 14, 12)
    assert model.predict(images).tolist() == model(images).lengths.argmax(1).tolist()


@given(st.floats(0.01, 100), st.floats(-5, 5))
def test_standardization_forgets_brightness_and_contrast(scale, offset):
    images = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    result = standardized(images)
    torch.testing.assert_close(result.flatten(1).mean(1), torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(result.flatten(1).var(1, correction=0), torch.ones(2, dtype=torch.float64))
    if scale > 1:
        torch.testing.assert_close(standardized(images * scale + offset), result)
    assert standardized(torch.full((1, 1, 3, 3), 0.7)).abs().max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("normalization", ["max_min", "softmax"])
@pytest.mark.parametrize("types", [1, 8, 64, 256])
@pytest.mark.parametrize(("dimension", "classes", "mean_square"), [(8, 10, 0.1), (4, 10, 1.0), (16, 50, 0.3)])
def test_lengths_at_the_start_neither_vanish_nor_saturate(normalization, types, dimension, classes, mean_square):
    """From 16 to 4096 lower capsules: class capsules are short but not nothing, and have a slope to learn on."""
    config = CapsNetConfig.for_images(
        16,
        16,
        1,
        classes=classes,
        stem_channels=32,
        stem_kernel=5,
        capsule_types=types,
        lower_dimension=dimension,
        primary_kernel=5,
        normalization=normalization,
    )
    assert config.lower_capsules == 16 * types
    images = torch.randn(8, 1, 16, 16).abs() * mean_square**0.5
    with torch.no_grad():
        model = CapsNet(config)
        lower = model.lower_capsules(images).norm(dim=-1).mean()
        lengths = model(images).lengths
    assert 0.1 < lower < 0.95
    assert 0.001 < lengths.mean() < 0.6
    assert lengths.max() < 0.9


@pytest.mark.parametrize("types", [2, 32])
@pytest.mark.parametrize("sparse", [False, True])
def test_weights_for_fixed_coefficients_keep_lengths(types, sparse):
    """However many of the coefficients are nothing: the sums are as long as the lower capsules."""
    config = CapsNetConfig.mnist(capsule_types=types)
    layer = CapsNet(config).routing
    fixed = torch.rand(config.lower_capsules, 10) * (torch.rand(config.lower_capsules, 10) < (0.2 if sparse else 1))
    layer.reset_parameters(fixed)
    lower = torch.randn(64, config.lower_capsules, 8)
    lower = 0.5 * lower / lower.norm(dim=-1, keepdim=True)
    sums = lower.flatten(1) @ F.fold_weights(layer.weight.detach(), fixed)
    assert 0.4 < float(sums.view(64, 10, 16).norm(dim=-1).mean()) < 0.6


def test_a_fixed_deviation_would_saturate():
    """What the initialization is for: at σ = 0.1 the paper's 1152 capsules leave squash no slope."""
    config = CapsNetConfig.mnist()
    layer = CapsNet(config).routing
    lower = torch.randn(4, 1152, 8)
    lower = 0.5 * lower / lower.norm(dim=-1, keepdim=True)
    with torch.no_grad():
        started = layer(lower).norm(dim=-1)
        layer.weight.normal_(std=0.1)
        saturated = layer(lower).norm(dim=-1)
    assert started.max() < 0.6
    assert saturated.min() > 0.99


def test_max_min_training_starts():
    """A few steps of Adam with a rising rate on a learnable problem: the margin loss falls at once."""
    config = CapsNetConfig.for_images(
        12, 12, 1, classes=4, stem_channels=16, stem_kernel=5, capsule_types=8, primary_kernel=3, decoder=(8,)
    )
    model = CapsNet(config)
    patterns = torch.rand(4, 1, 12, 12)
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for step in range(40):
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1.0, (step + 1) / 20)
        labels = torch.randint(0, 4, (32,))
        loss = F.margin_loss(model(patterns[labels] + 0.1 * torch.rand(32, 1, 12, 12)).lengths, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: m(torch.zeros(5, 1, 14, 12)),
            r"images have shape \(5, 1, 14, 12\), expected \(batch, 2, 14, 12\)",
        ),
        (
            lambda m: m(torch.zeros(2, 14, 12)),
            r"images have shape \(2, 14, 12\), expected \(batch, 2, 14, 12\)",
        ),
        (
            lambda m: m(torch.zeros(1, 2, 14, 12).long()),
            "images are torch.int64, expected floating-point between 0",
        ),
        (
            lambda m: m.reconstruct(torch.zeros(2, 3, 8)),
            r"capsules have shape \(2, 3, 8\), expected \(batch, 3, 7\)",
        ),
        (
            lambda m: m.reconstruct(torch.zeros(2, 3, 7), torch.zeros(3).long()),
            r"labels have shape \(3,\), expected one class number for each of the 2 images",
        ),
    ],
)
def test_errors(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(model)


def test_a_large_image_trains_through_a_strided_stem():
    config = CapsNetConfig.for_images(96, 96, 3, classes=4, stem="strided", stem_channels=16, capsule_types=4)
    model = CapsNet(config)
    assert model.stem(torch.rand(1, 3, 96, 96)).shape[2:] == config.stem_size
    lengths = model(torch.rand(2, 3, 96, 96)).lengths
    lengths.sum().backward()
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "decoder" not in name)


def test_many_capsules_by_accident_are_announced():
    config = CapsNetConfig.for_images(64, 64, 3, classes=10, stem_channels=4)
    message = r"images of 64×64 give 18,432 lower capsules .*weights take 94 MB, 377 MB while training.*stem='auto'"
    with pytest.warns(UserWarning, match=message), torch.device("meta"):
        CapsNet(config)
