"""The graph of an exported file, checked before ONNX Runtime sees it: operators, sizes and work.

A seal is not a signature: anybody can seal a graph that takes all memory or never ends. So the graph of a `CapsNet` may
only have operators that `fastcaps.export` writes, exactly the weights of its configuration, and a limited amount of
memory and multiplications. To check this, the shape of every tensor is computed here, node by node.

Other modules, and networks with a custom normalization, may have any operators but loops, branches and functions.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastcaps._machine import free_bytes
from fastcaps.nn.config import CapsNetConfig
from fastcaps.runtime.file import fields, integers

Shape = tuple[int, ...]

# Field numbers in ONNX messages.
_GRAPH, _OPSET, _TRAINING, _FUNCTIONS = 7, 8, 20, 25
_NODE, _INITIALIZER, _INPUT, _SPARSE = 1, 5, 11, 15
_BRANCHES = (6, 11)
# Types of tensors in files, by their numbers in ONNX.
_TYPES: dict[int, str] = {1: "<f4", 2: "u1", 3: "i1", 6: "<i4", 7: "<i8"}
_LIMITS = {"nodes": 100_000, "rank": 8}
# Factor by which a graph may exceed the needs of its network.
_ROOM = 4
BUILT_IN = ("max_min", "softmax", "leaky_softmax")


@dataclass(frozen=True)
class _Node:
    operator: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: dict[str, tuple[int, ...]]


@dataclass
class _Graph:
    nodes: list[_Node] = field(default_factory=list)
    constants: dict[str, NDArray[np.generic]] = field(default_factory=dict)


class GraphError(ValueError):
    """A graph is not what `fastcaps.export` writes."""


def check_graph(content: memoryview, path: Path | str, config: CapsNetConfig | None, batch: int) -> None:
    """Raise ValueError unless the graph of a file may be run.

    Args:
        content: content of the file.
        path: its name in error messages.
        config: configuration of the network whose graph it must be; None for any module.
        batch: batch size that it is run with.
    """
    try:
        graph = _read(content, strict=config is not None)
        if config is not None:
            _Sizes(graph, config, batch).check()
    except GraphError as error:
        raise ValueError(f"{path} is not what fastcaps.export writes: {error}; export it again") from None
    except (KeyError, IndexError, ValueError, ArithmeticError, RecursionError):
        raise ValueError(f"{path} is damaged: its graph can't be read; export it again") from None


def _read(content: memoryview, *, strict: bool) -> _Graph:
    """Return the graph; without ``strict``, constants are not read."""
    graphs: list[memoryview] = []
    for number, value in fields(content):
        if number in (_TRAINING, _FUNCTIONS):
            raise GraphError("it has functions or training steps of its own")
        if number == _OPSET and (domain := _text(dict(fields(_message(value))).get(1, memoryview(b"")))):
            raise GraphError(f"it has operators of {domain!r}, expected only those of ONNX")
        if number == _GRAPH:
            graphs.append(_message(value))
    if len(graphs) != 1:
        raise GraphError(f"it has {len(graphs)} graphs, expected 1")
    result = _Graph()
    for number, value in fields(graphs[0]):
        if number == _NODE:
            result.nodes.append(_node(_message(value)))
            if len(result.nodes) > _LIMITS["nodes"]:
                raise GraphError(f"it has over {_LIMITS['nodes']:,} nodes")
        elif number == _SPARSE and strict:
            raise GraphError("it has sparse weights")
        elif number == _INITIALIZER and strict:
            name, constant = _constant(_message(value))
            if name in result.constants:
                raise GraphError(f"it has two weights called {name!r}")
            result.constants[name] = constant
    return result


def _node(message: memoryview) -> _Node:
    inputs, outputs, operators, attributes = [], [], [], {}
    for number, value in fields(message):
        if number == 1:
            inputs.append(_text(value))
        elif number == 2:
            outputs.append(_text(value))
        elif number == 4:
            operators.append(_text(value))
        elif number == 7 and len(_message(value)):
            raise GraphError(f"it has an operator of {_text(value)!r}, expected only those of ONNX")
        elif number == 5:
            name, values = _attribute(_message(value))
            if name in attributes:
                raise GraphError(f"a node has two values of {name}")
            attributes[name] = values
    if len(operators) != 1:
        raise GraphError("a node has no operator, or several")
    return _Node(operators[0], inputs, outputs, attributes)


def _attribute(message: memoryview) -> tuple[str, tuple[int, ...]]:
    """Return the name of an attribute, and its whole numbers."""
    name, numbers = "", []
    for number, value in fields(message):
        if number in _BRANCHES:
            raise GraphError("it has loops or branches")
        if number == 1:
            name = _text(value)
        elif number in (3, 8):
            numbers += integers(value)
    return name, tuple(numbers)


def _constant(message: memoryview) -> tuple[str, NDArray[np.generic]]:
    """Return name and values of a weight; raise unless it has exactly the bytes of its shape."""
    name, shape, kind, content = "", [], 0, memoryview(b"")
    for number, value in fields(message):
        if number == 1:
            shape += integers(value)
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 8:
            name = _text(value)
        elif number == 9:
            content = _message(value)
        elif number != 12:  # 12 is a comment
            raise GraphError("a weight is stored in another way than as bytes")
    if kind not in _TYPES:
        raise GraphError(f"weight {name!r} has type {kind}, expected one of {', '.join(map(str, _TYPES))}")
    dtype = np.dtype(_TYPES[kind])
    if math.prod(shape) * dtype.itemsize != len(content) or min(shape, default=1) < 0:
        raise GraphError(f"weight {name!r} has {len(content):,} bytes for the shape {tuple(shape)}")
    return name, np.frombuffer(content, dtype).reshape(shape)


class _Sizes:
    """Shapes of all tensors of a graph, and the limits of its network."""

    def __init__(self, graph: _Graph, config: CapsNetConfig, batch: int) -> None:
        self.graph = graph
        self.weights = _ROOM * config.weight_count
        self.numbers = max(self.weights, _ROOM * batch * config.image_numbers)
        self.work = _ROOM * batch * sum(config.multiply_adds(config.iterations).values())
        self.nodes = 50 + 3 * len(config.stem_layers) + 30 * config.iterations
        self.shapes: dict[str, Shape] = {"images": (batch, config.channels, config.height, config.width)}
        if 4 * self.numbers > free_bytes():
            raise GraphError(f"a batch of {batch:,} images takes more memory than there is")

    def check(self) -> None:
        """Check the nodes in order; ONNX requires them to be sorted topologically."""
        if len(self.graph.nodes) > self.nodes:
            raise GraphError(f"it has {len(self.graph.nodes):,} nodes, expected at most {self.nodes}")
        if sum(constant.size for constant in self.graph.constants.values()) > self.weights:
            raise GraphError("it has many more weights than its configuration")
        self.shapes |= {name: constant.shape for name, constant in self.graph.constants.items()}
        for node in self.graph.nodes:
            if node.operator not in _OPERATORS or len(node.outputs) != 1:
                raise GraphError(f"it has the operator {node.operator!r}")
            shape, work = _OPERATORS[node.operator](self, node)
            if len(shape) > _LIMITS["rank"] or min(shape, default=1) < 1 or math.prod(shape) > self.numbers:
                raise GraphError(f"the result of {node.operator} has shape {shape}, which is more than it needs")
            self.work -= work
            if self.work < 0:
                raise GraphError("it computes much more than its configuration needs")
            if node.outputs[0] in self.shapes:
                raise GraphError(f"two nodes have the result {node.outputs[0]!r}")
            self.shapes[node.outputs[0]] = shape

    def of(self, node: _Node) -> list[Shape]:
        """Return the shapes of a node's inputs."""
        unknown = [name for name in node.inputs if name not in self.shapes]
        if unknown:
            raise GraphError(f"{node.operator} takes {unknown[0]!r}, which nothing before it gives")
        return [self.shapes[name] for name in node.inputs]

    def values(self, name: str) -> list[int]:
        """Return the whole numbers of a constant."""
        constant = self.graph.constants.get(name)
        if constant is None or constant.dtype != np.int64 or constant.size > _LIMITS["rank"]:
            raise GraphError(f"a shape or an axis is not a constant: {name!r}")
        return [int(value) for value in constant.reshape(-1).tolist()]


