"""Classify with an exported file: NumPy and ONNX Runtime, no PyTorch."""

import json
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fastcaps._extras import require
from fastcaps._machine import processors
from fastcaps.nn.config import CapsNetConfig
from fastcaps.runtime import file

FORMAT = 1
# Images worked through at a time: beyond this nothing gets faster, and memory doesn't grow with the batch.
_PIECE = 32
_FIELDS = ("format", "config", "routing", "precision", "batch", "background")


class Output(NamedTuple):
    """Class capsules ``(b j e)`` and their lengths ``(b j)``."""

    capsules: NDArray[np.float32]
    lengths: NDArray[np.float32]


def load(path: str | Path, threads: int | None = None) -> "Predictor":
    """The network in a file that ``fastcaps export`` made, warmed up.

    Args:
        path: of the file.
        threads: that one call uses at most; as many as this process has processors when None.
    """
    require("fastcaps.runtime", "onnxruntime")
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist: make it with fastcaps export") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder, expected a file that fastcaps export made") from None
    return Predictor(content, path, threads)


@final
class Predictor:
    """A network that answers; any number of threads may ask it at the same time.

    An image's answer doesn't depend on the rest of its batch. Batches of any size are worked through in pieces.

    Attributes:
        config: of the network: sizes, class names, and how an image becomes its input.
        routing: ``"fast"`` or ``"dynamic"``.
        precision: ``"float32"`` or ``"int8"``.
        background: brightness of the edge of the training images, between 0 and 1; None where it means nothing.
        about: everything the file says of itself: also provenance, and the accuracy that was measured.
    """

    def __init__(self, content: bytes, path: str | Path = "the model", threads: int | None = None) -> None:
        import onnxruntime

        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}, expected at least 1")
        file.checked(content, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or processors()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            # What ONNX Runtime raises has no common class.
            raise ValueError(f"{path} can't be run by ONNX Runtime {onnxruntime.__version__}: {error}") from error
        about = json.loads(self._session.get_modelmeta().custom_metadata_map.get(file.ABOUT, "{}"))
        missing = [name for name in _FIELDS if name not in about]
        if about.get("format") == FORMAT and missing:
            raise ValueError(f"{path} does not say its {', '.join(missing)}: make it again with fastcaps export")
        if about.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {about.get('format')}, this version of fastcaps reads {FORMAT}: "
                "export it with this version, or use the one that wrote it"
            )
        self.about: dict[str, Any] = about
        self.config = CapsNetConfig.from_dict(about["config"])
        self.routing: str = about["routing"]
        self.precision: str = about["precision"]
        self.background: float | None = about["background"]
        self._batch: int | None = about["batch"]
        self(np.zeros((1, self.config.channels, self.config.height, self.config.width), np.uint8))

    def __call__(self, images: NDArray[np.uint8]) -> Output:
        """Classify images ``(b c h w)``, bytes of the network's input size."""
        images = self._checked(images)
        step = self._batch or _PIECE
        pieces = [self._run(images[start : start + step]) for start in range(0, len(images), step)]
        j, e = self.config.classes, self.config.class_dimension
        if not pieces:
            return Output(np.empty((0, j, e), np.float32), np.empty((0, j), np.float32))
        return Output(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))

    def predict(self, images: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The class of the longest capsule ``(b)`` of images ``(b c h w)``."""
        classes: NDArray[np.int64] = self(images).lengths.argmax(1)
        return classes

    def _run(self, images: NDArray[np.uint8]) -> tuple[NDArray[np.float32], ...]:
        count = len(images)
        if self._batch is not None and count < self._batch:
            images = np.concatenate([images, np.zeros((self._batch - count, *images.shape[1:]), np.uint8)])
        found = self._session.run(["capsules", "lengths"], {"images": np.ascontiguousarray(images)})
        return tuple(part[:count] for part in found)

    def _checked(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        c, h, w = self.config.channels, self.config.height, self.config.width
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
            given = images.dtype if isinstance(images, np.ndarray) else type(images).__name__
            raise ValueError(
                f"images are {given}, expected a NumPy array of uint8 between 0 and 255: "
                "multiply what is between 0 and 1 by 255, round, and convert"
            )
        if images.ndim != 4 or images.shape[1:] != (c, h, w):
            raise ValueError(
                f"images have shape {images.shape}, expected (batch, {c}, {h}, {w}): "
                "fastcaps.runtime.pictures brings image files to it"
            )
        return images
