import numpy as np
import pytest
import torch
from tests.compression.test_pruning import network

from fastcaps.compression import Moments, Ranking, measure_moments, rank_maps, rank_types


def images(count: int = 7) -> torch.Tensor:
    return torch.rand(count, 2, 16, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def labeled(*batches: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(batch, torch.zeros(len(batch), dtype=torch.int64)) for batch in batches]


def test_energy_of_a_type_is_the_mean_square_of_what_it_adds_to_the_sums():
    fast, inputs = network(), images()
    energy = rank_types(fast, "energy", measure_moments(fast, labeled(inputs[:3], inputs[3:])))
    config = fast.config
    lower = fast.lower_capsules(inputs).numpy()  # (b, i, d)
    weight = fast.routing.weight.numpy().reshape(config.lower_capsules, config.lower_dimension, -1)
    expected = np.zeros(config.capsule_types)
    for i in range(config.lower_capsules):
        votes = lower[:, i] @ weight[i]  # (b, j·e)
        expected[i % config.capsule_types] += (votes**2).sum(1).mean()
    np.testing.assert_allclose(energy.numpy(), expected, rtol=1e-12)


def test_energy_of_a_map_is_its_share_of_the_kept_types():
    fast, inputs = network(), images()
    moments, kept = measure_moments(fast, labeled(inputs)), torch.tensor([3, 1])
    scores = rank_maps(fast, "energy", kept, moments)
    maps, dim = fast.stem(inputs), fast.config.lower_dimension
    conv, expected = fast.primary.conv, np.zeros(fast.config.stem_channels)
    energy = rank_types(fast, "energy", moments)
    for kind in kept.tolist():
        channels = slice(kind * dim, (kind + 1) * dim)
        alone = []
        for k in range(fast.config.stem_channels):
            kernel = conv.weight[channels, k : k + 1]
            part = torch.nn.functional.conv2d(maps[:, k : k + 1], kernel, stride=conv.stride)
            alone.append(float(part.square().sum(1).mean()))
        expected += float(energy[kind]) * np.array(alone) / sum(alone)
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-12)


def test_what_adds_nothing_comes_last():
    fast = network()
    with torch.no_grad():
        fast.routing.weight.unflatten(0, (-1, 5, 3))[:, 2] = 0
        fast.primary.conv.weight[:, 4] = 0
    moments = measure_moments(fast, labeled(images()))
    cases: list[tuple[Ranking, Moments | None]] = [("energy", moments), ("magnitude", None)]
    for by, given in cases:
        assert int(rank_types(fast, by, given).argmin()) == 2  # capsule types, unlike maps behind ReLU, all add a bit
        scores = rank_maps(fast, by, torch.tensor([0, 1]), given)
        assert scores[4] == scores.min() == 0


def test_a_random_order_follows_from_its_seed():
    fast = network()
    first, again, other = (rank_types(fast, "random", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(rank_maps(fast, "random", torch.tensor([0]))) == 6


def test_rankings_are_refused_without_what_they_need():
    fast = network()
    with pytest.raises(ValueError, match="by is 'size', expected one of energy, magnitude, random"):
        rank_types(fast, "size")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ranking by energy needs moments"):
        rank_types(fast, "energy")
    with pytest.raises(ValueError, match="ranking by magnitude takes no moments"):
        rank_maps(fast, "magnitude", torch.tensor([0]), measure_moments(fast, labeled(images())))
    with pytest.raises(ValueError, match="there are no images to rank capsule types by"):
        measure_moments(fast, [])
