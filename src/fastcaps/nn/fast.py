"""The folded network: the same stem and PrimaryCaps, with routing as one matrix product."""

import copy
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from fastcaps.functional import fold_weights
from fastcaps.nn.base import CapsuleNetwork, CapsuleOutput
from fastcaps.nn.capsnet import CapsNet
from fastcaps.nn.config import CapsNetConfig
from fastcaps.nn.layers import FoldedCaps
from fastcaps.nn.pretrained import weights_hash

if TYPE_CHECKING:
    from fastcaps.master.coefficients import MasterCoefficients


@final
class FastCapsNet(CapsuleNetwork):
    """Stem ▸ PrimaryCaps ▸ one matrix product ▸ squash (paper, Fast Routing Procedure); made by `fold`.

    Its weights don't ask for gradients, so that it is fast without ``torch.no_grad()``, too.
    """

    kind: ClassVar[str] = "FastCapsNet"

    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__(config)
        self.routing = FoldedCaps(config)
        self.requires_grad_(False)

    @classmethod
    def _from_run(cls, folder: Path) -> "FastCapsNet":
        from fastcaps.master.coefficients import MasterCoefficients

        return fold(CapsNet.from_pretrained(folder), MasterCoefficients.load(folder / "master.safetensors"))

    def forward(self, images: Tensor) -> CapsuleOutput:
        """Classify images ``(b c h w)``: capsules ``(b j e)`` and lengths ``(b j)``."""
        joined = torch.cat([self.routing(self.lower_capsules(piece)) for piece in self._pieces(images)])
        return CapsuleOutput(joined, torch.linalg.vector_norm(joined, dim=-1))


def fold(model: CapsNet, master: "MasterCoefficients | Tensor", *, any_weights: bool = False) -> FastCapsNet:
    """Fold master coefficients into a network's weights; the network itself is not touched.

    Args:
        model: the network with which the coefficients were accumulated.
        master: the coefficients, or a bare matrix ``(i j)``.
        any_weights: accept coefficients that were accumulated with other weights.

    Returns:
        The folded network, on the model's device, in evaluation mode.
    """
    values = master if isinstance(master, Tensor) else master.values
    i, j = model.config.lower_capsules, model.config.classes
    if values.shape != (i, j):
        given = "×".join(str(size) for size in values.shape)
        raise ValueError(
            f"master coefficients are for {given} capsules, this model has {i}×{j}: accumulate them with this model"
        )
    provenance = {}
    if not isinstance(master, Tensor):
        own = weights_hash(model)
        if not any_weights and own != master.trained_with and master.model_hash not in (None, own):
            raise ValueError(
                f"master coefficients were accumulated with other weights ({_short(master.model_hash)}) than "
                f"this model's ({_short(own)}): accumulate them with this model, "
                "or pass any_weights=True"
            )
        provenance = {"master": master.summary()}
    weight = model.routing.weight
    with torch.device("meta"):
        fast = FastCapsNet(model.config)
    fast.stem = copy.deepcopy(model.stem)
    fast.primary = copy.deepcopy(model.primary)
    fast.decoder = copy.deepcopy(model.decoder)
    folded = fold_weights(weight.detach().double(), values.to(weight.device, torch.float64))
    fast.routing.weight = torch.nn.Parameter(folded.to(weight.dtype))
    fast.provenance = {**model.provenance, **provenance}
    return fast.requires_grad_(False).eval()


def _short(model_hash: str | None) -> str:
    return (model_hash or "")[:12]
