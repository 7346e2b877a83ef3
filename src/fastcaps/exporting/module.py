"""Export any module as an ONNX model with the exporter of PyTorch."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from fastcaps._version import __version__
from fastcaps.runtime.file import PRODUCER

_OPSET = 18


class _Named(nn.Module):
    """A model that returns its class capsules with their lengths."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        return named_outputs(self.model(inputs))[1]


def named_outputs(output: Any) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    """Return names and tensors of what a model returned: capsules ``(b j e)`` with their lengths, or one tensor."""
    capsules = getattr(output, "capsules", output)
    if not isinstance(capsules, Tensor):
        raise ValueError(f"the model returns {type(output).__name__}, expected a tensor: wrap it in a module that does")
    if capsules.ndim == 3:
        return ("capsules", "lengths"), (capsules, torch.linalg.vector_norm(capsules, dim=-1))
    return ("output",), (capsules,)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of the exporter about missing packages and its own code."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@torch.no_grad()
def module_graph(model: nn.Module, example: Tensor, batch: int | None = None) -> onnx.ModelProto:
    """Export a module that takes one tensor ``(b …)``.

    Args:
        model: a module in evaluation mode.
        example: inputs ``(b …)``; only shape and type matter.
        batch: fixed batch size of the model; any when None.
    """
    names, _ = named_outputs(model(example[:1]))
    # Two images: a batch of one would be taken for a constant.
    inputs = example[:1].expand(batch or 2, *example.shape[1:]).contiguous()
    dynamic = None if batch is not None else ({0: torch.export.Dim("batch", min=1)},)
    try:
        with _quiet():
            program = torch.onnx.export(
                _Named(model).eval(),
                (inputs,),
                dynamo=True,
                input_names=["images"],
                output_names=list(names),
                dynamic_shapes=dynamic,
                opset_version=_OPSET,
                verbose=False,
            )
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise ValueError(
            f"PyTorch could not export {type(model).__name__}: {reason[0] if reason else type(error).__name__}"
        ) from error
    assert program is not None
    proto = program.model_proto
    if batch is None and not proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise ValueError(
            f"{type(model).__name__} can be exported for one size of the batch only: its forward pass computes with "
            "the number of images (len(inputs) instead of inputs.shape[0]?). Pass batch=1, or another number"
        )
    proto.producer_name, proto.producer_version = PRODUCER, __version__
    return proto
