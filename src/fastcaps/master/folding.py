"""Folding: a copy of a model in which every capsule layer is one matrix product."""

import copy
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from fastcaps.master.coefficients import MasterCoefficients
from fastcaps.master.recording import capsule_layers
from fastcaps.nn.capsnet import CapsNet
from fastcaps.nn.capsules import CapsuleLayer, FoldedCapsuleLayer
from fastcaps.nn.fast import FastCapsNet
from fastcaps.nn.fusion import fuse_batch_norm
from fastcaps.nn.pretrained import COEFFICIENTS_HASH, weights_hash

Coefficients = MasterCoefficients | Tensor
Model = TypeVar("Model", bound=nn.Module)
_PATH = "routing"


@overload
def fold(
    model: CapsNet,
    master: Coefficients | Mapping[str, Coefficients] | Literal["uniform"],
    *,
    any_weights: bool = False,
    merge_batch_norm: bool = False,
) -> FastCapsNet: ...


@overload
def fold(
    model: Model,
    master: Coefficients | Mapping[str, Coefficients] | Literal["uniform"],
    *,
    any_weights: bool = False,
    merge_batch_norm: bool = False,
) -> Model: ...


def fold(
    model: nn.Module,
    master: Coefficients | Mapping[str, Coefficients] | Literal["uniform"],
    *,
    any_weights: bool = False,
    merge_batch_norm: bool = False,
) -> nn.Module:
    """Fold master coefficients into the weights of a copy of a model; the model itself is not modified.

    Every `CapsuleLayer` becomes a `FoldedCapsuleLayer`. A BatchNorm of `Stem` and `PrimaryCapsules` is merged into the
    convolution.

    Args:
        model: the network with which the coefficients were accumulated: a `CapsNet`, or any module with capsule layers.
        master: the result of `accumulate`: coefficients, or a dictionary with those of each layer by its path; a bare
            matrix ``(i j)`` in place of coefficients; or ``"uniform"`` for the coefficients of the first iteration (1
            for Max-Min, 1/j for softmax): no routing at all.
        any_weights: accept coefficients that were accumulated with other weights.
        merge_batch_norm: also merge BatchNorm layers in `torch.nn.Sequential` into the convolution directly before or
            after them. This is exact as long as each Sequential is called as a whole.

    Returns:
        The folded copy, on the model's device, in evaluation mode, with weights that don't require gradients: a
        `FastCapsNet` for a `CapsNet`, otherwise a module of the model's own class.
    """
    layers = capsule_layers(model)
    matrices = _matrices(model, layers, master, any_weights)
    if isinstance(model, CapsNet):
        summary = master.get(_PATH) if isinstance(master, Mapping) else master
        provenance = {}
        if isinstance(summary, MasterCoefficients):
            provenance = {"master": summary.summary().to_dict(), COEFFICIENTS_HASH: summary.values_hash}
        return FastCapsNet.from_capsnet(model, matrices[_PATH], provenance)
    # The copy gets a folded layer wherever the model refers to a layer.
    folded: dict[int, Any] = {
        id(layer): FoldedCapsuleLayer.from_layer(layer, matrices[path]) for path, layer in layers.items()
    }
    for path, module in model.named_modules():
        if isinstance(module, CapsNet):
            folded[id(module)] = FastCapsNet.from_capsnet(module, matrices[f"{path}.{_PATH}"])
    result = copy.deepcopy(model, folded).eval()
    fuse_batch_norm(result, sequential=merge_batch_norm)
    return result.requires_grad_(False)


def _matrices(
    model: nn.Module,
    layers: Mapping[str, CapsuleLayer],
    master: Coefficients | Mapping[str, Coefficients] | str,
    any_weights: bool,
) -> dict[str, Tensor]:
    """Return one matrix ``(i j)`` per layer; raise ValueError if one is of another layer or of other weights."""
    if isinstance(master, str):
        if master != "uniform":
            raise ValueError(f"master is {master!r}, expected master coefficients or 'uniform'")
        return {path: _uniform(path, layer) for path, layer in layers.items()}
    if not isinstance(master, Mapping | MasterCoefficients | Tensor):
        raise ValueError(
            f"master is {type(master).__name__}, expected what accumulate returned, a matrix, or 'uniform'"
        )
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
        sizes = "×".join(str(size) for size in values.shape)
        raise ValueError(
            f"master coefficients are for {sizes} capsules, layer {path!r} of this model has "
            f"{expected[0]}×{expected[1]}: accumulate them with this model"
        )
    if not bool(values.isfinite().all()):
        raise ValueError(f"the coefficients of layer {path!r} are not all finite: accumulate them again")
    if isinstance(master, Tensor) or model_hash is None:
        return
    if model_hash != master.trained_with and master.model_hash not in (None, model_hash):
        raise ValueError(
            f"master coefficients of layer {path!r} were accumulated with other weights "
            f"({(master.model_hash or '')[:12]}) than this model's ({model_hash[:12]}): accumulate them with this "
            "model, or pass any_weights=True"
        )


def _uniform(path: str, layer: CapsuleLayer) -> Tensor:
    start = layer.routing.start(layer.out_capsules)
    if start is None:
        raise ValueError(
            f"the routing of layer {path!r}, {type(layer.routing).__name__}, does not say which coefficients it starts "
            "from: define its start(classes), or give a matrix in place of 'uniform'"
        )
    return torch.full((layer.in_capsules, layer.out_capsules), start, dtype=torch.float64)
