"""The capsule network with dynamic routing: what is trained."""

from pathlib import Path
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from fastcaps.functional import fold_weights, folded_routing
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
            with_coefficients: whether to return the coefficients of the last iteration, too.
            iterations: of routing, instead of the configuration's.
            fixed: coefficients ``(i j)`` to use in place of routing, which then is one matrix product, also for the
                gradient: how a network is trained with master coefficients.

        Returns:
            Capsules ``(b j e)``, lengths ``(b j)``, coefficients ``(b i j)`` or None.
        """
        if fixed is not None:
            if with_coefficients or iterations is not None:
                raise ValueError(
                    "with fixed coefficients nothing is routed: leave with_coefficients and iterations out"
                )
            return self._with_fixed(images, fixed)
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

    def _with_fixed(self, images: Tensor, fixed: Tensor) -> CapsuleOutput:
        weight = self.routing.weight
        folded = fold_weights(weight, fixed.to(weight.device, weight.dtype))  # (i·d, j·e)
        parts = torch.get_num_threads()
        joined = torch.cat(
            [
                folded_routing(self.lower_capsules(piece).to(weight.dtype), folded, self.config.classes, parts)
                for piece in self._pieces(images)
            ]
        )  # (b, j, e)
        return CapsuleOutput(joined, torch.linalg.vector_norm(joined, dim=-1))
