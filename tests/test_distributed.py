"""Worlds of one, and of four real processes."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.ranks import alone, in_ranks

from fastcaps import distributed
from fastcaps._files import write_atomically
from fastcaps.distributed import SINGLE, EndedElsewhereError, JoiningError, World, init_distributed, launched
from fastcaps.master import MasterAccumulator

SIZE = 4
LOWER, CLASSES, IMAGES = 6, 5, 37


def generated() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    coefficients = torch.rand(IMAGES, LOWER, CLASSES, generator=generator, dtype=torch.float64)
    return coefficients, torch.arange(IMAGES) % CLASSES


def accumulated(world: World, normalization, method) -> torch.Tensor:
    coefficients, labels = generated()
    mine = world.share(IMAGES)
    sums = MasterAccumulator(LOWER, CLASSES, normalization).update(coefficients[mine], labels[mine])
    return sums.all_reduce(world).compute(method=method).values


def fetched(path: Path) -> bool:
    """Whether it was not there yet; the first who comes brings it."""
    if path.exists():
        return False
    path.touch()
    return True


def exercise(world: World, folder: Path) -> None:
    """Everything a world does, seen from each rank, in one start of the processes."""
    rank = world.rank
    values: dict[str, object] = {"place": [rank, world.size, world.local_rank, world.local_size, world.is_main]}
    values["current"] = distributed.current() is world
    integers = np.arange(rank, dtype=np.int64)
    values["concatenated"] = world.all_gather(integers).tolist()
    values["booleans"] = world.all_gather(np.full((1, 2), rank % 2 == 0)).tolist()
    values["nothing"] = world.all_gather(np.empty((0, 3), np.float16)).shape
    values["least"] = world.all_min(10 - rank)
    one, other = torch.tensor([rank, 1]), torch.tensor(0.5, dtype=torch.float64)
    world.all_reduce(one, other)
    values["sums"] = [one.tolist(), other.item()]
    shared = folder / "shared"
    world.on_main(lambda: write_atomically({shared: b"written"}))
    values["read"] = shared.read_text()
    values["fetched"] = world.main_first(lambda: fetched(folder / "download"))
    told: list[int] = []
    count = world.counting(told.append)
    count(rank + 1)
    world.barrier()
    count(0)
    values["told"] = sum(told)
    values["said"] = [world.is_first_to_say("hello"), world.is_first_to_say(f"from {rank}")]
    world.check_same(weights="abc", images=["x", 1])
    try:
        world.check_same(weights="abc", images=f"of {rank}")
    except ValueError as error:
        values["differs"] = str(error)
        world.barrier()  # where those wait that found nothing wrong
    else:
        values["differs"] = None
    for normalization in ("max_min", "softmax"):
        for method in ("per_class", "columns", "pooled"):
            values[f"{normalization} {method}"] = accumulated(world, normalization, method).tolist()
    values["lost"] = [
        world.lost_another(ValueError("x")),
        world.lost_another(RuntimeError("shapes differ")),
        world.lost_another(RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer")),
    ]
    # Up to here all are there.
    world.all_reduce_now(torch.zeros(1))
    if rank == 1:
        world.end(7)
        values["ended"] = None
    else:
        try:
            world.barrier()
        except EndedElsewhereError as error:
            values["ended"] = [error.code, str(error)]
        try:
            world.lost_another(RuntimeError("gloo: Broken pipe"))
        except EndedElsewhereError as error:
            values["ended too"] = error.code
    (folder / f"{rank}.json").write_text(json.dumps(values))
    while len(list(folder.glob("*.json"))) < world.size:  # a meeting is refused now that one has ended
        time.sleep(0.05)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    in_ranks(SIZE, exercise, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(SIZE)]


@pytest.mark.slow
def test_ranks_know_their_place_and_share_what_they_have(results):
    for rank, one in enumerate(results):
        assert one["place"] == [rank, SIZE, rank, SIZE, rank == 0]
        assert one["current"]
        assert one["concatenated"] == [0, 0, 1, 0, 1, 2]
        assert one["booleans"] == [[True, True], [False, False]] * 2
        assert one["nothing"] == [0, 3]
        assert one["least"] == 7
        assert one["sums"] == [[6, 4], 2.0]


@pytest.mark.slow
def test_the_first_writes_counts_and_speaks(results):
    for rank, one in enumerate(results):
        assert one["read"] == "written"
        assert one["fetched"] == (rank == 0)
        assert one["told"] == (10 if rank == 0 else 0)
        assert one["said"][1]
    assert sum(one["said"][0] for one in results) == 1


@pytest.mark.slow
def test_what_must_be_the_same_is_compared(results):
    assert results[0]["differs"] is None
    for rank in range(1, SIZE):
        assert results[rank]["differs"] == (
            f"the processes of this job differ: images is of {rank} in process {rank} and of 0 in process 0: "
            "start all with the same command, files and versions"
        )


@pytest.mark.slow
def test_one_that_has_ended_is_not_missed(results):
    for rank, one in enumerate(results):
        assert one["lost"] == [False, False, True]
        if rank != 1:
            assert one["ended"] == [7, "another process ended the job with exit code 7"]
            assert one["ended too"] == 7


def one_dies(world: World, how: str, folder: Path) -> None:
    """One process is gone from one moment to the next, and there is no launcher to tell."""
    world.beat()
    world.barrier()
    if world.rank == 1:
        os._exit(9)
    distributed._TIMEOUT = 4
    try:
        if how == "far apart":
            world.barrier()
        else:
            world.all_reduce_now(torch.zeros(1))
    except RuntimeError as error:
        words = str(error) if world.lost_another(error) else "taken for something else"
        (folder / how).write_text(words)
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words"),
    [("far apart", "process 1 of 2 has sent no heartbeat for 4 seconds"), ("in a step", "gloo")],
)
def test_one_that_dies_is_missed(tmp_path, how, words):
    in_ranks(2, one_dies, how, tmp_path, codes=[0, 9])
    assert words in (tmp_path / how).read_text()


def test_who_is_alone_has_not_joined(monkeypatch):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "99999")):
        monkeypatch.setenv(name, value)
    message = r"process 1 of 2 could not join the others at 127.0.0.1:99999 \(.*\): check whether all were started"
    with pytest.raises(JoiningError, match=message), init_distributed():
        pass
    assert distributed.current() is SINGLE


def two_sums(world: World, folder: Path) -> None:
    for normalization in ("max_min", "softmax"):
        np.save(folder / f"{normalization}-{world.rank}.npy", accumulated(world, normalization, "per_class"))


@pytest.mark.slow
@pytest.mark.parametrize("normalization", ["max_min", "softmax"])
@pytest.mark.parametrize("method", ["per_class", "columns", "pooled"])
def test_four_processes_accumulate_the_same_as_one(results, normalization, method):
    expected = accumulated(SINGLE, normalization, method)
    for one in results:
        torch.testing.assert_close(
            torch.tensor(one[f"{normalization} {method}"], dtype=torch.float64), expected, rtol=0, atol=1e-12
        )


@pytest.mark.slow
def test_two_processes_accumulate_the_same_as_one(tmp_path):
    in_ranks(2, two_sums, tmp_path)
    for normalization in ("max_min", "softmax"):
        expected = accumulated(SINGLE, normalization, "per_class").numpy()
        for rank in range(2):
            np.testing.assert_allclose(np.load(tmp_path / f"{normalization}-{rank}.npy"), expected, rtol=0, atol=1e-12)


def test_alone_nothing_is_different(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert launched() == (0, 1)
    with init_distributed() as world:
        assert world is SINGLE
        assert not torch.distributed.is_initialized()
    assert (world.is_single, world.is_main, world.share(7)) == (True, True, slice(0, 7))
    array, tensor = np.arange(3), torch.arange(3)
    assert world.all_gather(array) is array
    world.all_reduce(tensor)
    world.all_reduce_now(tensor)
    world.barrier()
    world.check_same(anything=1)
    world.end(1)
    assert tensor.tolist() == [0, 1, 2]
    assert world.all_min(5) == 5
    assert world.main_first(lambda: 8) == 8
    assert world.counting(print) is print
    assert world.is_first_to_say("x")
    assert not world.lost_another(RuntimeError("gloo"))
    alone(lambda world: None)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_shares_follow_each_other_and_differ_by_one(count, size):
    shares = [list(range(count))[World(rank, size).share(count)] for rank in range(size)]
    assert [k for share in shares for k in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_what_a_launcher_says(monkeypatch):
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert launched() == (0, 1)  # a variable of that name alone is nobody's launcher
    monkeypatch.setenv("MASTER_PORT", "1")
    assert launched() == (3, 4)


def test_patience_ends(monkeypatch):
    class Nobody:
        def add(self, key, count):
            return 1

        def check(self, keys):
            return False

    monkeypatch.setattr(distributed, "PATIENCE", 0)
    message = "process 1 of 2 has waited 0 seconds for the others: check whether they still run, and start again"
    with pytest.raises(TimeoutError, match=message):
        World(1, 2, store=Nobody()).barrier()


def test_a_store_that_is_gone_silences_nobody():
    class Gone:
        def __getattr__(self, name):
            raise RuntimeError("Broken pipe")

    world = World(1, 2, store=Gone())
    world.end(1)
    assert world.is_first_to_say("something")
    assert world.lost_another(RuntimeError("gloo: Broken pipe"))
