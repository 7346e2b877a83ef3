"""Distributed runs, started by ``torchrun`` or any launcher that sets the same environment variables.

A function uses a `World` to do its share of the work and to combine the results of all ranks. `SINGLE`, the world of
one process, has no process group.

There are two kinds of waiting. Within a training step all ranks do the same at the same time, and a rank that doesn't
answer for 50 seconds is lost. Everywhere else ranks may be minutes apart, because one reads slower or writes a file:
there they first wait at the launcher's key-value store, and only then exchange data. A thread of each rank writes
heartbeats to the store; a rank without one for 50 seconds is lost.

This module imports torch only when there is more than one process.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from fastcaps._renamed import renamed_attributes, warn_renamed

if TYPE_CHECKING:
    import torch

__all__ = [
    "init_distributed",
    "World",
    "SINGLE",
    "current",
    "launched",
    "WorkerLostError",
    "EndedElsewhereError",
    "JoiningError",
]

T = TypeVar("T")
Scalar = TypeVar("Scalar", bound=np.generic)

# Environment variables of the init method env:// of torch.distributed.
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Seconds to wait: for an answer within a step or a heartbeat, between heartbeats, for all ranks to join, and for ranks
# that may be far apart.
_TIMEOUT, _BEAT, _JOINING, PATIENCE = 50, 2, 600, 7200


class EndedElsewhereError(Exception):
    """Another rank has ended the job and printed why.

    Attributes:
        code: its exit code.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"another process ended the job with exit code {code}")
        self.code = code


class JoiningError(OSError):
    """This rank could not join the others."""


class WorkerLostError(RuntimeError):
    """Another rank sends no heartbeat."""


def launched() -> tuple[int, int]:
    """Return rank and world size from the environment variables of a launcher; 0 and 1 without a launcher."""
    if not all(os.environ.get(name) for name in _VARIABLES):
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@final
@renamed_attributes(
    alone="is_single",
    first="is_main",
    meet="barrier",
    first_does="on_main",
    after_first="main_first",
    add_up="all_reduce",
    add_up_now="all_reduce_now",
    concatenated="all_gather",
    least="all_min",
    says="is_first_to_say",
)
class World:
    """The processes that work on one job, seen from one of them.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
        local_rank: number of this process on its machine.
        local_size: number of processes on this machine.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, local_rank: int = 0, local_size: int = 1, store: Any = None
    ) -> None:
        """Make a world of processes that share a ``torch.distributed.Store``; see `init_distributed`."""
        self.rank, self.size, self.local_rank, self.local_size = rank, size, local_rank, local_size
        self._store = store
        self._barriers = 0
        self._passes = 0

    @property
    def is_single(self) -> bool:
        """Whether there is only one process."""
        return self.size == 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Return this rank's part of ``count`` items; parts are in the order of ranks, sizes differ by at most 1."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def barrier(self, patience: float | None = None) -> None:
        """Wait until all ranks are here, by default for up to two hours."""
        if self.is_single:
            return
        self._barriers += 1
        key = f"barrier/{self._barriers}"
        self._store.add(key, 1)
        self._wait(lambda: self._store.add(key, 0) >= self.size, "the others", patience)

    def on_main(self, work: Callable[[], None]) -> None:
        """Call a function on the main rank, such as one that writes a file, while the others wait."""
        if self.is_main:
            work()
        self.barrier()

    def main_first(self, work: Callable[[], T]) -> T:
        """Call a function on all ranks, the main rank first, such as a download that leaves files for the others."""
        if self.is_main:
            result = work()
        self.barrier()
        return result if self.is_main else work()

    def all_reduce(self, *tensors: "torch.Tensor") -> None:
        """Replace each tensor by its sum over all ranks, which may arrive minutes apart."""
        self.barrier()
        self.all_reduce_now(*tensors)

    def all_reduce_now(self, *tensors: "torch.Tensor") -> None:
        """Replace each tensor by its sum over all ranks, which must call this at the same time."""
        if not self.is_single:
            import torch.distributed

            for tensor in tensors:
                torch.distributed.all_reduce(tensor)

    def broadcast(self, *tensors: "torch.Tensor") -> None:
        """Replace each tensor by that of the main rank; ranks may arrive minutes apart."""
        if self.is_single:
            return
        import torch.distributed

        self.barrier()
        for tensor in tensors:
            torch.distributed.broadcast(tensor, src=0)

    def all_gather(self, array: NDArray[Scalar]) -> NDArray[Scalar]:
        """Return the arrays ``(n …)`` of all ranks, concatenated by rank; lengths may differ."""
        if self.is_single:
            return array
        import torch
        import torch.distributed as dist

        self.barrier()
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(array)]))
        parts = []
        for rank, length in enumerate(lengths):
            part = np.empty((int(length), *array.shape[1:]), array.dtype)
            if rank == self.rank:
                part[:] = array
            if part.size:
                # As bytes, which arrive unchanged for any type.
                dist.broadcast(torch.from_numpy(part.reshape(-1).view(np.uint8)), src=rank)
            parts.append(part)
        return np.concatenate(parts)

    def all_min(self, number: int) -> int:
        """Return the smallest number of all ranks."""
        return int(self.all_gather(np.array([number])).min())

    def check_same(self, **values: Any) -> None:
        """Raise if ranks have different values that must be the same, such as hashes of weights and images."""
        if self.is_single:
            return
        self._barriers += 1
        key = f"same/{self._barriers}"
        if self.is_main:
            self._store.set(key, json.dumps(values))
        self._wait(lambda: self._store.check([key]), "process 0")
        expected = json.loads(self._store.get(key))
        mine = json.loads(json.dumps(values))
        for name in expected | mine:
            if mine.get(name) != expected.get(name):
                raise ValueError(
                    f"the processes of this job differ: {name} is {mine.get(name)} in process {self.rank} and "
                    f"{expected.get(name)} in process 0: start all with the same command, files and versions"
                )
        self.barrier()

    def counting(self, observe: Callable[[int], None]) -> Callable[[int], None]:
        """Return an observer that adds up the progress of all ranks and calls ``observe`` on the main rank with it."""
        if self.is_single:
            return observe
        self._passes += 1
        key = f"progress/{self._passes}"
        reported = 0

        def count(done: int) -> None:
            nonlocal reported
            total = self._store.add(key, done)
            if self.is_main:
                observe(total - reported)
                reported = total

        return count

    def end(self, code: int) -> None:
        """Tell the others that this rank ends the job, so that they don't report it as lost."""
        if not self.is_single:
            with suppress(RuntimeError):
                self._store.set("ended", str(code))

    def is_first_to_say(self, words: str) -> bool:
        """Return whether this rank is the first to print a message that other ranks have, too."""
        if self.is_single:
            return True
        with suppress(RuntimeError):
            return bool(self._store.add(f"said/{hashlib.sha256(words.encode()).hexdigest()}", 1) == 1)
        return True

    def lost_another(self, error: Exception) -> bool:
        """Return whether an error means that another rank is lost.

        Raises:
            EndedElsewhereError: when that rank has printed why.
        """
        if self.is_single or not isinstance(error, RuntimeError):
            return False
        from torch.distributed import DistError

        # Gloo raises RuntimeErrors that are only recognizable by the names of its source files.
        lost = isinstance(error, DistError | WorkerLostError) or "gloo" in str(error) or "NCCL" in str(error)
        if lost:
            self._raise_if_ended()
        return lost

    def _wait(self, is_done: Callable[[], bool], for_whom: str, patience: float | None = None) -> None:
        patience = PATIENCE if patience is None else patience
        start = checked = time.monotonic()
        pause, seen = 0.0005, dict.fromkeys(range(self.size), (0, start))
        while not is_done():
            self._raise_if_ended()
            now = time.monotonic()
            if now - start > patience:
                raise TimeoutError(
                    f"process {self.rank} of {self.size} has waited {patience} seconds for {for_whom}: "
                    "check whether they still run, and start again"
                )
            if now - checked > _BEAT:
                checked = now
                self._check_heartbeats(seen, now)
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def beat(self) -> None:
        """Write a heartbeat to the store."""
        self._store.add(f"alive/{self.rank}", 1)

    def _check_heartbeats(self, seen: dict[int, tuple[int, float]], now: float) -> None:
        """Raise if a rank has no new heartbeat; ``seen`` has the number of heartbeats per rank, and since when."""
        for rank, (before, since) in seen.items():
            beats = self._store.add(f"alive/{rank}", 0)
            if beats != before:
                seen[rank] = beats, now
            elif beats and now - since > _TIMEOUT:
                raise WorkerLostError(f"process {rank} of {self.size} has sent no heartbeat for {_TIMEOUT} seconds")

    def _raise_if_ended(self) -> None:
        with suppress(RuntimeError):
            if self._store.check(["ended"]):
                raise EndedElsewhereError(int(self._store.get("ended")))


