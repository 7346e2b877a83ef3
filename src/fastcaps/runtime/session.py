"""Classify with an exported file: NumPy and ONNX Runtime, no PyTorch."""

from pathlib import Path
from typing import Any, Literal, NamedTuple, final, overload

import numpy as np
from numpy.typing import NDArray

from fastcaps._extras import require
from fastcaps._inputs import Invert, network_batch
from fastcaps._machine import processors
from fastcaps.nn.config import CapsNetConfig
from fastcaps.runtime import file, structure
from fastcaps.runtime.metadata import CapsNetMetadata, ModuleMetadata, read_metadata

# Images per call of ONNX Runtime: more are not faster, and memory doesn't grow with the batch.
CHUNK_IMAGES = 32
# Maximum bytes of an ONNX file.
_LARGEST = 2**31 - 1


def _metadata(content: bytes, path: str | Path) -> CapsNetMetadata | ModuleMetadata:
    """Return the metadata of a file."""
    try:
        texts = list(structure.metadata(memoryview(content), file.ABOUT))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: its metadata are no text: {error}") from None
    if len(texts) > 1:
        raise ValueError(f"{path} is damaged: it has its metadata {len(texts)} times")
    return read_metadata(texts[0] if texts else "{}", str(path))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def check_finite(scores: NDArray[np.float32]) -> None:
    """Raise ValueError unless the scores ``(b …)`` of all images are finite."""
    if not np.isfinite(scores.sum()):  # cheap; a sum may overflow where no number does
        finite = np.isfinite(scores.reshape(len(scores), -1)).all(1)
        if not finite.all():
            raise ValueError(
                f"image {int(finite.argmin())} of the batch gives scores that are not finite: expected finite inputs "
                "and weights"
            )


class ImageInput(NamedTuple):
    """The size of images that a network takes, for `fastcaps.runtime.pictures`."""

    height: int
    width: int
    channels: int
    resize: tuple[int, int] | None = None


class Output(NamedTuple):
    """Class capsules ``(b j e)`` and their lengths ``(b j)``."""

    capsules: NDArray[np.float32]
    lengths: NDArray[np.float32]


def load(path: str | Path, threads: int | None = None) -> "Predictor":
    """Return the network in an exported file, warmed up.

    Args:
        path: path of the file.
        threads: maximum number of threads per call; the number of processors of this process when None.
    """
    require("fastcaps.runtime", "onnxruntime")
    try:
        with Path(path).open("rb") as opened:
            content = opened.read(_LARGEST + 1)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist, expected a file from fastcaps.export") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder, expected a file from fastcaps.export") from None
    if len(content) > _LARGEST:
        raise ValueError(f"{path} has more than {_LARGEST:,} bytes, expected a file from fastcaps.export")
    return Predictor(content, path, threads)