_Result = tuple[Shape, int]


def _broadcast(sizes: _Sizes, node: _Node) -> _Result:
    return np.broadcast_shapes(*sizes.of(node)), 0


def _first(sizes: _Sizes, node: _Node) -> _Result:
    return sizes.of(node)[0], 0


def _transpose(sizes: _Sizes, node: _Node) -> _Result:
    (shape,) = sizes.of(node)
    order = node.attributes["perm"]
    if sorted(order) != list(range(len(shape))):
        raise GraphError(f"a shape of {len(shape)} axes is transposed by {order}")
    return tuple(shape[axis] for axis in order), 0


def _reshape(sizes: _Sizes, node: _Node) -> _Result:
    before = sizes.of(node)[0]
    after = [before[k] if size == 0 else size for k, size in enumerate(sizes.values(node.inputs[1]))]
    if after.count(-1) == 1:
        rest = math.prod(size for size in after if size != -1)
        after[after.index(-1)] = math.prod(before) // rest if rest > 0 else 0
    if math.prod(after) != math.prod(before):
        raise GraphError(f"the shape {before} is reshaped to {tuple(after)}")
    return tuple(after), 0


def _reduce(sizes: _Sizes, node: _Node) -> _Result:
    shape = sizes.of(node)[0]
    axes = {axis % len(shape) for axis in sizes.values(node.inputs[1])}
    keep = node.attributes.get("keepdims", (1,)) != (0,)
    return tuple(1 if k in axes else size for k, size in enumerate(shape) if keep or k not in axes), 0


