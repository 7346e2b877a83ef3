"""The work behind the API: read bodies within limits, prepare pictures, answer images in batches."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, cast, final

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect, Request

from fastcaps._images import no_bombs
from fastcaps._machine import processors
from fastcaps.runtime.pictures import Invert
from fastcaps.runtime.session import check_finite
from fastcaps.serving.answers import (
    Answer,
    Coefficients,
    EngineAnswer,
    Examples,
    Explored,
    PictureAnswer,
    Pixels,
    Prediction,
    Winner,
)
from fastcaps.serving.batching import Batcher, QueueFullError, Timed
from fastcaps.serving.examples import examples
from fastcaps.serving.metrics import Metrics
from fastcaps.serving.models import ServedModel
from fastcaps.serving.pictures import Picture, Prepared, prepare, read_pictures
from fastcaps.serving.settings import BODIES_IN_MEMORY, DISCARDED, RefusedError, Settings

if TYPE_CHECKING:
    from fastcaps.serving.network import TrainedNetwork

P = ParamSpec("P")
R = TypeVar("R")
Images = NDArray[np.uint8]
Lengths = NDArray[np.float32]
_CLOSE = {"connection": "close"}
# Requests of the page, one image at a time; a few may wait.
_EXPLORING = "explore"
_EXPLORE_QUEUE = 16


class PredictOptions(NamedTuple):
    """Options of a request: the routings to answer with, whether to invert, whether to return the input."""

    routings: tuple[str, ...]
    invert: Invert
    pixels: bool


@final
class Service:
    """Networks that answer requests.

    Attributes:
        models: by name.
        settings: limits.
        metrics: counters.
        ready: whether the networks are loaded.
        stopping: whether new requests should go elsewhere; they are still answered.
    """

    def __init__(self, models: Mapping[str, ServedModel], settings: Settings) -> None:
        """Make a service; it answers inside of `running`."""
        self.models, self.settings, self.metrics = dict(models), settings, Metrics()
        self.ready = self.stopping = False
        self._bodies = 0
        self._pool = ThreadPoolExecutor(max(2, processors()), thread_name_prefix="fastcaps-decode")
        self._batchers: dict[tuple[str, str], Batcher[Any, Any]] = {}
        self._examples: dict[str, Examples] = {}
        self._networks: dict[str, Future[TrainedNetwork]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests until left."""
        with no_bombs():
            async with AsyncExitStack() as stack:
                for model in self.models.values():
                    for routing in model.routings:
                        await self._start(stack, model.name, routing, _batched(model.lengths(routing)))
                    if self.settings.page and model.folder is not None:
                        await self._start(stack, model.name, _EXPLORING, _each)
                        with suppress(RefusedError):
                            self._load(model)
                self.ready = True
                try:
                    yield
                finally:
                    self.ready = False
        self._pool.shutdown()

    async def _start(self, stack: AsyncExitStack, name: str, routing: str, function: Callable[[Any], Any]) -> None:
        settings, metrics = self.settings, self.metrics
        alone = routing == _EXPLORING

        def observe(images: int, seconds: float) -> None:
            metrics.batch_images.labels(name, routing).observe(images)
            metrics.batch_seconds.labels(name, routing).observe(seconds)

        batcher: Batcher[Any, Any] = Batcher(
            function,
            max_batch=1 if alone else settings.max_batch,
            max_wait_ms=0 if alone else settings.max_wait_ms,
            queue=_EXPLORE_QUEUE if alone else settings.queue,
            observe=observe,
        )
        metrics.queue.labels(name, routing).set_function(lambda: batcher.admitted)
        self._batchers[name, routing] = batcher
        batcher.start()
        stack.push_async_callback(batcher.close)

    def model(self, name: str) -> ServedModel:
        """Return a network; raise `RefusedError` if there is none of that name."""
        if name not in self.models:
            raise RefusedError(404, f"there is no such network, expected one of {', '.join(self.models)}")
        return self.models[name]

    def _load(self, model: ServedModel) -> "TrainedNetwork":
        """Return a network in PyTorch, which takes seconds to load; raise `RefusedError` while it is loading."""
        if model.name not in self._networks:
            self._networks[model.name] = self._pool.submit(lambda: model.network)
        loading = self._networks[model.name]
        if not loading.done():
            raise RefusedError(
                503, f"the PyTorch network of {model.name} is being loaded: try again in 2 s", {"retry-after": "2"}
            )
        return loading.result()

    async def body(self, request: Request) -> bytes:
        """Read a body within the limits of size and time."""
        limit, received = self.settings.max_body, 0
        declared = request.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > DISCARDED * limit:
            raise _too_large(limit)
        content = bytearray()
        try:
            async with asyncio.timeout(self.settings.body_timeout):
                async for chunk in request.stream():
                    received += len(chunk)
                    # Read on if it is too large: most clients read the answer only after they have sent everything.
                    if received > limit:
                        continue
                    self._bodies += len(chunk)
                    content += chunk
                    if self._bodies > BODIES_IN_MEMORY * limit:
                        raise RefusedError(503, "too many bytes arrive at once: try again in 1 s", {"retry-after": "1"})
            if received > limit:
                raise _too_large(limit)
        except TimeoutError:
            seconds = self.settings.body_timeout
            raise RefusedError(408, f"the body did not arrive within {seconds:g} s: send it faster", _CLOSE) from None
        except ClientDisconnect:
            raise RefusedError(400, "the body ended before its length", _CLOSE) from None
        finally:
            self._bodies -= len(content)
        return bytes(content)

    async def pictures(self, request: Request) -> list[Picture]:
        """Read the pictures of a request."""
        body = await self.body(request)
        content_type = request.headers.get("content-type", "")
        if content_type.startswith(("multipart/", "application/json")):
            return await self._in_pool(read_pictures, body, content_type, self.settings)
        return read_pictures(body, content_type, self.settings)

    async def predict(self, model: ServedModel, pictures: list[Picture], options: PredictOptions) -> Prediction:
        """Answer a request for predictions; a picture that can't be read gets a sentence in place of an answer."""
        begun = time.perf_counter()
        if set(options.routings) - {model.routing}:
            self._load(model)
        batchers = {routing: self._batchers[model.name, routing] for routing in options.routings}
        async with self._deadline(), AsyncExitStack() as stack:
            for batcher in batchers.values():
                stack.enter_context(batcher.admit(len(pictures)))
            prepared = await self._prepared(model, pictures, options.invert)
            images = [picture.pixels for picture in prepared if isinstance(picture, Prepared)]
            if not images:
                raise RefusedError(422, _first_sentence(prepared))
            answers = {routing: await batcher.submit(images) for routing, batcher in batchers.items()}
        entries, place = [], 0
        for picture, item in zip(pictures, prepared, strict=True):
            if isinstance(item, str):
                entries.append(PictureAnswer(picture.name, error=item))
                continue
            entry = PictureAnswer(picture.name, item.inverted, Pixels.of(item.pixels) if options.pixels else UNSET)
            timed = {routing: _succeeded(results[place]) for routing, results in answers.items()}
            by_routing = {routing: Answer.of(result, model.class_names) for routing, result in timed.items()}
            entries.append(msgspec.structs.replace(entry, **by_routing))
            place += 1
        return Prediction(model.name, entries, round(1000 * (time.perf_counter() - begun), 3))

    async def explore(self, model: ServedModel, pictures: list[Picture], invert: Invert) -> Explored:
        """Return everything the page shows of one picture."""
        batcher, network = self._batchers[model.name, _EXPLORING], self._load(model)
        async with self._deadline():
            with batcher.admit(1):
                [picture] = await self._prepared(model, pictures[:1], invert)
                if isinstance(picture, str):
                    raise RefusedError(422, picture)
                [result] = await batcher.submit([partial(_explored, model, network, picture)])
        return cast(Explored, _succeeded(result).result)

    async def reconstruct(self, model: ServedModel, label: int, capsule: Lengths) -> Pixels:
        """Return the reconstruction of a class capsule."""
        batcher, network = self._batchers[model.name, _EXPLORING], self._load(model)
        async with self._deadline():
            with batcher.admit(1):
                [result] = await batcher.submit([lambda: Pixels.of(network.reconstruct(label, capsule))])
        return cast(Pixels, _succeeded(result).result)

    async def examples(self, model: ServedModel) -> Examples:
        """Return a few test images for the page."""
        if model.name not in self._examples:
            self._examples[model.name] = Examples(await self._in_pool(examples, model))
        return self._examples[model.name]

    async def _prepared(self, model: ServedModel, pictures: list[Picture], invert: Invert) -> list[Prepared | str]:
        limit = self.settings.max_pixels
        return await self._in_pool(prepare, pictures, model.image, model.background, invert, limit)

    async def _in_pool(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        """Turn errors while a request waits into an answer."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                yield
        except TimeoutError:
            seconds = self.settings.timeout
            raise RefusedError(
                504, f"there was no answer within {seconds:g} s: try again", {"retry-after": "1"}
            ) from None
        except QueueFullError as error:
            raise RefusedError(503, str(error), {"retry-after": str(error.retry_after)}) from None


def _too_large(limit: int) -> RefusedError:
    return RefusedError(413, f"the request has more than {limit:,} bytes: send fewer or smaller pictures", _CLOSE)


def _batched(lengths: Callable[[Images], Lengths]) -> Callable[[list[Images]], list[Lengths]]:
    return lambda images: list(lengths(np.stack(images)))


def _each(functions: list[Callable[[], Any]]) -> list[Any]:
    return [function() for function in functions]


def _explored(model: ServedModel, network: "TrainedNetwork", picture: Prepared) -> Explored:
    if model.predictor is not None:
        begun = time.perf_counter()
        output = model.predictor(picture.pixels[None])
        capsules, lengths, milliseconds = output.capsules[0], output.lengths[0], 1000 * (time.perf_counter() - begun)
    else:
        capsules, lengths, milliseconds = network.run(picture.pixels, model.routing)
    check_finite(lengths[None])
    label = int(lengths.argmax())
    routing = network.explore(picture.pixels, label)
    dynamic = routing.dynamic
    return Explored(
        Pixels.of(picture.pixels, picture.inverted),
        EngineAnswer(dynamic.lengths.tolist(), dynamic.milliseconds, "PyTorch, float32"),
        Winner(label, model.class_names[label], capsules[label].tolist()),
        Pixels.of(network.reconstruct(label, capsules[label])),
        Coefficients(routing.iterations.tolist(), routing.master.tolist(), routing.bounds),
        EngineAnswer(lengths.tolist(), milliseconds, model.engine) if model.routing == "fast" else UNSET,
    )


def _succeeded(result: Timed[R] | Exception) -> Timed[R]:
    if isinstance(result, Exception):
        raise result
    return result


def _first_sentence(prepared: list[Prepared | str]) -> str:
    return next(item for item in prepared if isinstance(item, str))
