"""Batch concurrent requests: a bounded queue, a short wait for more items, one worker thread per network."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Generic, NamedTuple, TypeVar, final

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFullError(Exception):
    """The queue is full.

    Attributes:
        retry_after: seconds after which the queue probably has room.
    """

    def __init__(self, waiting: int, queue: int, retry_after: int) -> None:
        super().__init__(f"{waiting} images are waiting, the queue holds {queue}: try again in {retry_after} s")
        self.retry_after = retry_after


class Timed(NamedTuple, Generic[Result]):
    """A result with its timing: milliseconds in the queue, milliseconds of its batch, items in the batch."""

    result: Result
    queued_ms: float
    batch_ms: float
    batch: int


class _Waiting(NamedTuple):
    item: Any
    since: float
    future: "asyncio.Future[Any]"


@final
class Batcher(Generic[Item, Result]):
    """Process items in batches, in a separate thread.

    An item whose function raises fails alone: a batch that fails is run again item by item.
    """

    def __init__(
        self,
        function: Callable[[list[Item]], Sequence[Result]],
        *,
        max_batch: int,
        max_wait_ms: float,
        queue: int,
        observe: Callable[[int, float], None] = lambda items, seconds: None,
    ) -> None:
        """Make a batcher; call `start` inside of a running event loop.

        Args:
            function: returns one result per item.
            max_batch: items per call.
            max_wait_ms: how long the first item of a batch waits for others while the worker is idle.
            queue: maximum number of items admitted at a time.
            observe: called with the number of items and the seconds of each call.
        """
        self._function, self._observe = function, observe
        self._max_batch, self._max_wait, self._queue = max_batch, max_wait_ms / 1000, queue
        self._pending: deque[_Waiting] = deque()
        self._admitted = 0
        self._seconds_per_item = 0.01
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="fastcaps-batch")
        self._arrived, self._full = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def admitted(self) -> int:
        """Number of items that are accepted and not answered yet."""
        return self._admitted

    def start(self) -> None:
        """Start processing."""
        self._task = asyncio.get_running_loop().create_task(self._collect())

    async def close(self) -> None:
        """Stop; the callers of `submit` must have got their results before."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._worker.shutdown()

    @contextmanager
    def admit(self, items: int) -> Iterator[None]:
        """Reserve places in the queue; raise `QueueFullError` if there are too few."""
        if self._admitted + items > self._queue:
            wait = max(1, math.ceil(self._admitted * self._seconds_per_item))
            raise QueueFullError(self._admitted, self._queue, wait)
        self._admitted += items
        try:
            yield
        finally:
            self._admitted -= items

    async def submit(self, items: Sequence[Item]) -> list[Timed[Result] | Exception]:
        """Return the result of each item, or the error that it raised."""
        loop = asyncio.get_running_loop()
        now = time.perf_counter()
        futures = [loop.create_future() for _ in items]
        self._pending.extend(_Waiting(item, now, future) for item, future in zip(items, futures, strict=True))
        self._arrived.set()
        if len(self._pending) >= self._max_batch:
            self._full.set()
        try:
            return [await future for future in futures]
        finally:
            # The caller has gone: skip what has not started.
            for future in futures:
                future.cancel()

    async def _collect(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if len(self._pending) < self._max_batch and self._max_wait:
                self._full.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._max_wait):
                        await self._full.wait()
            batch: list[_Waiting] = []
            while self._pending and len(batch) < self._max_batch:
                waiting = self._pending.popleft()
                if not waiting.future.done():
                    batch.append(waiting)
            if not self._pending:
                self._arrived.clear()
            if batch:
                begun = time.perf_counter()
                results = await loop.run_in_executor(self._worker, self._run, [waiting.item for waiting in batch])
                self._deliver(batch, results, begun)

    def _deliver(self, batch: list[_Waiting], results: list[Result | Exception], begun: float) -> None:
        seconds = time.perf_counter() - begun
        self._seconds_per_item += 0.1 * (seconds / len(batch) - self._seconds_per_item)
        self._observe(len(batch), seconds)
        for waiting, result in zip(batch, results, strict=True):
            if not waiting.future.done():
                failed = isinstance(result, Exception)
                queued = 1000 * (begun - waiting.since)
                waiting.future.set_result(result if failed else Timed(result, queued, 1000 * seconds, len(batch)))

    def _run(self, items: list[Item]) -> list[Result | Exception]:
        try:
            return list(self._function(items))
        except Exception as error:  # noqa: BLE001  an error of one item must not affect the others
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self._run([item])]
