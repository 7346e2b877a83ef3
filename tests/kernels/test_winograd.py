"""Winograd's convolution against loops and ordinary convolution, its choice, and what a layer keeps of it."""

import copy
import io
import pickle
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.convolution import convolution
from torch import Tensor
from torch._subclasses import FakeTensorMode

from fastcaps import CapsNet, CapsNetConfig
from fastcaps._tracing import is_plain
from fastcaps.kernels import winograd
from fastcaps.kernels.convolution import FastConvolution
from fastcaps.kernels.im2col import im2col_conv2d, im2col_conv2d_relu, im2col_kernel
from fastcaps.kernels.winograd import (
    best_tile,
    order_for_training,
    transform_kernel,
    transforms,
    winograd_conv2d_transformed,
)
from fastcaps.nn import PrimaryCapsules, Stem

EPSILON = 2.0**-53

# Called with starred lists, which type checkers can't count.
conv2d: Any = torch.conv2d
winograd_conv2d: Any = winograd.winograd_conv2d
stem_conv2d: Any = im2col_conv2d_relu
choose_tile: Any = winograd.choose_tile


class Case(NamedTuple):
    maps: Tensor
    weight: Tensor
    bias: Tensor
    stride: int
    tile: int

    @property
    def tolerance(self) -> float:
        """A bound for the rounding error of every entry of the result and of its gradients.

        All are sums over points of products of one row entry of each matrix, in two dimensions, times entries of two of
        maps, weights and the result's gradient. With the absolute values of all matrices added up, the bound holds for
        whichever index stays. Each product is rounded once in every sum it passes: n long for maps and outputs, r for
        the kernel, twice each, and the sum over phases and channels, images or outputs with its tiles.
        """
        taps = -(-self.weight.shape[2] // self.stride)
        matrices = transforms(self.tile, taps)
        sums = matrices.outputs.abs().sum(0) * matrices.kernel.abs().sum(1) * matrices.maps.abs().sum(1)
        grown = float(sums.sum()) ** 2
        points = self.tile + taps - 1
        positions = self.maps.shape[2] * self.maps.shape[3]
        length = self.stride**2 * max(self.maps.shape[1], self.weight.shape[0], len(self.maps) * positions)
        largest = max(
            float(tensor.detach().abs().max()) for tensor in (self.maps, self.weight, self.bias, torch.ones(1))
        )
        return EPSILON * (4 * points + 2 * taps + length + 6) * grown * length * largest**2


def in_order(maps: Tensor, order: str) -> Tensor:
    if order == "channels last":
        return maps.contiguous(memory_format=torch.channels_last)
    if order == "hwbc":
        return maps.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    return maps


@st.composite
def cases(draw: st.DrawFn, most: int = 14) -> Case:
    stride, tile = draw(st.sampled_from([2, 2, 2, 1, 3])), draw(st.sampled_from([6, 4, 3, 2, 1]))
    most_taps = 11 - tile
    size = draw(st.integers(1 if tile > 1 else stride + 1, min(9, most_taps * stride)))
    h, w = draw(st.integers(size, max(size, most))), draw(st.integers(size, max(size, most)))
    b, c, o = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    numbers: dict[str, Any] = {"dtype": torch.float64, "generator": generator}
    orders = st.sampled_from(["plain", "channels last", "hwbc"])
    maps = in_order(torch.randn(b, c, h, w, **numbers), draw(orders))
    weight = in_order(torch.randn(o, c, size, size, **numbers), draw(orders))
    return Case(maps, weight, torch.randn(o, **numbers), stride, tile)


def small_case(tile: int = 3) -> Case:
    """13×18 maps: several tiles, cut off at the edge."""
    numbers: dict[str, Any] = {"dtype": torch.float64}
    maps, weight = torch.randn(2, 3, 13, 18, **numbers), torch.randn(4, 3, 5, 5, **numbers)
    return Case(maps, weight, torch.randn(4, **numbers), 2, tile)


@pytest.mark.parametrize("taps", range(1, 7))
@pytest.mark.parametrize("tile", [2, 3, 4, 5])
def test_transforms_are_exact_in_one_dimension(tile, taps):
    outputs, kernel, maps = (matrix.numpy() for matrix in transforms(tile, taps))
    g, d = np.random.default_rng(0).normal(size=taps), np.random.default_rng(1).normal(size=tile + taps - 1)
    expected = [sum(g[j] * d[y + j] for j in range(taps)) for y in range(tile)]
    bound = 40 * EPSILON * (abs(outputs) @ ((abs(kernel) @ abs(g)) * (abs(maps) @ abs(d)))).max()
    np.testing.assert_allclose(outputs @ ((kernel @ g) * (maps @ d)), expected, rtol=0, atol=bound)


@given(cases())
def test_result_is_that_of_the_loops(case):
    expected = convolution(case.maps.numpy(), case.weight.numpy(), case.bias.numpy(), case.stride)
    actual = winograd_conv2d(*case)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=case.tolerance)
    assert actual.permute(0, 2, 3, 1).is_contiguous()
    kernel = transform_kernel(case.weight, case.stride, case.tile)
    prepared = winograd_conv2d_transformed(case.maps, kernel, case.bias, case.weight.shape[2], case.tile)
    np.testing.assert_allclose(prepared, expected, rtol=0, atol=case.tolerance)
    assert prepared.permute(0, 2, 3, 1).is_contiguous()


