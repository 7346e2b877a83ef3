"""A stem that starts from patches of images: against plain loops over patches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastcaps.nn import Stem
from fastcaps.nn.whitening import patch_moments, whiten_stem


def loop_moments(stem, images):
    """Return the mean product of every two entries of a patch, patch by patch and entry by entry."""
    size, stride = stem.conv.kernel_size[0], stem.conv.stride[0]
    maps = stem.inputs(images).detach().double()
    patches = [
        maps[b, :, y : y + size, x : x + size].flatten().tolist()
        for b in range(len(maps))
        for y in range(0, maps.shape[2] - size + 1, stride)
        for x in range(0, maps.shape[3] - size + 1, stride)
    ]
    entries = range(len(patches[0]))
    return torch.tensor(
        [[sum(patch[k] * patch[n] for patch in patches) / len(patches) for n in entries] for k in entries],
        dtype=torch.float64,
    )


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.booleans(), st.booleans(), st.integers(1, 3))
def test_moments_are_those_of_the_loop(channels, size, stride, front, standardize, count):
    torch.manual_seed(count)
    stem = Stem(channels, 4, size, stride, layers=[(2, 2, 2)] if front else [], standardize=standardize)
    images = torch.rand(count, channels, 8, 7)
    torch.testing.assert_close(patch_moments(stem, images), loop_moments(stem, images), rtol=1e-6, atol=1e-9)


def test_pieces_of_the_images_change_nothing(monkeypatch):
    torch.manual_seed(0)
    stem, images = Stem(1, 4, 3), torch.rand(7, 1, 6, 6)
    at_once = patch_moments(stem, images)
    monkeypatch.setattr("fastcaps.nn.whitening._IMAGES", 2)
    torch.testing.assert_close(patch_moments(stem, images), at_once)


@pytest.mark.parametrize(("maps", "components"), [(12, 6), (18, 9), (30, 9), (7, 3)])
def test_maps_are_uncorrelated_and_equally_strong(maps, components):
    torch.manual_seed(0)
    stem = Stem(1, maps, 3, standardize=True)
    bias = stem.conv.bias
    assert bias is not None
    torch.nn.init.ones_(bias)
    drawn = stem.conv.weight.detach().clone()
    images = torch.nn.functional.interpolate(torch.rand(40, 1, 5, 5), (10, 10), mode="bilinear")
    moments = patch_moments(stem, images)
    whiten_stem(stem, images)
    weight = stem.conv.weight.detach()
    assert not bias.any()
    filters = weight[:components]
    assert torch.equal(weight[components : 2 * components], -filters)
    assert torch.equal(weight[2 * components :], drawn[2 * components :])
    flat = filters.flatten(1).double()
    of_maps = flat @ moments @ flat.T
    strengths = torch.linalg.eigvalsh(moments).flip(0)[:components]
    expected = torch.diag(strengths / (strengths + 0.1 * moments.diagonal().mean()))
    torch.testing.assert_close(of_maps, expected, rtol=1e-4, atol=1e-5)
    # The strongest component of smooth images is the brightness of the patch: all its weights have one sign.
    assert (filters[0].sign() == filters[0].sign().flatten()[0]).all()


def test_modes_and_gradients_stay_as_they_were():
    stem = Stem(3, 8, 3, layers=[(4, 3, 1)], batch_norm=True)
    stem.train()
    before = {name: tensor.clone() for name, tensor in stem.state_dict().items()}
    whiten_stem(stem, torch.rand(4, 3, 9, 9))
    assert all(module.training for module in stem.modules())
    assert stem.conv.weight.requires_grad
    assert stem.conv.weight.grad is None
    changed = {name for name, tensor in stem.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"conv.weight"}


@pytest.mark.parametrize("standardize", [False, True])
def test_images_without_any_input_are_refused(standardize):
    images = torch.full((5, 1, 8, 8), 0.5 if standardize else 0.0)
    with pytest.raises(ValueError, match="all inputs of the stem are 0 for the 5 images, expected images that are"):
        whiten_stem(Stem(1, 4, 3, standardize=standardize), images)


def test_components_that_no_image_has_are_left_out():
    # Gray images with three equal channels have a third of the components.
    torch.manual_seed(0)
    stem = Stem(3, 20, 2)
    drawn = stem.conv.weight.detach().clone()
    whiten_stem(stem, torch.rand(30, 1, 9, 9).expand(30, 3, 9, 9))
    weight = stem.conv.weight.detach()
    assert torch.equal(weight[8:], drawn[8:])
    assert torch.equal(weight[4:8], -weight[:4])
    torch.testing.assert_close(weight[:4, 0], weight[:4, 2])


def test_large_filters_are_refused(monkeypatch):
    monkeypatch.setattr("fastcaps.nn.whitening.MAX_ENTRIES", 26)
    message = r"has 27 inputs \(3 channels of 3×3\), expected at most 26 to whiten them: start with random filters"
    with pytest.raises(ValueError, match=message):
        whiten_stem(Stem(3, 4, 3), torch.rand(2, 3, 8, 8))


def test_of_many_patches_some_are_taken(monkeypatch):
    torch.manual_seed(0)
    stem, images = Stem(1, 4, 2), torch.rand(60, 1, 12, 12)
    whole = patch_moments(stem, images)
    monkeypatch.setattr("fastcaps.nn.whitening._PATCHES", 2500)  # of 7260: every third
    part = patch_moments(stem, images)
    assert not torch.equal(part, whole)
    torch.testing.assert_close(part, whole, rtol=0.1, atol=0)
