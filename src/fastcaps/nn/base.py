"""Base class of the dynamic and the folded network: input, decoder and files."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, overload

import torch
from torch import Tensor, nn

from fastcaps import _hub
from fastcaps._files import write_atomically
from fastcaps._inputs import Invert, arranged, network_batch
from fastcaps._tracing import is_eager
from fastcaps.bundled import resolve
from fastcaps.functional.labels import checked_labels
from fastcaps.nn import pretrained
from fastcaps.nn.config import CapsNetConfig
from fastcaps.nn.convolutional import PrimaryCapsules, Stem
from fastcaps.nn.decoder import Decoder
from fastcaps.nn.inference import evaluating
from fastcaps.nn.summary import Summary, summarize

# Images per chunk of a batch without gradients, so that memory doesn't grow with the batch.
CHUNK_IMAGES = 64


class CapsuleOutput(NamedTuple):
    """Class capsules ``(b j e)``, their lengths ``(b j)``, and the coefficients ``(b i j)`` if requested."""

    capsules: Tensor
    lengths: Tensor
    coefficients: Tensor | None = None


class CapsuleNetwork(nn.Module, ABC):
    """Stem, PrimaryCapsules and decoder, assembled from a configuration; the two final classes add the capsule layer.

    Images are ``(b c h w)``, floating-point between 0 and 1, or bytes between 0 and 255. The result of an image
    doesn't depend on the rest of its batch.
    """

    kind: ClassVar[str]
    # Name of its folder in a run folder.
    folder: ClassVar[str]

    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__()
        if torch.empty(0).device.type == "cpu":
            config.check_memory()
        self.config = config
        self.provenance: dict[str, Any] = {}
        self.stem = Stem(
            config.channels,
            config.stem_channels,
            config.stem_kernel,
            config.stem_stride,
            layers=config.stem_layers,
            batch_norm=config.batch_norm,
            standardize=config.standardize,
        )
        self.primary = PrimaryCapsules(
            config.stem_channels,
            config.capsule_types,
            config.lower_dimension,
            config.primary_kernel,
            config.primary_stride,
            batch_norm=config.batch_norm,
        )
        image_shape = (config.channels, config.height, config.width)
        self.decoder = Decoder(config.classes, config.class_dimension, image_shape, config.decoder)

    @abstractmethod
    def forward(self, images: Tensor) -> CapsuleOutput:
        """Classify images ``(b c h w)``, without the decoder."""

    def lower_capsules(self, images: Tensor) -> Tensor:
        """Return the lower capsules ``(b i d)`` of images ``(b c h w)``, in the order of `PrimaryCapsules`."""
        return self.primary(self.stem(self._checked(images)))  # type: ignore[no-any-return]

    @overload
    def predict(self, images: Any, *, names: Literal[False] = False, invert: Invert = "auto") -> Tensor: ...

    @overload
    def predict(self, images: Any, *, names: Literal[True], invert: Invert = "auto") -> list[str]: ...

    @torch.no_grad()
    def predict(self, images: Any, *, names: bool = False, invert: Invert = "auto") -> Tensor | list[str]:
        """Return the class of the longest capsule of each image ``(b)``; a single image is a batch of one.

        The network is in evaluation mode meanwhile.

        Args:
            images: a tensor or array ``(b c h w)`` or ``(c h w)``, for gray also ``(n h w)`` or ``(h w)``, of bytes or
                of floats between 0 and 1; a Pillow image or the path of a file, of any size, prepared like the test
                images; or a list of these.
            names: whether to return the names of the classes.
            invert: whether to swap light and dark of Pillow images and files: ``"yes"``, ``"no"``, or ``"auto"``, where
                their edge is unlike that of the gray training images. Arrays and tensors are taken as they are.
        """
        if isinstance(images, Tensor):
            batch = arranged(images, self.config)
        else:
            batch = torch.from_numpy(network_batch(images, self.config, self.background, invert)).to(
                self.stem.conv.weight.device
            )
        with evaluating(self):
            output: CapsuleOutput = self(batch)
        finite = output.lengths.isfinite().all(1)
        if not bool(finite.all()):
            raise ValueError(
                f"image {int((~finite).nonzero()[0])} of the batch gives capsules that are not finite: expected finite "
                "weights, so train or load them again"
            )
        classes = output.lengths.argmax(1)
        return [self.config.class_names[k] for k in classes.tolist()] if names else classes

    @property
    def background(self) -> float | None:
        """Brightness of the edge of the training images, between 0 and 1; None if it is unknown."""
        value = self.provenance.get("background")
        return value if isinstance(value, float | int) and 0 <= value <= 1 else None

    def reconstruct(self, capsules: Tensor, labels: Tensor | None = None) -> Tensor:
        """Reconstruct images ``(b c h w)`` from class capsules ``(b j e)``.

        All capsules but one are masked: that of the label ``(b)``, or the longest if there are no labels.
        """
        j, e = self.config.classes, self.config.class_dimension
        if capsules.ndim != 3 or capsules.shape[1:] != (j, e):
            raise ValueError(f"capsules have shape {tuple(capsules.shape)}, expected (batch, {j}, {e})")
        if labels is None:
            labels = torch.linalg.vector_norm(capsules, dim=-1).argmax(1)  # (b)
        else:
            labels = checked_labels(labels, len(capsules), j)
        return self.decoder(capsules, labels)  # type: ignore[no-any-return]

    def summary(self) -> Summary:
        """Return shapes, parameters and multiply-adds by layer; the result is printed as a table."""
        return summarize(self)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``model.safetensors`` into a folder, atomically."""
        write_atomically(self.pretrained_files(folder))

    def push_to_hub(
        self, name: str, *, message: str | None = None, private: bool | None = None, token: str | None = None
    ) -> str:
        """Upload the network to the Hugging Face Hub, and return its address.

        Args:
            name: name of the repository, such as ``"user/name"``; it is created if it doesn't exist. A card is added
                if it has none; another network in it is replaced.
            message: commit message.
            private: whether a new repository is private; by default the setting of the account.
            token: token of an account with write access; by default that of ``hf auth login`` or ``$HF_TOKEN``.
        """
        files = {path.name: content for path, content in self.pretrained_files("").items()}
        card = pretrained.card(self.config, name, self.kind).encode()
        return _hub.upload(name, files, card, message=message, private=private, token=token)

    def pretrained_files(self, folder: str | Path) -> dict[Path, bytes]:
        """Return the contents of the files that `save_pretrained` writes, to write them together with other files."""
        return pretrained.files(self, Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, revision: str | None = None) -> Self:
        """Load a network.

        Args:
            folder: a folder written by `save_pretrained`; a run folder; a bundled network such as ``"mnist"``; or a
                repository on the Hugging Face Hub such as ``"user/name"``, which is downloaded to its cache.
            revision: branch, tag or commit of the repository.
        """
        path = resolve(folder, revision=revision)
        inside = path / cls.folder
        if not (path / "config.json").exists() and (inside / "config.json").is_file():
            path = inside
        return cls._load(path)

    @classmethod
    @abstractmethod
    def _load(cls, folder: Path) -> Self:
        """Load a network from a folder with a ``config.json``."""

    def _pieces(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the whole batch if it needs gradients or is traced, otherwise chunks of it."""
        if not isinstance(images, Tensor):
            raise ValueError(f"images are {type(images).__name__}, expected a tensor: torch.from_numpy converts arrays")
        if not is_eager(images) or images.ndim != 4:  # `_checked` raises if it is not a batch
            return (images,)
        has_gradient = images.requires_grad or any(parameter.requires_grad for parameter in self.parameters())
        whole = (torch.is_grad_enabled() and has_gradient) or len(images) <= CHUNK_IMAGES
        return (images,) if whole else torch.split(images, CHUNK_IMAGES)

    def _checked(self, images: Tensor) -> Tensor:
        c, h, w = self.config.channels, self.config.height, self.config.width
        if images.ndim != 4 or images.shape[1:] != (c, h, w):
            raise ValueError(f"images have shape {tuple(images.shape)}, expected (batch, {c}, {h}, {w})")
        dtype = self.stem.conv.weight.dtype
        if images.dtype == torch.uint8:
            return images.to(dtype) / 255
        if not images.is_floating_point():
            raise ValueError(
                f"images are {images.dtype}, expected floating-point between 0 and 1, or uint8 between 0 and 255"
            )
        return images.to(dtype)


def check_capsule_network(model: object, use: str) -> None:
    """Raise ValueError for a module that is not a `CapsNet` or `FastCapsNet`.

    Args:
        model: the module.
        use: the function that needs it, for the message.
    """
    if not isinstance(model, CapsuleNetwork):
        raise ValueError(
            f"{use} takes a CapsNet, not a {type(model).__name__}: use accumulate, fold, record and export with other "
            "modules, and train and evaluate them in a loop of your own"
        )
