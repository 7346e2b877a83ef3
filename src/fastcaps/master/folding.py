"""Folding: a copy of a model in which every capsule layer is one matrix product."""

import copy
from collections.abc import Mapping
from typing import Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from fastcaps.master.coefficients import MasterCoefficients
from fastcaps.master.recording import capsule_layers
from fastcaps.nn.capsnet import CapsNet
from fastcaps.nn.capsules import CapsuleLayer, FoldedCapsuleLayer
from fastcaps.nn.fast import FastCapsNet
from fastcaps.nn.fusion import fuse_batch_norm
from fastcaps.nn.pretrained import weights_hash

Coefficients = MasterCoefficients | Tensor
Model = TypeVar("Model", bound=nn.Module)
_PATH = "routing"


@overload
def fold(
    model: CapsNet,
    master: Coefficients | Mapping[str, Coefficients] | Literal["uniform"],
    *,
    any_weights: bool = False,
) -> FastCapsNet: ...


@overload
def fold(
    model: Model,
    master: Coefficients | Mapping[str, Coefficients] | Literal["uniform"],
    *,
    any_weights: bool = False,
) -> Model: ...


def fold(
    model: nn.Module,
    master: Coefficients | Mapping[str, Coefficients] | Literal["uniform"],
    *,
    any_weights: bool = False,
) -> nn.Module:
    """Fold master coefficients into the weights of a copy of a model; the model itself is not touched.

    Every `CapsuleLayer` becomes a `FoldedCapsuleLayer`. A BatchNorm directly before or after a convolution is merged
    into it where that is exact.

    Args:
        model: the network with which the coefficients were accumulated: a `CapsNet`, or any module with capsule layers.
        master: what `accumulate` returned: coefficients, or one for each layer by its path; a bare matrix ``(i j)`` in
            place of coefficients; or ``"uniform"`` for those of the first iteration (1 for Max-Min, 1/j for softmax):
            no routing at all.
        any_weights: accept coefficients that were accumulated with other weights.

    Returns:
        The folded copy, on the model's device, in evaluation mode, with weights that don't require gradients: a
        `FastCapsNet` for a `CapsNet`, otherwise a module of the model's own class.
    """
    layers = capsule_layers(model)
    matrices = _matrices(model, layers, master, any_weights)
    if isinstance(model, CapsNet):
        summary = master.get(_PATH) if isinstance(master, Mapping) else master
        provenance = {"master": summary.summary()} if isinstance(summary, MasterCoefficients) else {}
        return FastCapsNet.from_capsnet(model, matrices[_PATH], provenance)
    if "" in layers:  # the model is one capsule layer
        return FoldedCapsuleLayer.from_layer(layers[""], matrices[""]).eval()
    folded = _copy_without_weights(model, layers)
    for path, matrix in matrices.items():
        parent, _, name = path.rpartition(".")
        setattr(folded.get_submodule(parent), name, FoldedCapsuleLayer.from_layer(layers[path], matrix))
    folded.eval()
    fuse_batch_norm(folded)
    return folded.requires_grad_(False)


def _matrices(
    model: nn.Module,
    layers: Mapping[str, CapsuleLayer],
    master: Coefficients | Mapping[str, Coefficients] | str,
    any_weights: bool,
) -> dict[str, Tensor]:
    """One matrix ``(i j)`` for each layer, refused where it is of another layer or other weights."""
    if isinstance(master, str):
        if master != "uniform":
            raise ValueError(f"master is {master!r}, expected master coefficients or 'uniform'")
        return {path: _uniform(layer) for path, layer in layers.items()}
    if not isinstance(master, Mapping):
        if len(layers) > 1:
            raise ValueError(
                f"one matrix of coefficients was given for {len(layers)} capsule layers "
                f"({', '.join(map(repr, layers))}): give one for each, by its path, as accumulate returns them"
            )
        master = {next(iter(layers)): master}
    missing, unknown = [p for p in layers if p not in master], [p for p in master if p not in layers]
    if missing or unknown:
        raise ValueError(
            f"coefficients are for the layers {', '.join(map(repr, master))}, this model has "
            f"{', '.join(map(repr, layers))}: give one for each, as accumulate returns them"
        )
    own = None if any_weights or all(isinstance(one, Tensor) for one in master.values()) else weights_hash(model)
    for path, coefficients in master.items():
        _check_fits(path, layers[path], coefficients, own)
    return {path: one if isinstance(one, Tensor) else one.values for path, one in master.items()}


def _check_fits(path: str, layer: CapsuleLayer, master: Coefficients, model_hash: str | None) -> None:
    values = master if isinstance(master, Tensor) else master.values
    expected = (layer.in_capsules, layer.out_capsules)
    if values.shape != expected:
        given = "×".join(str(size) for size in values.shape)
        raise ValueError(
            f"master coefficients are for {given} capsules, layer {path!r} of this model has "
            f"{expected[0]}×{expected[1]}: accumulate them with this model"
        )
    if isinstance(master, Tensor) or model_hash is None:
        return
    if model_hash != master.trained_with and master.model_hash not in (None, model_hash):
        raise ValueError(
            f"master coefficients of layer {path!r} were accumulated with other weights "
            f"({(master.model_hash or '')[:12]}) than this model's ({model_hash[:12]}): accumulate them with this "
            "model, or pass any_weights=True"
        )


def _uniform(layer: CapsuleLayer) -> Tensor:
    start = layer.routing.normalization.start(layer.out_capsules)
    return torch.full((layer.in_capsules, layer.out_capsules), start, dtype=torch.float64)


def _copy_without_weights(model: nn.Module, layers: Mapping[str, CapsuleLayer]) -> nn.Module:
    """A copy of a model that shares its capsule layers, which are replaced anyway: their weights may be large."""
    return copy.deepcopy(model, {id(layer): layer for layer in layers.values()})
