"""Graphs with a valid seal that take all memory, never end, or are no network: refused before they are run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fastcaps import runtime
from fastcaps.runtime import file

FILE = Path(__file__).parent.parent / "files" / "v0.1" / "run-max_min" / "fast.onnx"


def node(model: Any, operator: str) -> Any:
    return next(entry for entry in model.graph.node if entry.op_type == operator)


def weight(model: Any, name: str) -> Any:
    return next(entry for entry in model.graph.initializer if entry.name == name)


def set_operator(model: Any) -> None:
    node(model, "Relu").op_type = "Expand"


def set_domain(model: Any) -> None:
    node(model, "Relu").domain = "com.example"


def add_padding(model: Any) -> None:
    node(model, "Conv").attribute.append(helper.make_attribute("pads", [10**6] * 4))


def add_loop(model: Any) -> None:
    body = helper.make_graph([], "body", [], [])
    model.graph.node.append(helper.make_node("Loop", [], ["x"], body=body))


def add_function(model: Any) -> None:
    opset = [helper.make_opsetid("", 18)]
    model.functions.append(helper.make_function("", "F", ["a"], ["b"], [helper.make_node("Exp", ["a"], ["b"])], opset))


def add_outer_product(model: Any) -> None:
    """Two small weights, whose sum is large."""
    for name, shape in (("long", (4000, 1)), ("wide", (1, 4000))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    model.graph.node.append(helper.make_node("Add", ["long", "wide"], ["large"]))


def add_weights(model: Any) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.ones(10**6, np.float32), "many"))


def lie_about_shape(model: Any) -> None:
    weight(model, "stem_weight").dims[0] = 10**9


def add_nodes(model: Any) -> None:
    model.graph.node.extend(helper.make_node("Exp", ["images"], [f"x{k}"]) for k in range(1000))


def repeat_result(model: Any) -> None:
    model.graph.node.append(model.graph.node[0])


def disorder(model: Any) -> None:
    model.graph.node.insert(0, model.graph.node[-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_operator, "it has the operator 'Expand'"),
        (set_domain, "it has an operator of 'com.example', expected only those of ONNX"),
        (add_padding, "a convolution has padding, groups or dilation"),
        (add_loop, "it has loops or branches"),
        (add_function, "it has functions or training steps of its own"),
        (add_outer_product, r"the result of Add has shape \(4000, 4000\), which is more than it needs"),
        (add_weights, "it has many more weights than its configuration"),
        (lie_about_shape, "weight 'stem_weight' has .* bytes for the shape"),
        (add_nodes, "it has 1,021 nodes, expected at most"),
        (repeat_result, "two nodes have the result 'numbers'"),
        (disorder, "ReduceL2 takes 'capsules', which nothing before it gives"),
    ],
)
def test_a_sealed_file_with_another_graph_is_refused(
    change: Callable[[Any], None], message: str, tmp_path: Path
) -> None:
    model = onnx.load(FILE)
    metadata = [entry for entry in model.metadata_props if entry.key == file.ABOUT]
    del model.metadata_props[:]
    model.metadata_props.extend(metadata)
    path = tmp_path / "model.onnx"
    path.write_bytes(file.sealed(model.SerializeToString()))
    runtime.load(path)  # as it was
    change(model)
    path.write_bytes(file.sealed(model.SerializeToString()))
    with pytest.raises(
        ValueError, match=f"model.onnx is not what fastcaps.export writes: {message}.*; export it again"
    ):
        runtime.load(path)


def test_scores_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    model = onnx.load(FILE)
    tensor = weight(model, "folded_weight")
    values = numpy_helper.to_array(tensor) * np.float32(np.nan)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    metadata = [entry for entry in model.metadata_props if entry.key == file.ABOUT]
    del model.metadata_props[:]
    model.metadata_props.extend(metadata)
    (tmp_path / "model.onnx").write_bytes(file.sealed(model.SerializeToString()))
    predictor = runtime.load(tmp_path / "model.onnx")
    with pytest.raises(ValueError, match="image 0 of the batch gives scores that are not finite: expected finite inp"):
        predictor.predict(np.zeros((2, *predictor.input_shape), np.uint8))
    for shape in ((), (3,)):
        with pytest.raises(ValueError, match=r"images have shape \(.*\), expected \(batch, "):
            predictor.predict(np.zeros(shape, np.uint8))