SINGLE = World()
_current = SINGLE


def current() -> World:
    """Return the world that `init_distributed` has made in this process, or `SINGLE`."""
    return _current


@contextmanager
def init_distributed() -> Iterator[World]:
    """Join the processes that a launcher started, within the block; `SINGLE` when there is only one.

    Ranks communicate by gloo on CPUs and by nccl on GPUs.
    """
    global _current
    rank, size = launched()
    if size == 1:
        yield SINGLE
        return
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=_JOINING)))
        # A restarted job must not read what the previous one has written.
        store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        local_rank, local_size = (int(os.environ.get(name, value)) for name, value in _LOCAL.items())
        world = World(rank, size, local_rank, local_size, PrefixStore("fastcaps", store))
        world.barrier(_JOINING)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore("group", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=_TIMEOUT),
        )
    except (RuntimeError, OSError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise JoiningError(
            f"process {rank} of {size} could not join the others at {where} ({reason}): check whether all were "
            "started, and whether that address can be reached from here"
        ) from error
    _current = world
    try:
        with _heartbeats(world):
            yield world
        dist.destroy_process_group()
    finally:
        _current = SINGLE


@contextmanager
def _heartbeats(world: World) -> Iterator[None]:
    """Write heartbeats in a thread, within the block."""
    over = threading.Event()

    def beat() -> None:
        with suppress(RuntimeError):  # the store is closed: no rank reads it any more
            world.beat()
            while not over.wait(_BEAT):
                world.beat()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(1)


_LOCAL = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def __getattr__(name: str) -> Any:
    """Return the object of an old name, with a warning; for one release."""
    renamed = {"ALONE": "SINGLE", "joined": "init_distributed", "LostError": "WorkerLostError"}
    if name not in renamed:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(f"{__name__}.{name}", renamed[name])
    return globals()[renamed[name]]