@given(cases(most=22))
def test_gradients_are_those_of_ordinary_convolution(case):
    inputs = [tensor.requires_grad_() for tensor in case[:3]]
    expected = conv2d(*inputs, case.stride)
    direction = torch.randn_like(expected).clamp(-1, 1)
    for actual, gradient in zip(
        torch.autograd.grad(winograd_conv2d(*case), inputs, direction),
        torch.autograd.grad(expected, inputs, direction),
        strict=True,
    ):
        np.testing.assert_allclose(actual, gradient, rtol=0, atol=case.tolerance)


def test_weights_in_the_order_for_training_are_not_copied():
    case = small_case()
    weight = order_for_training(case.weight)
    assert torch.equal(weight, case.weight)
    assert weight.permute(2, 3, 0, 1).is_contiguous()
    result = winograd_conv2d(case.maps, weight.requires_grad_(), case.bias, case.stride, case.tile)
    assert torch.equal(result, winograd_conv2d(*case))
    (gradient,) = torch.autograd.grad(result.sum(), weight)
    assert gradient.stride() == weight.stride()


@pytest.mark.parametrize("tile", [3, 4, 6])
def test_gradcheck(tile):
    case = small_case(tile)
    maps = case.maps[:1, :2].clone().requires_grad_()
    weight, bias = case.weight[:2, :2].clone().requires_grad_(), case.bias[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *inputs: winograd_conv2d(*inputs, case.stride, case.tile), (maps, weight, bias), fast_mode=True
    )


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_the_wanted_gradient(wanted):
    case = small_case()
    inputs = [tensor.requires_grad_(want) for tensor, want in zip(case[:3], wanted, strict=True)]
    asked = [tensor for tensor in inputs if tensor.requires_grad]
    gradients = torch.autograd.grad(winograd_conv2d(*case).sum(), asked)
    expected = torch.autograd.grad(conv2d(*inputs, case.stride).sum(), asked)
    torch.testing.assert_close(gradients[0], expected[0], rtol=0, atol=case.tolerance)


def test_without_bias():
    case = small_case()
    expected = conv2d(case.maps, case.weight, None, case.stride)
    actual = winograd_conv2d(case.maps, case.weight, None, case.stride, case.tile)
    torch.testing.assert_close(actual, expected, rtol=0, atol=case.tolerance)


