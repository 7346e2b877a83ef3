"""The capsule network with dynamic routing: what is trained."""

from pathlib import Path
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from fastcaps.nn import pretrained
from fastcaps.nn.base import CapsuleNetwork, CapsuleOutput
from fastcaps.nn.config import CapsNetConfig
from fastcaps.nn.layers import ClassCaps


@final
class CapsNet(CapsuleNetwork):
    """Stem ▸ PrimaryCaps ▸ votes ▸ dynamic routing (paper, section 2)."""

    kind: ClassVar[str] = "CapsNet"

    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__(config)
        self.routing = ClassCaps(config)

    @classmethod
    def _from_run(cls, folder: Path) -> Self:
        return pretrained.load(cls, folder / "model")

    def forward(
        self, images: Tensor, *, with_coefficients: bool = False, iterations: int | None = None
    ) -> CapsuleOutput:
        """Classify images.

        Args:
            images: ``(b c h w)``.
            with_coefficients: whether to return the coefficients of the last iteration, too.
            iterations: of routing, instead of the configuration's.

        Returns:
            Capsules ``(b j e)``, lengths ``(b j)``, coefficients ``(b i j)`` or None.
        """
        capsules, coefficients = [], []
        for piece in self._pieces(images):
            routing = self.routing(self.lower_capsules(piece), iterations)
            capsules.append(routing.capsules)
            if with_coefficients:
                coefficients.append(routing.coefficients)
        joined = torch.cat(capsules)  # (b, j, e)
        return CapsuleOutput(
            joined,
            torch.linalg.vector_norm(joined, dim=-1),
            torch.cat(coefficients) if with_coefficients else None,
        )