@final
class Predictor:
    """A network for inference; any number of threads may call it at the same time.

    The result of an image doesn't depend on the rest of its batch. Batches of any size are processed in pieces.

    Attributes:
        class_names: names of the classes, in the order of the lengths.
        routing: ``"fast"``, ``"dynamic"``, or ``"none"`` for a module without capsules.
        precision: ``"float32"`` or ``"int8"``.
        input_shape: shape of one input, ``(c, h, w)`` for images.
        image: how a picture becomes an input; None if inputs are not images.
        background: brightness of the edge of the training images, between 0 and 1; None if it does not apply.
        config: configuration of a `CapsNet`; None for another module.
        about: all metadata of the file, with provenance and measured accuracy.
    """

    def __init__(self, content: bytes, path: str | Path = "the model", threads: int | None = None) -> None:
        import onnxruntime

        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}, expected at least 1")
        file.checked(content, path)
        metadata = self.about = _metadata(content, path)
        config = metadata.config if isinstance(metadata, CapsNetMetadata) and metadata.has_own_graph else None
        structure.check_graph(memoryview(content), path, config, metadata.batch or CHUNK_IMAGES)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or processors()
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # not logged: errors are raised
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            # The errors of ONNX Runtime have no common base class.
            raise ValueError(
                f"{path} can't be run by ONNX Runtime {onnxruntime.__version__}: {_one_line(error)}"
            ) from error
        self.routing: str = metadata.routing
        self.precision: str = metadata.precision
        self.background: float | None = metadata.background
        self._batch: int | None = metadata.batch
        self.config: CapsNetConfig | None = None
        self.image: CapsNetConfig | ImageInput | None
        if isinstance(metadata, CapsNetMetadata):
            config = self.config = self.image = metadata.config
            self.class_names: tuple[str, ...] = config.class_names
            self.input_shape: tuple[int, ...] = (config.channels, config.height, config.width)
            self._dtype: type[np.generic] = np.uint8
            self._outputs = {"capsules": (config.classes, config.class_dimension), "lengths": (config.classes,)}
        else:
            self.class_names = metadata.class_names
            self.input_shape = metadata.input_shape
            self._dtype = np.float32 if metadata.input_type == "float32" else np.uint8
            self._outputs = dict(zip(metadata.outputs, metadata.output_shapes, strict=True))
            self.image = None
            if len(self.input_shape) == 3:
                channels, height, width = self.input_shape
                self.image = ImageInput(height, width, channels)
        try:
            self.run(np.zeros((1, *self.input_shape), self._dtype))
        except Exception as error:
            raise ValueError(f"{path} is damaged: its network can't be run: {_one_line(error)}") from error

    def __repr__(self) -> str:
        """Return routing, precision, input and number of classes."""
        shape = "×".join(map(str, self.input_shape))
        return f"Predictor({self.routing}, {self.precision}, input {shape}, {len(self.class_names)} classes)"

    def __call__(self, images: NDArray[Any]) -> Output:
        """Classify images ``(b c h w)`` of the network's input size: bytes, or floats if the file takes them."""
        outputs = self.run(images)
        if "lengths" not in outputs:
            raise ValueError("this file has no capsules, but one output: use run() or scores()")
        return Output(outputs["capsules"], outputs["lengths"])

    def run(self, inputs: NDArray[Any]) -> dict[str, NDArray[np.float32]]:
        """Return all outputs by their name, for inputs ``(b …)``.

        Bytes are scaled to floats between 0 and 1 if the file takes floats.
        """
        inputs = self._checked(inputs)
        step = self._batch or CHUNK_IMAGES
        pieces = [self._run(inputs[start : start + step]) for start in range(0, len(inputs), step)]
        if not pieces:
            return {name: np.empty((0, *shape), np.float32) for name, shape in self._outputs.items()}
        return {
            name: np.concatenate(parts) for name, parts in zip(self._outputs, zip(*pieces, strict=True), strict=True)
        }

    @property
    def takes_floats(self) -> bool:
        """Whether inputs are floats; bytes are then scaled to 0 … 1."""
        return self._dtype is np.float32

    def scores(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Return the lengths ``(b j)`` of the class capsules, or the output of a module without capsules."""
        scores = self.run(inputs)[list(self._outputs)[-1]]
        check_finite(scores)
        return scores

    @overload
    def predict(self, images: Any, *, names: Literal[False] = False, invert: Invert = "auto") -> NDArray[np.int64]: ...

    @overload
    def predict(self, images: Any, *, names: Literal[True], invert: Invert = "auto") -> list[str]: ...

    def predict(self, images: Any, *, names: bool = False, invert: Invert = "auto") -> NDArray[np.int64] | list[str]:
        """Return the class of each image, as `fastcaps.CapsNet.predict` does, ``(b)``.

        Args:
            images: arrays, tensors, Pillow images, paths of files, or a list of these; for a module whose inputs are no
                images an array ``(b …)``.
            names: whether to return the names of the classes.
            invert: whether to swap light and dark of Pillow images and files, as `fastcaps.CapsNet.predict` does.
        """
        inputs = images if self.image is None else network_batch(images, self.image, self.background, invert)
        if self.image is not None and not self.takes_floats and inputs.dtype != np.uint8:
            inputs = np.rint(255 * inputs.clip(0, 1)).astype(np.uint8)
        classes: NDArray[np.int64] = self.scores(inputs).argmax(1)
        return [self.class_names[k] for k in classes] if names else classes

    def _run(self, inputs: NDArray[Any]) -> tuple[NDArray[np.float32], ...]:
        count = len(inputs)
        if self._batch is not None and count < self._batch:
            inputs = np.concatenate([inputs, np.zeros((self._batch - count, *inputs.shape[1:]), inputs.dtype)])
        outputs = self._session.run(list(self._outputs), {"images": np.ascontiguousarray(inputs)})
        return tuple(part[:count] for part in outputs)

    def _checked(self, inputs: NDArray[Any]) -> NDArray[Any]:
        accepted = {np.dtype(np.uint8), np.dtype(self._dtype)}
        if not isinstance(inputs, np.ndarray) or inputs.dtype not in accepted:
            kind = inputs.dtype if isinstance(inputs, np.ndarray) else type(inputs).__name__
            if self.takes_floats:
                raise ValueError(
                    f"inputs are {kind}, expected a NumPy array of float32, or of uint8 between 0 and 255: "
                    "convert them with .astype(np.float32)"
                )
            raise ValueError(
                f"images are {kind}, expected a NumPy array of uint8 between 0 and 255: "
                "multiply values between 0 and 1 by 255, round, and convert"
            )
        if inputs.shape[1:] != self.input_shape:
            shape = ", ".join(map(str, self.input_shape))
            raise ValueError(
                f"images have shape {inputs.shape}, expected (batch, {shape}): "
                "fastcaps.runtime.pictures.network_input converts image files"
            )
        return inputs if inputs.dtype == self._dtype else inputs.astype(np.float32) / 255
