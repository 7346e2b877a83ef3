"""The loss that training minimizes."""

import copy

import torch
from torch import Tensor, nn

from fastcaps.functional import (
    capsule_distillation_loss,
    cross_entropy_loss,
    length_distillation_loss,
    margin_loss,
    reconstruction_loss,
)
from fastcaps.nn import CapsNet
from fastcaps.training.settings import TrainSettings


class Objective(nn.Module):
    """The loss of a network on a batch, and the lengths ``(b j)`` of its class capsules."""

    def __init__(self, model: CapsNet, settings: TrainSettings) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        # PyTorch warns when it looks for unused parameters and finds none: this one is never used.
        self.unused = nn.Parameter(torch.zeros(1, device=model.routing.weight.device))
        # In a tuple, so that it is not a submodule: it is neither trained nor distributed.
        self._teacher = (copy.deepcopy(model).requires_grad_(False).eval(),) if settings.distill else ()

    def forward(self, images: Tensor, labels: Tensor, fixed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return loss and lengths.

        Args:
            images: batch ``(b c h w)``.
            labels: class numbers ``(b)``.
            fixed: coefficients ``(i j)`` in place of dynamic routing.
        """
        settings = self.settings
        output = self.model(images, fixed=fixed)
        if settings.loss == "margin":
            loss = margin_loss(
                output.lengths, labels, settings.positive_margin, settings.negative_margin, settings.negative_weight
            )
        else:
            loss = cross_entropy_loss(output.lengths, labels, settings.sharpness)
        if settings.reconstruction_weight:
            reconstruction = self.model.reconstruct(output.capsules, labels)
            loss = loss + reconstruction_loss(reconstruction, images, settings.reconstruction_weight)
        for teacher in self._teacher:
            with torch.no_grad():
                target = teacher(images)
            loss = loss + length_distillation_loss(output.lengths, target.lengths, settings.sharpness)
            loss = loss + capsule_distillation_loss(output.capsules, target.capsules)
        return loss, output.lengths.detach()