@pytest.mark.parametrize("shape", [(2, 3, 20, 20), (5, 3, 13, 18)])
def test_pieces_give_what_the_whole_gives(monkeypatch, shape):
    case = small_case(6)._replace(maps=torch.randn(shape, dtype=torch.float64), weight=torch.randn(4, 3, 9, 9).double())
    inputs = [tensor.requires_grad_() for tensor in case[:3]]
    whole = winograd_conv2d(*case)
    expected = torch.autograd.grad(whole.square().sum(), inputs)
    monkeypatch.setattr(winograd, "CHUNK_BYTES", 1)
    monkeypatch.setattr(winograd, "GROUP_BYTES", 1)
    pieces = winograd_conv2d(*case)
    torch.testing.assert_close(pieces, whole, rtol=1e-9, atol=case.tolerance)
    for actual, one in zip(torch.autograd.grad(pieces.square().sum(), inputs), expected, strict=True):
        torch.testing.assert_close(actual, one, rtol=1e-9, atol=1e-9 * float(one.abs().max()))


def test_an_empty_batch():
    case = small_case()._replace(maps=torch.empty(0, 3, 13, 18, dtype=torch.float64))
    inputs = [tensor.requires_grad_() for tensor in case[:3]]
    result = winograd_conv2d(*case)
    assert result.shape == (0, 4, 5, 7)
    on_maps, on_weight, on_bias = torch.autograd.grad(result.sum(), inputs)
    assert on_maps.shape == case.maps.shape
    assert not on_weight.any()
    assert not on_bias.any()
    kernel = transform_kernel(case.weight, 2, 3)
    assert winograd_conv2d_transformed(case.maps, kernel, case.bias, 5, 3).shape == (0, 4, 5, 7)


# About three times what was measured: root mean square of the error over the standard deviation of the result.
FLOAT32 = {3: 1e-5, 4: 1.5e-5, 6: 8e-5}


@pytest.mark.parametrize(("side", "tile"), [(20, 6), (20, 3), (16, 4)])
def test_float32_error_at_the_papers_shapes(side, tile):
    maps, weight = torch.randn(2, 256, side, side).relu(), torch.randn(16, 256, 9, 9) / 144
    exact = [maps.double().requires_grad_(), weight.double().requires_grad_()]
    inputs = [maps.requires_grad_(), weight.requires_grad_()]
    expected = conv2d(*exact, None, 2)
    actual = winograd_conv2d(*inputs, None, 2, tile)
    direction = torch.randn_like(actual)
    pairs = zip(
        [actual, *torch.autograd.grad(actual, inputs, direction)],
        [expected, *torch.autograd.grad(expected, exact, direction.double())],
        strict=True,
    )
    for one, other in pairs:
        assert (one - other).square().mean().sqrt() < FLOAT32[tile] * other.std()
    prepared = winograd_conv2d_transformed(maps, transform_kernel(weight, 2, tile), None, 9, tile)
    assert (prepared - expected).square().mean().sqrt() < FLOAT32[tile] * expected.std()


def test_gradients_repeat_bit_for_bit():
    maps, weight = torch.randn(20, 16, 20, 20, requires_grad=True), torch.randn(24, 16, 9, 9, requires_grad=True)
    pool = winograd.WorkspacePool()
    runs = []
    for _ in range(2):
        result = winograd_conv2d(maps, weight, None, 2, 6, pool)
        runs.append([result, *torch.autograd.grad(result.square().sum(), (maps, weight))])
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_a_pool_serves_other_types_and_modes():
    case, pool = small_case(), winograd.WorkspacePool()
    with torch.inference_mode():
        winograd_conv2d(*case, pool)
    inputs = [tensor.float().requires_grad_() for tensor in case[:3]]
    actual = winograd_conv2d(*inputs, case.stride, case.tile, pool)
    actual.sum().backward()
    torch.testing.assert_close(actual, conv2d(*inputs, case.stride), rtol=1e-3, atol=1e-3)


