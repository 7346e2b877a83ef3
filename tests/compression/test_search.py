import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.compression.test_refitting import CONFIG, data, model

from fastcaps import FastCapsNet, compress, fold
from fastcaps._tensors import read_tensors
from fastcaps.compression import CompressSettings, Observer, RefitSettings, Size, multiply_adds
from fastcaps.data import Split
from fastcaps.nn import CapsNetConfig
from fastcaps.nn.pretrained import weights_hash
from fastcaps.training.accuracy import count_correct

FAST: dict[str, Any] = {"held_out": 30, "batch_size": 32, "refit": RefitSettings(epochs=1)}


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, [(16, 128), (12, 96), (10, 80), (8, 64), (6, 48), (4, 32)]),
        ({"types": 12, "maps": 96}, [(12, 96)]),
        ({"types": 8}, [(8, 64)]),
        ({"maps": 96}, [(12, 96)]),
    ],
)
def test_sizes_to_try(settings, sizes):
    tried = CompressSettings(**settings).sizes(CapsNetConfig.mnist())
    assert [(size.types, size.maps) for size in tried] == sizes


@pytest.mark.parametrize("speedup", [1.5, 4, 15])
def test_a_speedup_is_that_of_the_multiply_adds(speedup):
    config = CapsNetConfig.mnist()
    (size,) = CompressSettings(speedup=speedup).sizes(config)
    reached = multiply_adds(config) / multiply_adds(size.config(config))
    assert speedup <= reached < 1.3 * speedup


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_drop": -1.0}, "max_drop is -1.0, expected points of accuracy from 0 to 100"),
        ({"speedup": 1.0}, "speedup is 1.0, expected a number above 1"),
        ({"speedup": 2.0, "types": 3}, "speedup decides the numbers of types and maps: give one or the other"),
        ({"types": 0}, "types is 0, expected a whole number, at least 1"),
        ({"maps": 1.5}, "maps is 1.5, expected a whole number, at least 1"),
        ({"batch_size": 0}, "batch_size is 0, expected a whole number, at least 1"),
        ({"views": 0}, "views is 0, expected a whole number, at least 1"),
        ({"seed": -1}, "seed is -1, expected a whole number, at least 0"),
        ({"ranking": "size"}, "ranking is 'size', expected one of energy, magnitude, random"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CompressSettings(**settings)


def test_sizes_that_are_not_smaller_are_refused():
    config = CapsNetConfig.mnist()
    with pytest.raises(ValueError, match="types is 40, expected at most 32, as many as the network has"):
        CompressSettings(types=40).sizes(config)
    with pytest.raises(ValueError, match="maps is 300, expected at most 256, as many as the network has"):
        CompressSettings(maps=300).sizes(config)
    with pytest.raises(ValueError, match="the size is 32 types, 256 maps, that of the network itself: give a smaller"):
        CompressSettings(types=32).sizes(config)
    with pytest.raises(ValueError, match=r"speedup is 1e\+06, expected at most \d+ for this network") as error:
        CompressSettings(speedup=1e6).sizes(config)
    (largest,) = re.findall(r"at most (\d+)", str(error.value))
    assert CompressSettings(speedup=float(largest)).sizes(config)


@pytest.mark.slow
def test_the_smallest_size_that_loses_no_more_than_allowed():
    everything = compress(model(), data(), settings=CompressSettings(max_drop=100, **FAST))
    assert [step.size for step in everything.steps] == [Size(2, 3), Size(2, 2), Size(1, 2), Size(1, 1)]
    assert Size.of(everything.network.config) == everything.step.size == Size(1, 1)
    assert len(everything.rankings) == 12
    assert everything.drop == pytest.approx(100 * (everything.reference - everything.step.accuracy))
    nothing = compress(model(), data(), settings=CompressSettings(max_drop=0, **FAST), reference=1.0)
    assert len(nothing.steps) == 1
    assert nothing.step is nothing.steps[0]


@pytest.mark.slow
def test_what_is_left_of_a_folded_network_learns_from_the_folded_network(tmp_path):
    folded, settings = fold(model(), "uniform"), CompressSettings(max_drop=0, **FAST)
    result = compress(folded, data(), settings=settings, folder=tmp_path)
    view = data().augmentation.test_view
    _, held_out = data().validation_split(30, settings.seed)
    assert result.reference == count_correct(folded, held_out, view) / 30
    (cached,) = (tmp_path / "teacher").iterdir()
    metadata, _ = read_tensors(cached)
    assert json.loads(metadata["key"])["weights"] == weights_hash(folded)


@pytest.mark.slow
def test_a_search_goes_on_from_its_folder(tmp_path):
    settings = CompressSettings(max_drop=100, **FAST)
    begun: list[Size] = []
    first = compress(model(), data(), "uniform", settings, folder=tmp_path)
    (tmp_path / "1-types-1-maps" / "step.json").unlink()
    observer = Observer(begin=lambda size, accuracy, images: begun.append(size))
    again = compress(model(), data(), "uniform", settings, folder=tmp_path, observer=observer)
    assert begun == [Size(1, 1)]
    assert weights_hash(again.network) == weights_hash(first.network)
    assert (again.steps, again.rankings) == (first.steps, first.rankings)
    stored = json.loads((tmp_path / "2-types-3-maps" / "step.json").read_bytes())
    assert stored["accuracy"] == first.steps[0].accuracy
    assert Size.of(FastCapsNet.from_pretrained(tmp_path / "2-types-3-maps").config) == Size(2, 3)


def test_held_out_images_are_those_given_and_test_images_are_not_looked_at():
    images = data()
    seen: list[int] = []

    def read(indices: torch.Tensor) -> torch.Tensor:
        seen.append(len(indices))
        return images.test.images(indices)

    watched = Split(images.test.labels, read)
    split = images.train.subset(torch.arange(100)), images.train.subset(torch.arange(100, 150))
    result = compress(
        model(), replace(images, test=watched), settings=CompressSettings(types=2, **FAST), split=split, reference=0.5
    )
    assert result.reference == 0.5
    assert (result.step.accuracy * 50) % 1 == pytest.approx(0)
    assert not seen


@pytest.mark.parametrize(
    ("held_out", "images", "expected"), [(None, 60_000, 5000), (None, 1437, 0.2), (5000, 1437, 5000), (0.3, 100, 0.3)]
)
def test_of_few_images_a_fifth_is_held_out_unless_told_otherwise(held_out, images, expected):
    assert CompressSettings(held_out=held_out).held_out_of(images) == expected


@pytest.mark.slow
def test_a_folder_of_another_search_is_refused(tmp_path):
    settings = CompressSettings(max_drop=100, types=2, maps=3, **FAST)
    compress(model(), data(), "uniform", settings, folder=tmp_path)
    torch.manual_seed(1)
    other = model()
    torch.nn.init.normal_(other.routing.weight)
    for arguments, different in (
        ((other, data(), "uniform", settings), r"model was [0-9a-f]{64}, now [0-9a-f]{64}; folded was"),
        ((model(), data(), "uniform", replace(settings, seed=1)), "settings.seed was 0, now 1"),
        ((model(), data(), torch.rand(CONFIG.lower_capsules, CONFIG.classes), settings), "folded was"),
    ):
        with pytest.raises(ValueError, match=rf"is of another search \({different}"):
            compress(*arguments, folder=tmp_path)
    compress(model(), data(), "uniform", replace(settings, max_drop=1), folder=tmp_path)
