"""Items become batches; each is answered for itself."""

import asyncio
import threading

import pytest

from fastcaps.serving.batching import Batcher, QueueFullError


def run(function, use, **options):
    """Use a batcher around a function inside of an event loop."""

    async def main():
        batcher = Batcher(function, **({"max_batch": 4, "max_wait_ms": 1, "queue": 100} | options))
        batcher.start()
        try:
            return await use(batcher)
        finally:
            await batcher.close()

    return asyncio.run(main())


def test_every_item_gets_its_own_result_in_batches_of_limited_size():
    sizes = []

    def squares(items):
        sizes.append(len(items))
        return [item**2 for item in items]

    async def use(batcher):
        return await asyncio.gather(*(batcher.submit([k, -k]) for k in range(20)))

    results = run(squares, use)
    assert [[timed.result for timed in pair] for pair in results] == [[k**2, k**2] for k in range(20)]
    assert sizes == [4] * 10
    assert {timed.batch for pair in results for timed in pair} == {4}


def test_what_arrives_while_the_worker_is_busy_is_one_batch():
    begun, proceed, sizes = threading.Event(), threading.Event(), []

    def function(items):
        sizes.append(len(items))
        begun.set()
        proceed.wait()
        return items

    async def use(batcher):
        first = asyncio.create_task(batcher.submit(["first"]))
        await asyncio.to_thread(begun.wait)
        others = [asyncio.create_task(batcher.submit([k])) for k in range(3)]
        await asyncio.sleep(0)
        proceed.set()
        await asyncio.gather(first, *others)

    run(function, use, max_wait_ms=0)
    assert sizes == [1, 3]


def test_an_item_that_raises_fails_alone():
    def inverses(items):
        return [1 / item for item in items]

    async def use(batcher):
        return await batcher.submit([1, 0, 2])

    first, second, third = run(inverses, use)
    assert (first.result, third.result) == (1, 0.5)
    assert isinstance(second, ZeroDivisionError)


def test_a_full_queue_refuses_and_says_when_to_come_back():
    async def use(batcher):
        with batcher.admit(3):
            assert batcher.admitted == 3
            with (
                pytest.raises(
                    QueueFullError, match="3 images are waiting, the queue holds 4: try again in 1 s"
                ) as full,
                batcher.admit(2),
            ):
                pass
            assert full.value.retry_after == 1
        with batcher.admit(4):
            return batcher.admitted

    assert run(list, use, queue=4) == 4


def test_what_nobody_waits_for_is_not_computed():
    begun, proceed, seen = threading.Event(), threading.Event(), []

    def function(items):
        seen.extend(items)
        begun.set()
        proceed.wait()
        return items

    async def use(batcher):
        first = asyncio.create_task(batcher.submit(["first"]))
        await asyncio.to_thread(begun.wait)
        given_up = asyncio.create_task(batcher.submit(["given up"]))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        last = asyncio.create_task(batcher.submit(["last"]))
        proceed.set()
        await asyncio.gather(first, last)

    run(function, use)
    assert seen == ["first", "last"]