def _convolution(sizes: _Sizes, node: _Node) -> _Result:
    (b, c, *image), (maps, channels, *kernel) = sizes.of(node)[:2]
    strides = node.attributes.get("strides", (1, 1))
    if set(node.attributes) - {"kernel_shape", "strides"} or channels != c or min(strides) < 1 or len(kernel) != 2:
        raise GraphError("a convolution has padding, groups or dilation")
    grid = [(side - k) // stride + 1 for side, k, stride in zip(image, kernel, strides, strict=True)]
    return (b, maps, *grid), b * maps * math.prod(grid) * c * math.prod(kernel)


def _product(sizes: _Sizes, node: _Node) -> _Result:
    left, right = sizes.of(node)
    if min(len(left), len(right)) < 2 or left[-1] != right[-2]:
        raise GraphError(f"shapes {left} and {right} are multiplied")
    shape = (*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])
    return shape, math.prod(shape) * left[-1]


_ELEMENTWISE = ("Add", "Div", "Equal", "Max", "Mul", "Sub", "Where")
_SAME = ("Cast", "DequantizeLinear", "Exp", "Neg", "QuantizeLinear", "Relu", "Softmax", "Sqrt")
_REDUCTIONS = ("ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum")
_OPERATORS: dict[str, Callable[[_Sizes, _Node], _Result]] = {
    **dict.fromkeys(_ELEMENTWISE, _broadcast),
    **dict.fromkeys(_SAME, _first),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    "Conv": _convolution,
    "MatMul": _product,
    "Reshape": _reshape,
    "Transpose": _transpose,
}


def _message(value: memoryview | int) -> memoryview:
    if not isinstance(value, memoryview):
        raise GraphError("a field is a number, expected more")
    return value


def _text(value: memoryview | int) -> str:
    return bytes(_message(value)).decode(errors="replace")


def metadata(content: memoryview, key: str) -> Iterator[str]:
    """Yield the values of an entry of a file's metadata."""
    for number, value in fields(content):
        if number == 14:
            entry = dict(fields(_message(value)))
            if _text(entry.get(1, memoryview(b""))) == key:
                yield bytes(_message(entry.get(2, memoryview(b"")))).decode()