def test_wrong_shapes_are_named():
    maps, weight, bias = torch.zeros(2, 3, 9, 8), torch.zeros(4, 3, 5, 5), torch.zeros(4)
    with pytest.raises(ValueError, match=r"maps have shape \(2, 2, 9, 8\), expected \(b, 3, h, w\) with h and w at l"):
        winograd_conv2d(maps[:, :2], weight, bias, 2, 3)
    with pytest.raises(ValueError, match=r"shape \(2, 3, 9, 4\), expected \(b, 3, h, w\) with h and w at least 5"):
        winograd_conv2d(maps[..., :4], weight, bias, 2, 3)
    with pytest.raises(ValueError, match=r"maps have shape \(3, 9, 8\), expected \(b, 3, h, w\)"):
        winograd_conv2d(maps[0], weight, bias, 2, 3)
    with pytest.raises(ValueError, match=r"weights have shape \(4, 3, 5, 4\), expected \(o, c, k, k\), none of them 0"):
        winograd_conv2d(maps, weight[..., :4], bias, 2, 3)
    with pytest.raises(ValueError, match=r"weights have shape \(0, 3, 5, 5\), expected"):
        transform_kernel(weight[:0], 2, 3)
    with pytest.raises(ValueError, match=r"the bias has shape \(3,\), expected \(4,\)"):
        winograd_conv2d(maps, weight, bias[:3], 2, 3)
    with pytest.raises(ValueError, match=r"stride is 0, expected at least 1"):
        winograd_conv2d(maps, weight, bias, 0, 3)
    with pytest.raises(ValueError, match=r"tile is 0, expected at least 1"):
        winograd_conv2d(maps, weight, bias, 2, 0)
    with pytest.raises(
        ValueError, match=r"tile of 9 and phases of 3×3 kernel entries take 11 points, expected 2 to 10"
    ):
        winograd_conv2d(maps, weight, bias, 2, 9)
    with pytest.raises(ValueError, match=r"tile of 1 and phases of 1×1 kernel entries take 1 points, expected 2 to 10"):
        transforms(1, 1)
    with pytest.raises(ValueError, match=r"maps are torch.float64, weights torch.float32: expected one floating-point"):
        winograd_conv2d(maps.double(), weight, bias, 2, 3)
    kernel = transform_kernel(weight, 2, 3)
    with pytest.raises(ValueError, match=r"maps are torch.float64, the kernel torch.float32: expected one floating-p"):
        winograd_conv2d_transformed(maps.double(), kernel, bias, 5, 3)
    with pytest.raises(
        ValueError,
        match=r"shape \(2, 2, 5, 5, 3, 4\), expected \(2, 2, 6, 6, c, o\) for a kernel of 5×5 and tiles of 4×4",
    ):
        winograd_conv2d_transformed(maps, kernel, bias, 5, 4)
    with pytest.raises(ValueError, match=r"transformed kernel has shape \(4, 3, 5, 5\), expected"):
        winograd_conv2d_transformed(maps, weight, bias, 5, 3)


MNIST, CIFAR = (9, 2, (20, 20), 256, 256), (9, 2, (16, 16), 256, 256)


@pytest.mark.parametrize(
    ("shape", "batch", "training", "tile"),
    [
        (MNIST, 1, False, None),
        (MNIST, 8, False, 6),
        (MNIST, 32, False, 6),
        (MNIST, 128, False, 6),
        (MNIST, 1, True, None),
        (MNIST, 32, True, 6),
        (MNIST, 128, True, 6),
        (CIFAR, 1, False, None),
        (CIFAR, 8, False, 4),
        (CIFAR, 128, False, 4),
        (CIFAR, 8, True, None),
        (CIFAR, 128, True, 4),
        ((9, 2, (32, 24), 256, 256), 32, True, 4),  # 40×32 images: a grid of 12×8
        ((9, 2, (20, 20), 64, 64), 1, False, None),
        ((9, 2, (20, 20), 64, 64), 128, True, 6),
        ((9, 2, (20, 20), 80, 80), 4, False, None),  # a compressed network
        ((9, 2, (20, 20), 80, 80), 8, False, 6),
        ((9, 2, (20, 20), 8, 8), 128, True, None),  # too few channels
        ((3, 2, (20, 20), 256, 256), 128, False, None),  # too small a kernel to save much
        ((21, 2, (40, 40), 256, 256), 128, False, None),  # too large a kernel
        (MNIST, 0, False, None),
    ],
)
def test_the_choice_of_tile(shape, batch, training, tile):
    assert choose_tile(*shape, batch, "cpu", training) == tile


