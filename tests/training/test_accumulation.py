"""Sums of many classes: divided by class they give the same matrix in less memory."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ranks import Child
from tests.training.conftest import make_data, small_config

from fastcaps import CapsNet
from fastcaps.distributed import World
from fastcaps.functional import MaxMin
from fastcaps.master import FilterReport, MasterAccumulator, Selection
from fastcaps.master.accumulator import combined
from fastcaps.training import accumulation
from fastcaps.training.accumulation import accumulate_split, available_memory, plan

GB = 10**9


@pytest.mark.slow
@given(
    counts=st.lists(st.integers(0, 20), min_size=2, max_size=30),
    size=st.integers(1, 6),
    fits=st.integers(0, 9),
)
def test_every_class_is_in_one_part_of_one_rank_and_parts_fit(counts, size, fits):
    classes, lower = len(counts), 3
    one = classes * lower * 8
    memory = fits * one
    parts = [plan(np.array(counts), lower, memory, World(rank, size)).parts for rank in range(size)]
    if memory >= 3 * classes * one:
        assert parts == [None] * size
        return
    assert [label for of_rank in parts for part in of_rank or () for label in part] == list(range(classes))
    assert all(of_rank for of_rank in parts)  # perhaps of no classes, but everyone adds something
    assert all(len(part) <= max(1, fits) for of_rank in parts for part in of_rank or ())


def test_ranks_get_about_as_many_images():
    counts = np.array([100, 1, 1, 1, 1, 96])
    parts = [plan(counts, 10, 1, World(rank, 2)).parts for rank in range(2)]
    assert [sum(counts[k] for part in of_rank or () for k in part) for of_rank in parts] == [100, 100]


def test_what_is_announced():
    counts = np.full(1000, 3)
    assert plan(counts, 1152, 28 * GB).message == ""
    assert plan(counts, 1152, GB).message == (
        "the sums of 1000 classes take 9.2 GB, and 1 GB are available: classes are taken 108 at a time, and sums are "
        "not stored"
    )
    assert plan(counts, 1152, GB, World(0, 100)).message.endswith(
        "classes are taken 10 at a time by 100 processes, and sums are not stored"
    )


def test_available_memory_is_half_of_the_least_that_is_free(monkeypatch):
    assert available_memory() >= 2**28
    monkeypatch.setattr(accumulation, "free_bytes", lambda: 2**31)
    assert available_memory() == 2**30
    monkeypatch.setattr(accumulation, "free_bytes", lambda: 7)
    assert available_memory() == 2**28  # a machine that is full now need not stay so


# One class at a time, two, all three but without a copy, and everything.
_CLASS = 3 * small_config().lower_capsules * 8


@pytest.mark.slow
@pytest.mark.parametrize("memory", [1, 2 * _CLASS, 3 * _CLASS, None])
@pytest.mark.parametrize("method", ["per_class", "columns", "pooled"])
def test_parts_give_the_same_matrix(memory, method):
    data = make_data(train=31)
    torch.manual_seed(0)
    model = CapsNet(small_config())
    keep = np.arange(31) % 7 != 0
    filters = (FilterReport("own", {}, "", (11, 10, 10), (9, 9, 8)),)
    seen: list[int] = []
    actual, whole = (
        accumulate_split(
            model,
            data.train,
            data.augmentation.test_view,
            8,
            method=method,
            selection=Selection(keep, filters),
            observe=seen.append,
            provenance={"data": "patterns"},
            memory=limit,
        )
        for limit in (memory, None)
    )
    torch.testing.assert_close(actual.values, whole.values, rtol=0, atol=1e-6)
    assert actual.summary() == whole.summary()
    assert actual.provenance == {"data": "patterns"}
    assert actual.counts.tolist() == np.bincount(data.train.labels[keep], minlength=3).tolist()
    assert (actual.containers is None) == (memory is not None)
    assert whole.containers is not None
    assert sum(seen) == (31 if memory is None else int(keep.sum())) + 31


# 1.15 GB of sums: 1,000 classes of 144 lower capsules.
LOWER, CLASSES = 144, 1000


def coefficients(label: int) -> torch.Tensor:
    """Of the images of a class: one, of every tenth class two."""
    generator = torch.Generator().manual_seed(label)
    return torch.rand(1 + (label % 10 == 0), LOWER, CLASSES, generator=generator)


def accumulate_many() -> None:
    """Print by how many bytes the peak memory of this process grows."""
    before = peak_memory()
    counts = np.array([1 + (label % 10 == 0) for label in range(CLASSES)])
    planned = plan(counts, LOWER, GB // 256)
    assert planned.parts is not None
    assert len(planned.parts) == 334  # of three classes each

    def parts():
        for part in planned.parts or ():
            sums = MasterAccumulator(LOWER, CLASSES, only=part)
            for label in part:
                values = coefficients(label)
                sums.update(values, torch.full((len(values),), label))
            yield sums
            del sums

    master = combined(parts())
    assert master.counts.tolist() == counts.tolist()
    assert master.containers is None
    for label in (0, 1, 499, 500, 999):
        expected = MaxMin()(coefficients(label).double().mean(0))[:, label]
        torch.testing.assert_close(master.values[:, label], expected, rtol=0, atol=1e-12)
    print(peak_memory() - before)


def peak_memory() -> int:
    # Not what getrusage says, which counts the process that started this one.
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system doesn't tell a process its peak")
def test_a_thousand_classes_in_a_fifth_of_their_memory():
    out, _ = Child(accumulate_many).succeed()
    assert int(out) < GB // 5
