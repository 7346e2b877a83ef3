"""Several processes against one: the same weights, the same images, the same matrix."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from tests.ranks import alone, in_ranks
from tests.training.conftest import make_data, small_config

from fastcaps import CapsNet, fold
from fastcaps.analysis.capsules import output_lengths
from fastcaps.analysis.training_pass import collect
from fastcaps.data import DataSet, Split, batches
from fastcaps.distributed import World
from fastcaps.training import Trainer, TrainSettings
from fastcaps.training.accumulation import accumulate_split
from fastcaps.training.accuracy import count_correct

# 49 images in batches of 16: every fourth batch is of one image, which one of two ranks gets.
IMAGES = 49


class Recording:
    """A data set that writes down which of its training images are read."""

    def __init__(self) -> None:
        data = make_data(train=IMAGES)
        self.seen: list[int] = []

        def read(places: torch.Tensor) -> torch.Tensor:
            self.seen += places.tolist()
            return data.train.images(places)

        self.data: DataSet = replace(data, train=Split(data.train.labels, read))


def train(world: World, out: Path, dtype: torch.dtype, **changes) -> None:
    recording = Recording()
    settings = TrainSettings(**({"epochs": 5, "batch_size": 16, "warmup": 5, "learning_rate": 3e-3} | changes))
    torch.manual_seed(world.rank)  # the first rank's weights count
    model = CapsNet(small_config()).to(dtype)
    trainer = Trainer(model, recording.data, settings, out)
    trainer.fit()
    seen = np.array(recording.seen)
    np.save(out / f"seen-{world.rank}.npy", seen)
    safetensors.torch.save_file(dict(model.state_dict()), out / f"weights-{world.rank}.safetensors")
    (out / f"history-{world.rank}.json").write_text(
        json.dumps([metrics.to_dict() for metrics in trainer.progress.history])
    )


def everything(world: World, folder: Path) -> None:
    """What several ranks do in these tests, in one start of the processes."""
    train(world, folder / "exact", torch.float64)
    train(world, folder / "margin", torch.float64, reconstruction_weight=0.0)
    train(world, folder / "fixed", torch.float64, dynamic_epochs=2, validation=10)
    train(
        world,
        folder / "averaged",
        torch.float64,
        averaging=0.9,
        dynamic_epochs=2,
        validation=10,
        reinit=True,
        whiten_stem=True,
    )
    train(world, folder / "routing", torch.float64, routing_only=True, loss="cross_entropy", reconstruction_weight=0.0)
    data = make_data(train=IMAGES)
    torch.manual_seed(0)
    model = CapsNet(small_config())
    for name, memory in (("whole", None), ("parts", 1)):
        for method in ("per_class", "columns", "pooled"):
            words: list[str] = []
            master = accumulate_split(
                model, data.train, data.augmentation.test_view, 16, method=method, world=world, memory=memory,
                announce=words.append,
            )  # fmt: skip
            np.save(folder / f"{name}-{method}-{world.rank}.npy", master.values.numpy())
            assert (master.containers is None) == (name == "parts")
            assert len(words) == (name == "parts")
    view = data.augmentation.test_view
    mine = data.train.subset(torch.arange(IMAGES)[world.share(IMAGES)])
    # Fewer single columns than the first rank has, and more.
    for first in (5, 40):
        training_pass = collect(model, batches(mine, 16, view=view), first, world=world).to_arrays()
        safetensors.numpy.save_file(training_pass, folder / f"collected-{first}-{world.rank}")
    lengths = output_lengths(model, fold(model, master), batches(mine, 16, view=view), world=world)
    safetensors.numpy.save_file(lengths._asdict(), folder / f"lengths-{world.rank}")
    correct = count_correct(model, data.test, data.augmentation.test_view, world=world)
    (folder / f"correct-{world.rank}").write_text(str(correct))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folders = {size: tmp_path_factory.mktemp(f"of-{size}") for size in (1, 2, 4)}
    alone(everything, folders[1])
    for size in (2, 4):
        in_ranks(size, everything, folders[size])
    return folders


def weights(folder, rank=0):
    return safetensors.torch.load_file(folder / f"weights-{rank}.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("run", ["exact", "margin", "fixed", "averaged", "routing"])
@pytest.mark.parametrize("size", [2, 4])
def test_twenty_steps_end_with_the_weights_of_one_process(ran, run, size):
    """In float64, to 1e-9; on all ranks the same to the last bit."""
    expected, actual = weights(ran[1] / run), weights(ran[size] / run)
    assert len(json.loads((ran[1] / run / "history-0.json").read_text())) == 5  # of four steps each
    for name, tensor in expected.items():
        assert (actual[name] - tensor).abs().max() < 1e-9, name
    for rank in range(1, size):
        for name, tensor in weights(ran[size] / run, rank).items():
            assert torch.equal(tensor, actual[name])


@pytest.mark.slow
@pytest.mark.parametrize("run", ["exact", "fixed", "averaged"])
@pytest.mark.parametrize("size", [2, 4])
def test_every_epoch_says_the_same(ran, run, size):
    expected = json.loads((ran[1] / run / "history-0.json").read_text())
    for rank in range(size):
        for row, other in zip(
            expected, json.loads((ran[size] / run / f"history-{rank}.json").read_text()), strict=True
        ):
            assert {**row, "seconds": 0} == pytest.approx({**other, "seconds": 0}, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_image_is_read_once_an_epoch_by_one_rank(ran, size):
    seen = [np.load(ran[size] / "exact" / f"seen-{rank}.npy") for rank in range(size)]
    counts = np.bincount(np.concatenate(seen), minlength=IMAGES)
    assert counts.tolist() == [5] * IMAGES
    assert all(len(one) for one in seen)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("method", ["per_class", "columns", "pooled"])
@pytest.mark.parametrize("held", ["whole", "parts"])
def test_the_matrix_is_the_same_however_sums_are_held(ran, size, method, held):
    expected = np.load(ran[1] / f"whole-{method}-0.npy")
    for rank in range(size):
        actual = np.load(ran[size] / f"{held}-{method}-{rank}.npy")
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["collected-5", "collected-40", "lengths"])
@pytest.mark.parametrize("size", [2, 4])
def test_passes_find_the_same(ran, size, name):
    expected = safetensors.numpy.load_file(ran[1] / f"{name}-0")
    for rank in range(size):
        actual = safetensors.numpy.load_file(ran[size] / f"{name}-{rank}")
        assert set(actual) == set(expected)
        for key, array in expected.items():
            # A coefficient on the edge of a bin may fall on either side.
            np.testing.assert_allclose(actual[key], array, rtol=0, atol=3 if key == "histogram" else 1e-5, err_msg=key)


@pytest.mark.slow
def test_answers_are_counted_once(ran):
    counted = {(ran[size] / f"correct-{rank}").read_text() for size in (1, 2, 4) for rank in range(size)}
    assert len(counted) == 1


@pytest.mark.slow
def test_only_the_first_rank_writes(ran):
    for size in (2, 4):
        assert json.loads((ran[size] / "exact" / "run.json").read_text())["processes"] == size
        names = sorted(path.name for path in (ran[1] / "fixed").iterdir())
        more = [f"{name}-{rank}.{end}" for rank in range(1, size) for name, end in KEPT]
        assert sorted(path.name for path in (ran[size] / "fixed").iterdir()) == sorted([*names, *more])


KEPT = [("seen", "npy"), ("weights", "safetensors"), ("history", "json")]
