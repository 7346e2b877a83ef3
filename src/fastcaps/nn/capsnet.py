"""The capsule network with dynamic routing, the one to train."""

import warnings
from pathlib import Path
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from fastcaps.functional import get_normalization
from fastcaps.nn import pretrained
from fastcaps.nn.base import CapsuleNetwork, CapsuleOutput
from fastcaps.nn.capsules import CapsuleLayer
from fastcaps.nn.config import CapsNetConfig
from fastcaps.nn.routing import REGISTRY, DynamicRouting, Routing
from fastcaps.nn.summary import Summary, summarize

# A network with more lower capsules than this is probably larger than intended: eight times the paper's MNIST network.
_MANY = 8 * 1152


def make_routing(config: CapsNetConfig) -> Routing:
    """Return the routing that a configuration names."""
    if config.routing != DynamicRouting.name:
        return REGISTRY.make(config.routing)
    normalization = get_normalization(config.normalization, lower=config.lower, upper=config.upper)
    return DynamicRouting(config.iterations, normalization)


@final
class CapsNet(CapsuleNetwork):
    """Stem ▸ PrimaryCapsules ▸ votes ▸ dynamic routing (paper, section 2)."""

    kind: ClassVar[str] = "CapsNet"
    folder: ClassVar[str] = "model"

    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__(config)
        self.routing = CapsuleLayer(
            config.lower_capsules,
            config.lower_dimension,
            config.classes,
            config.class_dimension,
            routing=make_routing(config),
            bias=config.class_bias,
        )
        if config.lower_capsules > _MANY:
            megabytes = self.routing.weight.numel() * 4 / 1e6
            warnings.warn(
                f"images of {config.height}×{config.width} give {config.lower_capsules:,} lower capsules (the paper's "
                f"MNIST network has 1,152): their weights take {megabytes:,.0f} MB, {4 * megabytes:,.0f} MB while "
                "training. CapsNetConfig.for_images(..., stem='auto') or stem_layers make the feature maps smaller",
                stacklevel=2,
            )

    def pretrained_files(self, folder: str | Path) -> dict[Path, bytes]:
        """Return the contents of the files that `save_pretrained` writes, to write them together with other files."""
        own, expected = self.routing.routing, make_routing(self.config)
        if type(own) is not type(expected) or (isinstance(own, DynamicRouting) and own != expected):
            raise ValueError(
                f"the network routes by {own}, but its configuration, which is all that a folder holds, says "
                f"{expected}: make the network from a configuration that names its routing and normalization"
            )
        return super().pretrained_files(folder)

    def summary(self) -> Summary:
        """Return shapes, parameters and multiply-adds by layer, with the routing loop; it is printed as a table."""
        return summarize(self, self.config.iterations)

    @classmethod
    def _load(cls, folder: Path) -> Self:
        return pretrained.load(cls, folder)

    def forward(
        self,
        images: Tensor,
        *,
        with_coefficients: bool = False,
        iterations: int | None = None,
        fixed: Tensor | None = None,
    ) -> CapsuleOutput:
        """Classify images.

        Args:
            images: ``(b c h w)``.
            with_coefficients: whether to also return the coefficients of the last iteration.
            iterations: number of routing iterations, instead of that of the configuration.
            fixed: coefficients ``(i j)`` to use in place of routing, to train with master coefficients. Forward and
                backward pass are then one matrix product each.

        Returns:
            Capsules ``(b j e)``, lengths ``(b j)``, coefficients ``(b i j)`` or None.
        """
        if fixed is not None and (with_coefficients or iterations is not None):
            raise ValueError("with fixed coefficients nothing is routed: leave with_coefficients and iterations out")
        capsules, coefficients = [], []
        for piece in self._pieces(images):
            lower = self.lower_capsules(piece)  # (b, i, d)
            if fixed is not None:
                capsules.append(self.routing.apply_coefficients(lower, fixed))
            elif with_coefficients or iterations is not None:
                routed = self.routing.route(lower, iterations)
                capsules.append(routed.capsules)
                coefficients.append(routed.coefficients)
            else:
                capsules.append(self.routing(lower))
        joined = torch.cat(capsules)  # (b, j, e)
        return CapsuleOutput(
            joined,
            torch.linalg.vector_norm(joined, dim=-1),
            torch.cat(coefficients) if with_coefficients else None,
        )
