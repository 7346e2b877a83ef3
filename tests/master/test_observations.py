"""What filters decide by: the network's own lengths, the columns of the wanted iteration, and no file left behind."""

import gc
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fastcaps.master import Observations
from fastcaps.nn import DynamicRouting, MaxMin


def batches(count=10, size=4):
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.rand(count, 1, 10, 10, generator=generator), torch.arange(count) % 3
    return list(zip(images.split(size), labels.split(size), strict=True))


def collected(observations):
    """All columns at once."""
    return np.concatenate([columns for _, columns in observations.columns()])


@pytest.mark.parametrize("iteration", [2, 3, "final", None])
def test_columns_are_the_iterations_lengths_the_networks(model, iteration):
    done: list[int] = []
    observations = Observations.collect(model, batches(), iteration=iteration, observe=done.append)
    images, labels = (torch.cat(parts) for parts in zip(*batches(), strict=True))
    with torch.no_grad():
        number = {"final": 4, None: 3}.get(iteration, iteration)
        coefficients = model(images, with_coefficients=True, iterations=number).coefficients
        lengths = model(images).lengths
    expected = coefficients[torch.arange(10), :, labels]
    assert observations.iteration == number
    assert observations.labels.tolist() == labels.tolist()
    assert observations.counts.tolist() == [4, 3, 3]
    assert done == [4, 4, 2]
    np.testing.assert_allclose(observations.lengths, lengths, atol=1e-6)
    assert observations.correct.tolist() == (lengths.argmax(1) == labels).tolist()
    # Half precision rounds numbers up to 1 by at most 2⁻¹².
    np.testing.assert_allclose(collected(observations), expected, atol=2**-12 + 1e-5)
    sums = [expected[labels == k].double().sum(0) for k in range(3)]
    np.testing.assert_allclose(observations.class_sums(), torch.stack(sums), atol=4 * (2**-12 + 1e-5))


def test_a_subset_has_its_images_columns(model):
    whole = Observations.collect(model, batches())
    first = np.array([1, 0, 1, 1, 0, 1, 1, 1, 0, 0], bool)
    part = whole.subset(first).subset(np.array([0, 1, 1, 0, 1, 1], bool))
    places = [2, 3, 6, 7]
    assert part.labels.tolist() == [2, 0, 0, 1]
    assert (part.lengths == whole.lengths[places]).all()
    assert (collected(part) == collected(whole)[places]).all()
    numbers, columns = next(part.columns(part.of_class(0)))
    assert numbers.tolist() == [1, 2]
    assert (columns == collected(whole)[[3, 6]]).all()


def test_columns_come_in_bounded_chunks(monkeypatch):
    monkeypatch.setattr("fastcaps.master.observations.CHUNK_BYTES", 3 * 4 * 5)  # three columns of five
    columns = np.arange(40, dtype=np.float16).reshape(8, 5)
    observations = Observations(np.zeros(8, np.int64), np.zeros((8, 2), np.float32), columns)
    chunks = list(observations.columns())
    assert [len(chunk) for _, chunk in chunks] == [3, 3, 2]
    assert all(chunk.dtype == np.float32 for _, chunk in chunks)
    assert (np.concatenate([chunk for _, chunk in chunks]) == columns).all()


def test_columns_that_are_not_there(model):
    with pytest.raises(
        ValueError, match="ground-truth columns are all equal at iteration 1: take a later iteration, or"
    ):
        Observations.collect(model, batches(), iteration=1).columns()
    with pytest.raises(ValueError, match="ground-truth columns were not kept: collect them with columns=True"):
        Observations.collect(model, batches(), columns=False).class_sums()


def test_refusals(model):
    with pytest.raises(ValueError, match="no images were given: expected at least one of each class"):
        Observations.collect(model, [])
    with pytest.raises(ValueError, match="iteration is 5, expected 1 to 3, or 'final'"):
        Observations.collect(model, [], iteration=5)
    with pytest.raises(ValueError, match="label 3 is outside the classes 0 … 2"):
        Observations.collect(model, [(torch.rand(1, 1, 10, 10), torch.tensor([3]))])
    broken = batches()
    broken[1][0][2] = torch.nan
    for columns in (True, False):
        with pytest.raises(
            ValueError, match=r"capsules of image 6 are not numbers that half precision holds \(at most"
        ):
            Observations.collect(model, broken, columns=columns)
    model.routing.routing = DynamicRouting(3, MaxMin(0, 1e6))
    with pytest.raises(ValueError, match=r"coefficients or capsules of image 0 are not numbers .* \(at most 65504\)"):
        Observations.collect(model, batches())


def mapped(folder: Path) -> int:
    """Maps of this process that take space in a folder."""
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


def open_files(folder: Path) -> int:
    links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(str(folder) in str(link) for link in links)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_temporary_file_has_no_name_and_goes(model, tmp_path, error):
    def images():
        for batch in batches():
            yield batch
            assert open_files(tmp_path) == 1
            assert not list(tmp_path.iterdir())
        if error:
            raise error

    if error:
        with pytest.raises(error):
            Observations.collect(model, images(), folder=tmp_path)
    else:
        observations = Observations.collect(model, images(), folder=tmp_path)
        assert mapped(tmp_path) == 1
        assert not list(tmp_path.iterdir())
        assert len(collected(observations)) == 10
        del observations
    gc.collect()
    assert (mapped(tmp_path), open_files(tmp_path)) == (0, 0)
    assert not list(tmp_path.iterdir())
