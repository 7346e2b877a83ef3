"""What the API answers, as types: they are written as JSON, and the OpenAPI document describes them."""

import base64
from typing import Annotated, Any

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from numpy.typing import NDArray

from fastcaps.serving.batching import Timed


class Pixels(Struct, frozen=True):
    """An image: bytes (channels, height, width) in base64."""

    channels: int
    height: int
    width: int
    pixels: Annotated[str, Meta(extra_json_schema={"format": "byte"})]
    inverted: Annotated[bool | UnsetType, Meta(description="Whether light and dark were swapped.")] = UNSET

    @classmethod
    def of(cls, image: NDArray[np.uint8], inverted: bool | UnsetType = UNSET) -> "Pixels":
        """Return an image ``(c h w)`` for an answer."""
        content = base64.b64encode(np.ascontiguousarray(image).tobytes()).decode()
        channels, height, width = image.shape
        return cls(channels, height, width, content, inverted)


class BatchTimes(Struct, frozen=True):
    """Milliseconds in the queue; milliseconds of the network for the whole batch; images in that batch."""

    queued: float
    network: float
    batch: int


class Answer(Struct, frozen=True, rename={"label": "class"}):
    """Prediction for one picture."""

    label: Annotated[int, Meta(description="Index of the longest capsule.")]
    name: Annotated[str, Meta(description="Name of that class.")]
    length: Annotated[float, Meta(description="Length of that capsule.")]
    lengths: Annotated[list[float], Meta(description="Length of each class capsule.")]
    milliseconds: BatchTimes
    runner_up: Annotated[str | UnsetType, Meta(description="Name of the second class.")] = UNSET
    runner_up_length: float | UnsetType = UNSET

    @classmethod
    def of(cls, timed: Timed[NDArray[np.float32]], class_names: tuple[str, ...]) -> "Answer":
        """Return the answer for lengths ``(j)``."""
        lengths: list[float] = timed.result.tolist()
        first, *others = (int(k) for k in (-timed.result).argsort(kind="stable")[:2])
        times = BatchTimes(round(timed.queued_ms, 3), round(timed.batch_ms, 3), timed.batch)
        second = (class_names[others[0]], lengths[others[0]]) if others else ()
        return cls(first, class_names[first], lengths[first], lengths, times, *second)


class PictureAnswer(Struct, frozen=True):
    """The answers for one picture, or why there is none."""

    image: Annotated[str, Meta(description="Name of the picture.")]
    inverted: Annotated[bool | UnsetType, Meta(description="Whether light and dark were swapped.")] = UNSET
    input: Pixels | UnsetType = UNSET
    fast: Answer | UnsetType = UNSET
    dynamic: Answer | UnsetType = UNSET
    none: Annotated[Answer | UnsetType, Meta(description="Of a network without routing.")] = UNSET
    error: Annotated[str | UnsetType, Meta(description="Why this picture has no answer.")] = UNSET


class Prediction(Struct, frozen=True):
    """The answer to a request for predictions."""

    model: str
    images: Annotated[list[PictureAnswer], Meta(description="One entry per picture, in their order.")]
    milliseconds: Annotated[float, Meta(description="Of the whole request, after its last byte.")]


class EngineAnswer(Struct, frozen=True):
    """Lengths of all class capsules from one engine."""

    lengths: list[float]
    milliseconds: float
    engine: str


class Winner(Struct, frozen=True, rename={"label": "class"}):
    """The longest class capsule."""

    label: int
    name: str
    capsule: list[float]


class Coefficients(Struct, frozen=True):
    """Coefficients of the winning class by position: in each iteration, and those of the master matrix."""

    iterations: list[list[list[float]]]
    master: list[list[float]]
    bounds: tuple[float, float]


class Explored(Struct, frozen=True):
    """Everything that the page shows of one picture."""

    input: Pixels
    dynamic: EngineAnswer
    winner: Winner
    reconstruction: Pixels
    coefficients: Coefficients
    fast: EngineAnswer | UnsetType = UNSET


class Example(Struct, frozen=True):
    """A test image: the name of its class, and a PNG in base64."""

    label: str
    png: Annotated[str, Meta(extra_json_schema={"format": "byte"})]


class Examples(Struct, frozen=True):
    """Test images."""

    examples: list[Example]


class InputSize(Struct, frozen=True):
    """The size of a network's input."""

    channels: int
    height: int
    width: int


class Model(Struct, frozen=True):
    """What a client has to know to use a network."""

    name: str
    routing: Annotated[str, Meta(description="That it answers with unless asked otherwise.")]
    routings: list[str]
    engine: str
    input: InputSize
    classes: Annotated[list[str], Meta(description="In the order of the lengths.")]
    explore: Annotated[bool, Meta(description="Whether its PyTorch network is on this server, too.")]
    card: Annotated[dict[str, Any] | UnsetType, Meta(description="Everything known of it.")] = UNSET


class Models(Struct, frozen=True):
    """The networks of a server."""

    models: list[Model]


class Refusal(Struct, frozen=True):
    """Why there is no answer, and what to do."""

    error: str


class Capsule(Struct, frozen=True, rename={"label": "class"}):
    """A class capsule to draw."""

    label: int
    capsule: list[float]
