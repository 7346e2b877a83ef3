import threading
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastcaps.data import Augmentation, Split, batches, steps_per_epoch

SHIFT = Augmentation(shift=2, flip=True, brightness=0.2)


def numbered(count, side=6):
    """Images whose every pixel, and label, is the number of the image."""
    images = torch.arange(count).to(torch.uint8)[:, None, None, None].expand(count, 1, side, side)
    return Split(torch.arange(count), images.__getitem__)


def random_split(count=37):
    images = torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8)
    return Split(torch.arange(count) % 5, images.__getitem__)


@given(
    count=st.integers(0, 40),
    batch_size=st.integers(1, 50),
    world=st.integers(1, 7),
    seed=st.none() | st.integers(0, 3),
    epoch=st.integers(0, 3),
)
def test_ranks_divide_every_step_without_overlap_or_loss(count, batch_size, world, seed, epoch):
    split = numbered(count)
    view = SHIFT.test_view

    def labels(**ranks):
        return [y.tolist() for _, y in batches(split, batch_size, view=view, shuffle_seed=seed, epoch=epoch, **ranks)]

    whole = labels()
    assert sorted(chain(*whole)) == list(range(count))
    assert [len(step) for step in whole[:-1]] == [batch_size] * (len(whole) - 1)
    parts = [labels(rank=rank, world=world) for rank in range(world)]
    for part in parts:
        assert len(part) == len(whole) == steps_per_epoch(split, batch_size)
    for step, together in enumerate(whole):
        shares = [part[step] for part in parts]
        assert list(chain(*shares)) == together
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    if seed is None:
        assert list(chain(*whole)) == list(range(count))


def test_the_order_follows_seed_and_epoch():
    split = numbered(50)

    def order(seed, epoch):
        return [n for _, y in batches(split, 7, view=SHIFT, shuffle_seed=seed, epoch=epoch) for n in y.tolist()]

    assert order(1, 2) == order(1, 2)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_labels_stay_with_their_images():
    for images, labels in batches(numbered(30), 8, view=SHIFT.test_view, shuffle_seed=4):
        assert torch.equal((images[:, 0, 0, 0] * 255).round().long(), labels)


def test_a_run_resumes_with_the_batches_it_would_have_had():
    split = random_split()
    whole = list(batches(split, 8, view=SHIFT, shuffle_seed=3, epoch=2))
    for start in range(6):
        rest = list(batches(split, 8, view=SHIFT, shuffle_seed=3, epoch=2, start=start))
        assert len(rest) == 5 - start
        for (images, labels), (same_images, same_labels) in zip(rest, whole[start:], strict=True):
            assert torch.equal(images, same_images)
            assert torch.equal(labels, same_labels)


@pytest.mark.parametrize("view", [SHIFT, replace(SHIFT, rotation=20.0, zoom=0.2)])
def test_an_image_is_changed_in_the_same_way_on_one_rank_as_on_many(view):
    split = random_split()
    parts = [batches(split, 8, view=view, shuffle_seed=3, rank=rank, world=3) for rank in range(3)]
    for (images, labels), *shares in zip(batches(split, 8, view=view, shuffle_seed=3), *parts, strict=True):
        assert torch.equal(torch.cat([share for share, _ in shares]), images)
        assert torch.equal(torch.cat([share for _, share in shares]), labels)


def test_each_epoch_changes_images_anew():
    split = random_split(1)
    views = [next(batches(split, 1, view=SHIFT, shuffle_seed=0, epoch=epoch))[0] for epoch in range(5)]
    assert len({view.numpy().tobytes() for view in views}) == 5


def test_what_comes_out():
    images, labels = next(batches(random_split(), 8, view=SHIFT, shuffle_seed=0))
    assert (images.dtype, images.shape, labels.dtype, labels.shape) == (
        torch.float32,
        (8, 1, 8, 8),
        torch.int64,
        (8,),
    )
    assert 0 <= images.min() <= images.max() <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, r"batch_size is 0, expected at least 1"),
        (
            {"view": SHIFT, "shuffle_seed": None},
            r"shuffle_seed is None, expected a number for an augmentation: give one, or view=",
        ),
        ({"shuffle_seed": -1}, r"shuffle_seed is -1, expected at least 0"),
        ({"epoch": -2}, r"epoch is -2, expected at least 0"),
        ({"start": 6}, r"start is 6, expected 0 to 5, the steps of an epoch"),
        ({"rank": 2, "world": 2}, r"rank is 2 of 2, expected 0 to 1"),
    ],
)
def test_wrong_use_is_refused_at_once(options, message):
    options = {"batch_size": 8, "view": SHIFT.test_view, "shuffle_seed": 0} | options
    with pytest.raises(ValueError, match=message):
        batches(random_split(), **options)


def test_what_comes_from_disk_is_read_one_step_ahead():
    images = torch.arange(10, dtype=torch.uint8)[:, None, None, None].expand(10, 1, 6, 6)
    asked: list[list[int]] = []
    threads = set()

    def read(places):
        threads.add(threading.current_thread())
        asked.append(places.tolist())
        return images[places]

    split = Split(torch.arange(10), read, streams=True)
    everything: list[dict[str, Any]] = [
        {"view": SHIFT, "shuffle_seed": 4},
        {"view": SHIFT.test_view},
        {"view": SHIFT.test_view, "start": 2},
    ]
    for options in everything:
        asked.clear()
        steps = steps_per_epoch(split, 3) - options.get("start", 0)
        plain = list(batches(Split(split.labels, images.__getitem__), 3, **options))
        for number, (one, other) in enumerate(zip(batches(split, 3, **options), plain, strict=True)):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])
            assert number + 1 <= len(asked) <= min(number + 2, steps)
        assert len(asked) == steps
    assert threading.current_thread() not in threads
    assert split.subset(torch.arange(3)).streams


def test_an_error_in_the_background_comes_where_its_batch_would():
    def read(places):
        if 7 in places:
            raise ValueError("image 7 can't be decoded")
        return torch.zeros(len(places), 1, 6, 6, dtype=torch.uint8)

    iterator = batches(Split(torch.arange(10), read, streams=True), 3, view=SHIFT.test_view)
    next(iterator)
    next(iterator)
    with pytest.raises(ValueError, match="image 7 can't be decoded"):
        next(iterator)
