import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcaps import CapsNet, CapsNetConfig, FastCapsNet, fold
from fastcaps.compression import Size, multiply_adds, prune

CONFIG = CapsNetConfig.for_images(
    16, 15, 2, classes=3, stem_channels=6, stem_kernel=5, capsule_types=5, lower_dimension=3, primary_kernel=5,
    class_dimension=4, decoder=(5,), class_bias=True,
)  # fmt: skip


def network(seed: int = 0, **changes: Any) -> FastCapsNet:
    torch.manual_seed(seed)
    config = dataclasses.replace(CONFIG, **changes)
    model = CapsNet(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    fast = fold(model, torch.rand(config.lower_capsules, config.classes))
    return fast.double()


def zeroed(fast: FastCapsNet, types: set[int], maps: set[int]) -> FastCapsNet:
    """The whole network with the weights of all other types and maps set to zero, one entry after the other."""
    config, positions = fast.config, fast.config.lower_capsules // fast.config.capsule_types
    with torch.no_grad():
        for position in range(positions):
            for kind in range(config.capsule_types):
                i = position * config.capsule_types + kind
                if kind not in types:
                    fast.routing.weight[i * config.lower_dimension : (i + 1) * config.lower_dimension] = 0
        for k in range(config.stem_channels):
            if k not in maps:
                fast.primary.conv.weight[:, k] = 0
    return fast


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    types=st.sets(st.integers(0, 4), min_size=1),
    maps=st.sets(st.integers(0, 5), min_size=1),
    seed=st.integers(0, 1000),
)
def test_a_pruned_network_answers_as_the_whole_one_with_all_else_set_to_zero(types, maps, seed):
    fast = network(seed)
    small = prune(fast, torch.tensor(list(types)), torch.tensor(list(maps)))
    images = torch.rand(3, 2, 16, 15, dtype=torch.float64)
    output, expected = small(images), zeroed(network(seed), types, maps)(images)
    torch.testing.assert_close(output.capsules, expected.capsules, rtol=0, atol=1e-14)
    assert Size.of(small.config) == Size(len(types), len(maps))
    assert small.routing.weight.shape[0] == small.config.lower_capsules * small.config.lower_dimension


def test_all_types_and_maps_kept_is_the_same_network_and_the_original_is_untouched():
    fast = network(stem_layers=((4, 3, 1),), standardize=True)
    before = {name: tensor.clone() for name, tensor in fast.state_dict().items()}
    same = prune(fast, torch.arange(5).flip(0), torch.arange(6))
    small = prune(fast, torch.tensor([1]), torch.tensor([2, 3]))
    small.routing.weight.zero_()
    for name, tensor in fast.state_dict().items():
        assert torch.equal(before[name], tensor)
        assert torch.equal(same.state_dict()[name], tensor)
    assert not any(parameter.requires_grad for parameter in small.parameters())


def test_a_pruned_network_is_saved_and_loaded_as_any_other(tmp_path):
    small = prune(network().float(), torch.tensor([0, 4]), torch.tensor([1, 5]))
    small.save_pretrained(tmp_path)
    again = FastCapsNet.from_pretrained(tmp_path)
    images = torch.rand(2, 2, 16, 15)
    assert torch.equal(again(images).capsules, small(images).capsules)
    assert (again.config.capsule_types, again.config.stem_channels) == (2, 2)


@pytest.mark.parametrize(
    ("types", "maps", "message"),
    [
        ([], [0], r"capsule types to keep are \[\], expected different whole numbers, at least one"),
        ([0, 0], [0], r"capsule types to keep are \[0, 0\], expected different"),
        ([0], [6], r"stem maps to keep are \[6\], expected numbers from 0 to 5"),
        ([-1], [0], r"capsule types to keep are \[-1\], expected numbers from 0 to 4"),
    ],
)
def test_what_cannot_be_kept_is_refused(types, maps, message):
    with pytest.raises(ValueError, match=message):
        prune(network(), torch.tensor(types, dtype=torch.long), torch.tensor(maps))


def test_multiply_adds_are_those_of_the_layers():
    fast = network(stem_layers=((4, 3, 1),))
    counted = []

    def count(module, inputs, output):
        counted.append(module.weight.numel() * output.shape[2] * output.shape[3])

    for module in fast.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(count)
    fast.primary.convolution = "direct"
    fast.train()(torch.rand(1, 2, 16, 15, dtype=torch.float64).requires_grad_())
    assert multiply_adds(fast.config) == sum(counted) + fast.routing.weight.numel()
