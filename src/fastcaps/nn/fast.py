"""The folded network: the same stem and PrimaryCapsules, with routing as one matrix product."""

import copy
import dataclasses
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fastcaps._tensors import read_tensors, tensor_hash
from fastcaps.nn import pretrained
from fastcaps.nn.base import CapsuleNetwork, CapsuleOutput
from fastcaps.nn.capsnet import CapsNet
from fastcaps.nn.capsules import FoldedCapsuleLayer
from fastcaps.nn.config import CapsNetConfig
from fastcaps.nn.fusion import fuse_batch_norm
from fastcaps.nn.meta import without_weights


@final
class FastCapsNet(CapsuleNetwork):
    """Stem ▸ PrimaryCapsules ▸ one matrix product ▸ squash (paper, Fast Routing Procedure); `fastcaps.fold` makes it.

    Its weights don't require gradients, so that it is fast even without ``torch.no_grad()``.
    """

    kind: ClassVar[str] = "FastCapsNet"
    folder: ClassVar[str] = "fast"

    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__(config)
        self.routing = FoldedCapsuleLayer(
            config.lower_capsules,
            config.lower_dimension,
            config.classes,
            config.class_dimension,
            bias=config.class_bias,
        )
        self.requires_grad_(False)

    @classmethod
    def from_capsnet(
        cls, model: CapsNet, coefficients: Tensor, provenance: dict[str, Any] | None = None
    ) -> "FastCapsNet":
        """Fold coefficients ``(i j)`` into a copy of a network, and its BatchNorm layers into their convolutions.

        Args:
            model: the network; not modified.
            coefficients: ``(i j)``.
            provenance: entries to add to the model's.

        Returns:
            The folded network, on the model's device, in evaluation mode.
        """
        with without_weights():
            fast = cls(dataclasses.replace(model.config, batch_norm=False))
        fast.stem = copy.deepcopy(model.stem)
        fast.primary = copy.deepcopy(model.primary)
        fast.decoder = copy.deepcopy(model.decoder)
        fast.routing = FoldedCapsuleLayer.from_layer(model.routing, coefficients)
        fast.provenance = {**model.provenance, **(provenance or {})}
        fuse_batch_norm(fast)
        return fast.requires_grad_(False).eval()

    @classmethod
    def _load(cls, folder: Path) -> "FastCapsNet":
        parts = pretrained.folded_from(folder)
        if parts is None:
            fast = pretrained.load(cls, folder)
            fast._check_coefficients(folder)
            return fast
        fast = cls.from_capsnet(CapsNet.from_pretrained(parts.model_folder), parts.coefficients)
        fast.provenance = parts.provenance
        return fast

    def _check_coefficients(self, folder: Path) -> None:
        """Raise if the folded network of a run was folded from other coefficients than those of the run."""
        recorded, file = self.provenance.get(pretrained.COEFFICIENTS_HASH), folder.parent / "master.safetensors"
        if recorded is not None and folder.name == self.folder and file.is_file():
            values = read_tensors(file, "values")[1].get("values", torch.empty(0))
            pretrained.check_same_coefficients(folder, recorded, file, tensor_hash(values))

    def forward(self, images: Tensor) -> CapsuleOutput:
        """Classify images ``(b c h w)``: capsules ``(b j e)`` and lengths ``(b j)``."""
        joined = torch.cat([self.routing(self.lower_capsules(piece)) for piece in self._pieces(images)])
        return CapsuleOutput(joined, torch.linalg.vector_norm(joined, dim=-1))