def test_other_devices_have_ordinary_convolution():
    assert choose_tile(*MNIST, 128, "cuda", False) is None
    assert choose_tile(*MNIST, 128, torch.device("meta"), True) is None


@given(st.integers(1, 20), st.integers(1, 3), st.integers(1, 60), st.integers(1, 60))
def test_the_best_tile_can_be_used(size, stride, h, w):
    tile = best_tile(size, stride, (h, w))
    if tile is None:
        assert min(h, w) < size or -(-size // stride) > 8
    else:
        assert tile in winograd.TILES
        assert transforms(tile, -(-size // stride)).maps.shape[0] <= 10


def layer(stem_channels: int = 8, convolution: str = "winograd") -> PrimaryCapsules:
    primary = PrimaryCapsules(stem_channels, types=4, dim=2, kernel_size=9, stride=2)
    primary.convolution = convolution  # type: ignore[assignment]
    return primary


def direct(primary: PrimaryCapsules, maps: Tensor) -> Tensor:
    other = copy.deepcopy(primary)
    other.convolution = "direct"
    capsules: Tensor = other(maps)
    return capsules


def change_in_place(primary: PrimaryCapsules) -> None:
    primary.conv.weight.mul_(-2)


def change_data(primary: PrimaryCapsules) -> None:
    primary.conv.weight.data.mul_(-2)


def change_one_channel(primary: PrimaryCapsules) -> None:
    primary.conv.weight.data[:, 3] = 1


def change_by_loading(primary: PrimaryCapsules) -> None:
    primary.load_state_dict({name: -value for name, value in primary.state_dict().items()})


def change_by_replacing(primary: PrimaryCapsules) -> None:
    primary.conv.weight = torch.nn.Parameter(-primary.conv.weight.detach())


def change_by_optimizer(primary: PrimaryCapsules) -> None:
    with torch.enable_grad():
        primary(torch.rand(2, 8, 20, 20)).sum().backward()
    torch.optim.SGD(primary.parameters(), lr=10.0).step()


def change_type(primary: PrimaryCapsules) -> None:
    primary.double()


@pytest.mark.parametrize("convolution", ["winograd", "auto"])
@pytest.mark.parametrize(
    "change",
    [
        change_in_place,
        change_data,
        change_one_channel,
        change_by_loading,
        change_by_replacing,
        change_by_optimizer,
        change_type,
    ],
)
@torch.no_grad()
def test_a_cached_kernel_is_never_stale(change, convolution):
    primary, maps = layer(convolution=convolution), torch.rand(3, 8, 20, 20)
    before = primary(maps)
    assert torch.equal(primary(maps), before)
    change(primary)
    maps = maps.to(primary.conv.weight.dtype)
    after = primary(maps)
    torch.testing.assert_close(after, direct(primary, maps), rtol=0, atol=1e-3)
    if change is not change_type:
        assert (after - before).abs().max() > 1e-2


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(1, 9), st.booleans())
def test_a_product_with_patches_is_a_convolution(b, c, k, stride, o, with_bias):
    maps = torch.randn(b, c, k + 4, k + 3, dtype=torch.float64)
    weight = torch.randn(o, c, k, k, dtype=torch.float64)
    bias = torch.randn(o, dtype=torch.float64) if with_bias else None
    actual = im2col_conv2d(maps, im2col_kernel(weight), bias, stride)
    assert actual.permute(0, 2, 3, 1).is_contiguous()
    torch.testing.assert_close(actual, torch.nn.functional.conv2d(maps, weight, bias, stride))


def test_patches_are_made_a_few_images_at_a_time(monkeypatch):
    maps, weight = torch.randn(5, 3, 9, 9), torch.randn(4, 3, 5, 5)
    expected = im2col_conv2d(maps, im2col_kernel(weight), None, 2)
    monkeypatch.setattr("fastcaps.kernels.im2col.PATCH_ELEMENTS", 2 * 9 * 75)
    torch.testing.assert_close(im2col_conv2d(maps, im2col_kernel(weight), None, 2), expected)


@torch.no_grad()
def test_few_images_are_unfolded_and_many_are_not(monkeypatch):
    seen = []

    def counted(maps, *arguments):
        seen.append(len(maps))
        return im2col_conv2d(maps, *arguments)

    monkeypatch.setattr("fastcaps.kernels.convolution.im2col_conv2d", counted)
    primary, maps = layer(convolution="auto"), torch.rand(9, 8, 20, 20)
    whole = primary(maps)
    for count in (1, 8, 0):
        torch.testing.assert_close(primary(maps[:count]), whole[:count])
    primary(maps[:1].double().float()[:, :, :9])
    assert seen == [1, 8, 1]
    for wrong in (maps[:1, :, :8], maps[:1, :7]):  # what can't be convolved has ordinary convolution's message
        with pytest.raises(RuntimeError, match=r"Kernel size can't be greater|to have 8 channels"):
            primary(wrong)
    with torch.enable_grad():
        primary(maps[:1]).sum().backward()
    assert seen == [1, 8, 1]


@pytest.fixture
def transformed(monkeypatch):
    """The kernels that are transformed, in their order."""
    kernels = []

    def counted(kernel, *arguments):
        kernels.append(kernel)
        return transform_kernel(kernel, *arguments)

    monkeypatch.setattr(winograd, "transform_kernel", counted)
    return kernels


@torch.no_grad()
def test_the_kernel_is_transformed_once(transformed):
    primary = layer()
    for batch in (1, 3, 2):
        primary(torch.rand(batch, 8, 20, 20))
    assert len(transformed) == 1


def test_training_releases_the_kernel(transformed):
    primary, maps = layer(), torch.rand(2, 8, 20, 20)
    with torch.no_grad():
        primary(maps)
    primary(maps).sum().backward()
    before = len(transformed)
    with torch.no_grad():
        primary(maps)
    assert len(transformed) == before + 1
    gradients = primary.conv.weight.grad
    primary.conv.weight.grad = None
    primary.convolution = "direct"
    primary(maps).sum().backward()
    torch.testing.assert_close(gradients, primary.conv.weight.grad, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_copies_and_files_hold_no_kernel(transformed):
    primary, maps = layer(), torch.rand(2, 8, 20, 20)
    size = len(pickle.dumps(primary))
    expected = primary(maps)
    assert len(pickle.dumps(primary)) == size
    assert list(primary.state_dict()) == ["conv.weight", "conv.bias"]
    file = io.BytesIO()
    torch.save(primary, file)
    file.seek(0)
    for other in (
        copy.deepcopy(primary),
        pickle.loads(pickle.dumps(primary)),
        torch.load(file, weights_only=False),
    ):
        transformed.clear()
        assert torch.equal(other(maps), expected)
        assert len(transformed) == 1


@torch.no_grad()
def test_threads_dont_share_buffers():
    primary = layer()
    batches = [torch.rand(5, 8, 20, 20) for _ in range(4)]
    expected = [primary(maps) for maps in batches]
    actual: dict[int, list[Tensor]] = {}
    cores = torch.get_num_threads()

    def work(k: int) -> None:
        torch.set_num_threads(cores)  # a new thread would take all, and a product divided otherwise rounds otherwise
        with torch.no_grad():
            actual[k] = [primary(batches[k]) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, one in enumerate(expected):
        assert all(torch.allclose(result, one, rtol=0, atol=1e-6) for result in actual[k])


def test_after_inference_mode_a_layer_still_trains():
    primary, maps = layer(), torch.rand(2, 8, 20, 20)
    with torch.inference_mode():
        expected = primary(maps).clone()
    with torch.no_grad():
        torch.testing.assert_close(primary(maps), expected, rtol=0, atol=0)
    primary(maps).sum().backward()
    assert primary.conv.weight.grad is not None


def test_weights_made_in_inference_mode():
    with torch.inference_mode():
        primary, maps = layer(), torch.rand(2, 8, 20, 20)
        torch.testing.assert_close(primary(maps), direct(primary, maps))


def test_an_unknown_convolution_is_refused():
    with pytest.raises(ValueError, match="convolution is 'fft', expected one of auto, direct, winograd"):
        layer(convolution="fft")(torch.rand(2, 8, 20, 20))


def test_float64_is_exact_unless_asked():
    primary, maps = layer(256, "auto").double(), torch.rand(16, 256, 20, 20, dtype=torch.float64)
    with torch.no_grad():
        assert FastConvolution()(maps, primary.conv) is None
        assert FastConvolution()(maps, primary.conv, always=True) is not None


def test_a_kernel_too_large_is_left_to_ordinary_convolution():
    conv = torch.nn.Conv2d(2, 3, 21, stride=2)
    assert FastConvolution()(torch.rand(2, 2, 40, 40), conv, always=True) is None


def test_anything_but_numbers_has_ordinary_convolution():
    maps = torch.rand(2, 8, 20, 20)
    assert is_plain(maps)
    assert not is_plain(maps.half())
    assert not is_plain(maps.to("meta"))
    with FakeTensorMode() as mode:
        assert not is_plain(mode.from_tensor(maps))
    with torch.autocast("cpu"):
        assert not is_plain(maps)


@pytest.mark.slow
def test_exports_have_two_convolutions():
    config = CapsNetConfig(stem_channels=8, capsule_types=4, lower_dimension=2)
    model = CapsNet(config).eval()
    model.primary.convolution = "winograd"
    program = torch.export.export(model, (torch.rand(2, 1, 28, 28),))
    names = [str(node.target) for node in program.graph.nodes]
    assert sum("conv2d" in name for name in names) == 2


@torch.no_grad()
def test_an_image_alone_and_in_a_batch(transformed):
    model = CapsNet(CapsNetConfig.mnist()).eval()
    images = torch.rand(8, 1, 28, 28)
    together = model(images).lengths
    assert transformed
    alone = model(images[:1]).lengths
    torch.testing.assert_close(alone, together[:1], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("batch", "channels", "stride"), [(1, 1, 1), (3, 3, 2), (0, 1, 1)])
def test_the_stem_as_one_product(batch, channels, stride):
    images = torch.rand(batch, channels, 12, 15, dtype=torch.float64)
    weight, bias = torch.randn(5, channels, 4, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    inputs = [weight.requires_grad_(), bias.requires_grad_()]
    expected, actual = torch.relu(conv2d(images, *inputs, stride)), stem_conv2d(images, *inputs, stride)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    assert actual.permute(2, 3, 0, 1).is_contiguous()
    for one, other in zip(
        torch.autograd.grad(actual.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_the_stem_in_pieces(monkeypatch, rows):
    images, stem = torch.rand(3, 1, 28, 28), Stem(1, 8)
    whole = stem(images)
    whole.square().sum().backward()
    expected = stem.conv.weight.grad
    stem.conv.weight.grad = None
    monkeypatch.setattr("fastcaps.kernels.im2col.CHUNK_ELEMENTS", rows * 20 * 3 * 8)
    in_pieces = stem(images)
    torch.testing.assert_close(in_pieces, whole)
    in_pieces.square().sum().backward()
    torch.testing.assert_close(stem.conv.weight.grad, expected)


def test_images_can_have_a_gradient():
    stem, images = Stem(1, 8), torch.rand(2, 1, 28, 28, requires_grad=True)
    stem(images).sum().backward()
    assert images.grad is not None
    with pytest.raises(ValueError, match="images require a gradient, expected none: use ordinary convolution"):
        stem_conv2d(images, stem.conv.weight, stem.conv.bias, 1)
