"""A network as an ONNX graph, node by node: from bytes to class capsules, with the preparation of the input.

The graph is small enough to be written by hand, so it does not depend on an exporter of PyTorch code. The input is
bytes, whose range is clear. Shapes hold for any batch size; routing is unrolled.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fastcaps._version import __version__
from fastcaps.exporting.quantize import (
    CAPSULES,
    LARGEST_FOLDED,
    LARGEST_WEIGHT,
    PIXELS,
    Ranges,
    Scale,
    quantized_weight,
    rounds_stem,
)
from fastcaps.functional import Normalization, get_normalization
from fastcaps.nn.config import CapsNetConfig
from fastcaps.runtime.file import PRODUCER

Weights = Mapping[str, NDArray[np.float32]]

# Old enough for every ONNX Runtime that fastcaps[runtime] allows, new enough for axes as inputs.
_OPSET, _IR_VERSION = 18, 9
# Maximum size of a protobuf message, and so of a model in a single file.
LARGEST_BYTES = 2**31 - 1
# Maximum bias in quantization steps: it fits into 32 bits with room for the sum.
_MOST_STEPS = 2**30


def network_graph(
    config: CapsNetConfig,
    weights: Weights,
    routing: str,
    ranges: Ranges | None = None,
    batch: int | None = None,
) -> onnx.ModelProto:
    """Return the whole network: input ``images (b c h w)``, bytes; outputs ``lengths (b j)`` and ``capsules (b j e)``.

    Args:
        config: configuration of the network.
        weights: weights by their names in the network's ``state_dict``; ``routing.weight`` is ``(i d j e)`` for dynamic
            routing and ``(i·d, j·e)`` for fast.
        routing: ``"dynamic"`` or ``"fast"``.
        ranges: ranges of the activations, for int8; float32 when None.
        batch: fixed batch size; any when None.
    """
    graph = Graph()
    lower = _lower_capsules(graph, config, weights, ranges)  # (b, i, d)
    if routing == "fast":
        capsules = _folded(graph, config, weights, lower, ranges)
    else:
        capsules = _routed(graph, config, weights, lower)
    lengths = graph.add("ReduceL2", [capsules, graph.axes(2)], "lengths", keepdims=0)  # (b, j)
    shape = [config.channels, config.height, config.width]
    outputs = {lengths: [config.classes], capsules: [config.classes, config.class_dimension]}
    return graph.model((TensorProto.UINT8, shape), outputs, batch)


class Graph:
    """Nodes and constants of a model."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def add(self, operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """Add a node with one output, and return its name."""
        self._nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: Any, dtype: type[np.generic] = np.float32) -> str:
        """Add a constant tensor, and return its name; the same name must be the same tensor."""
        array = np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))
        tensor = numpy_helper.from_array(array, name)
        if self._constants.setdefault(name, tensor) != tensor:
            raise ValueError(f"the graph has a constant {name!r} of another value: choose another name")
        return name

    def axes(self, *axes: int) -> str:
        """Add axes as a constant tensor."""
        return self.constant(f"axes_{'_'.join(map(str, axes))}", axes, np.int64)

    def reshape(self, tensor: str, shape: tuple[int, ...], name: str) -> str:
        """Reshape a tensor; 0 keeps a size, −1 is inferred."""
        return self.add("Reshape", [tensor, self.constant(f"{name}_shape", shape, np.int64)], name)

    def squash(self, vectors: str, name: str) -> str:
        """Squash vectors along the last axis: ``s · ‖s‖ / (1 + ‖s‖²)``."""
        length = self.add("ReduceL2", [vectors, self.axes(-1)], f"{name}_length", keepdims=1)
        squared = self.add("Mul", [length, length], f"{name}_squared")
        divisor = self.add("Add", [squared, self.constant("one", 1)], f"{name}_divisor")
        factor = self.add("Div", [length, divisor], f"{name}_factor")
        return self.add("Mul", [vectors, factor], name)

    def quantized(self, tensor: str, scale: Scale, name: str) -> str:
        """Quantize numbers to bytes, saturating."""
        return self.add("QuantizeLinear", [tensor, *self._scale(scale, name)], f"{name}_bytes")

    def dequantized(self, tensor: str, scale: Scale, name: str) -> str:
        """Convert bytes back to numbers."""
        return self.add("DequantizeLinear", [tensor, *self._scale(scale, name)], name)

    def weight(self, steps: NDArray[np.int8], scales: NDArray[np.float32], axis: int, name: str) -> str:
        """Add a weight stored as bytes, with one scale per index of an axis."""
        inputs = [self.constant(f"{name}_bytes", steps, np.int8), self.constant(f"{name}_scale", scales)]
        inputs.append(self.constant(f"{name}_zero", np.zeros(len(scales)), np.int8))
        return self.add("DequantizeLinear", inputs, name, axis=axis)

    def convolution(
        self, tensor: str, weight: NDArray[np.float32], bias: NDArray[np.float32], layer: str, stride: int
    ) -> str:
        """Add a convolution without padding."""
        inputs = [tensor, self.constant(f"{layer}_weight", weight), self.constant(f"{layer}_bias", bias)]
        return self.add("Conv", inputs, layer, kernel_shape=weight.shape[2:], strides=[stride, stride])

    def quantized_convolution(
        self, tensor: str, weights: Weights, layer: str, stride: int, scale: Scale, channel_steps: NDArray[np.float32]
    ) -> str:
        """Add a convolution of a tensor quantized with ``scale``; its result is in steps of each channel."""
        weight, bias = weights[f"{layer}.conv.weight"], weights[f"{layer}.conv.bias"]
        # The bias is counted in the same steps: for a channel with tiny weights there would be too many.
        smallest_scales = np.abs(bias) / (_MOST_STEPS * scale.scale)
        rounded, scales = quantized_weight(weight, 0, LARGEST_WEIGHT, smallest_scales)
        kernel = self.weight(rounded, scales / channel_steps, 0, f"{layer}_weight")
        steps = scales * scale.scale
        added = [
            self.constant(f"{layer}_bias_steps", np.rint(bias / steps), np.int32),
            self.constant(f"{layer}_bias_scale", steps / channel_steps),
            self.constant(f"{layer}_bias_zero", np.zeros(len(steps)), np.int32),
        ]
        inputs = [tensor, kernel, self.add("DequantizeLinear", added, f"{layer}_bias", axis=0)]
        return self.add("Conv", inputs, layer, kernel_shape=weight.shape[2:], strides=[stride, stride])

    def model(
        self, images: tuple[int, list[int]], outputs: Mapping[str, list[int]], batch: int | None
    ) -> onnx.ModelProto:
        """Return the model, given type and shape of an image and the shape of each output, all without the batch."""
        first: int | str = "batch" if batch is None else batch
        size = sum(len(tensor.raw_data) for tensor in self._constants.values())
        if size > LARGEST_BYTES:
            raise ValueError(f"the network has {size:,} bytes of weights, an ONNX file holds at most {LARGEST_BYTES:,}")
        return helper.make_model(
            helper.make_graph(
                self._nodes,
                "CapsNet",
                [helper.make_tensor_value_info("images", images[0], [first, *images[1]])],
                [helper.make_tensor_value_info(k, TensorProto.FLOAT, [first, *v]) for k, v in outputs.items()],
                list(self._constants.values()),
            ),
            producer_name=PRODUCER,
            producer_version=__version__,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR_VERSION,
        )

    def _scale(self, scale: Scale, name: str) -> list[str]:
        return [self.constant(f"{name}_scale", scale.scale), self.constant(f"{name}_zero", scale.zero, np.uint8)]


def _lower_capsules(graph: Graph, config: CapsNetConfig, weights: Weights, ranges: Ranges | None) -> str:
    """Add the layers from ``images (b c h w)`` to lower capsules ``(b i d)``."""
    maps, stride = _maps(graph, config, weights, ranges), config.primary_stride
    if ranges is None:
        weight, bias = weights["primary.conv.weight"], weights["primary.conv.bias"]
        channels = graph.convolution(maps, weight, bias, "primary", stride)  # (b, types·d, y, x)
        by_position = graph.add("Transpose", [channels], "by_position", perm=[0, 2, 3, 1])  # (b, y, x, types·d)
    else:
        scale, steps = ranges.maps_scale, ranges.channel_steps
        maps = graph.dequantized(graph.quantized(maps, scale, "maps_input"), scale, "maps_input")
        channels = graph.quantized_convolution(maps, weights, "primary", stride, scale, steps)
        channels = graph.quantized(channels, Scale(np.float32(1), np.uint8(128)), "primary_result")
        by_position = graph.add("Transpose", [channels], "bytes_by_position", perm=[0, 2, 3, 1])
        inputs = [by_position, graph.constant("channel_steps", steps)]
        inputs.append(graph.constant("channel_zeros", np.full(len(steps), 128), np.uint8))
        by_position = graph.add("DequantizeLinear", inputs, "by_position", axis=3)
    shape = (0, config.lower_capsules, config.lower_dimension)
    return graph.squash(graph.reshape(by_position, shape, "unsquashed"), "lower")  # (b, i, d)


def _maps(graph: Graph, config: CapsNetConfig, weights: Weights, ranges: Ranges | None) -> str:
    """Add the stem, from ``images (b c h w)`` to its maps after ReLU."""
    if ranges is not None and rounds_stem(config):
        images = graph.dequantized("images", PIXELS, "scaled")
        steps = np.ones(config.stem_channels, np.float32)
        maps = graph.quantized_convolution(images, weights, "stem", config.stem_stride, PIXELS, steps)
        return graph.add("Relu", [maps], "maps")
    numbers = graph.add("Cast", ["images"], "numbers", to=TensorProto.FLOAT)
    images = graph.add("Div", [numbers, graph.constant("white", 255)], "scaled")
    if config.standardize:
        images = _standardized(graph, images, config.channels * config.height * config.width)
    for number, (_, _, step) in enumerate(config.stem_layers):
        weight, bias = (weights[f"stem.layers.{number}.0.{name}"] for name in ("weight", "bias"))
        images = graph.add("Relu", [graph.convolution(images, weight, bias, f"stem_{number}", step)], f"maps_{number}")
    weight, bias = weights["stem.conv.weight"], weights["stem.conv.bias"]
    return graph.add("Relu", [graph.convolution(images, weight, bias, "stem", config.stem_stride)], "maps")


def _standardized(graph: Graph, images: str, pixels: int) -> str:
    mean = graph.add("ReduceMean", [images, graph.axes(1, 2, 3)], "mean", keepdims=1)  # (b, 1, 1, 1)
    centered = graph.add("Sub", [images, mean], "centered")
    squared = graph.add("Mul", [centered, centered], "centered_squared")
    variance = graph.add("ReduceMean", [squared, graph.axes(1, 2, 3)], "variance", keepdims=1)  # (b, 1, 1, 1)
    bounded = graph.add("Max", [variance, graph.constant("least_variance", 1 / pixels)], "bounded_variance")
    return graph.add("Div", [centered, graph.add("Sqrt", [bounded], "deviation")], "standardized")


def has_own_graph(config: CapsNetConfig) -> bool:
    """Return whether `network_graph` supports a network: its normalization needs ONNX nodes."""
    return config.routing == "dynamic" and _normalization(config).onnx(Graph(), "logits", "coefficients") is not None


def _normalization(config: CapsNetConfig) -> Normalization:
    return get_normalization(config.normalization, lower=config.lower, upper=config.upper)


def _biased(graph: Graph, sums: str, weights: Weights, shape: tuple[int, ...]) -> str:
    """Add the bias of the class capsules to sums, if there is one."""
    bias = weights.get("routing.bias")
    if bias is None:
        return sums
    return graph.add("Add", [sums, graph.constant("class_bias", bias.reshape(shape))], f"{sums}_biased")


def _folded(graph: Graph, config: CapsNetConfig, weights: Weights, lower: str, ranges: Ranges | None) -> str:
    """Add the folded layer from lower capsules ``(b i d)`` to class capsules ``(b j e)``."""
    flat = graph.reshape(lower, (0, -1), "flat")  # (b, i·d)
    weight = weights["routing.weight"]
    if ranges is None:
        folded = graph.constant("folded_weight", weight)
    else:
        flat = graph.dequantized(graph.quantized(flat, CAPSULES, "capsules_input"), CAPSULES, "capsules_input")
        folded = graph.weight(*quantized_weight(weight, 1, LARGEST_FOLDED), 1, "folded_weight")
    summed = graph.add("MatMul", [flat, folded], "routing")  # (b, j·e)
    shape = (config.classes, config.class_dimension)
    sums = graph.reshape(summed, (0, *shape), "sums")  # (b, j, e)
    return graph.squash(_biased(graph, sums, weights, shape), "capsules")


def _routed(graph: Graph, config: CapsNetConfig, weights: Weights, lower: str) -> str:
    """Add dynamic routing from lower capsules ``(b i d)`` to class capsules ``(b j e)``, in float32."""
    i, d, j, e = weights["routing.weight"].shape
    normalization = _normalization(config)
    weight = graph.constant("weight", weights["routing.weight"].reshape(i, d, j * e))
    by_capsule = graph.add("Transpose", [lower], "by_capsule", perm=[1, 0, 2])  # (i, b, d)
    products = graph.add("MatMul", [by_capsule, weight], "routing")  # (i, b, j·e)
    by_class = graph.reshape(products, (i, -1, j, e), "votes_by_capsule")  # (i, b, j, e)
    votes = graph.add("Transpose", [by_class], "votes", perm=[1, 2, 0, 3])  # (b, j, i, e)
    summed = graph.add("ReduceSum", [votes, graph.axes(2)], "votes_sum", keepdims=1)  # (b, j, 1, e)
    start = graph.constant("start", normalization.start(j))
    sums = _biased(graph, graph.add("Mul", [summed, start], "sums_1"), weights, (j, 1, e))
    capsules = graph.squash(sums, "capsules_1")  # (b, j, 1, e)
    logits = ""
    for t in range(2, config.iterations + 1):
        column = graph.reshape(capsules, (0, j, e, 1), f"upright_{t}")  # (b, j, e, 1)
        agreement = graph.add("MatMul", [votes, column], f"agreement_{t}")  # (b, j, i, 1)
        agreement = graph.reshape(agreement, (0, j, 1, i), f"agreement_row_{t}")  # (b, j, 1, i)
        logits = graph.add("Add", [logits, agreement], f"logits_{t}") if logits else agreement
        coefficients = normalization.onnx(graph, logits, f"coefficients_{t}")  # (b, j, 1, i)
        assert coefficients is not None  # checked by `has_own_graph`
        sums = graph.add("MatMul", [coefficients, votes], f"sums_{t}")  # (b, j, 1, e)
        capsules = graph.squash(_biased(graph, sums, weights, (j, 1, e)), f"capsules_{t}")  # (b, j, 1, e)
    return graph.reshape(capsules, (0, j, e), "capsules")
