"""The file: what is whole is taken, anything else is refused with one error that says what it is."""

import json

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from fastcaps.runtime import file, load
from fastcaps.runtime.file import checked, sealed
from fastcaps.runtime.metadata import read_metadata


def test_any_onnx_tool_reads_it(model_file):
    model = onnx.load(model_file)
    onnx.checker.check_model(model, full_check=True)
    assert [entry.key for entry in model.metadata_props] == ["fastcaps", "fastcaps.sha256"]
    assert model.producer_name == "fastcaps"


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.onnx does not exist, expected a file from fastcaps.export"):
        load(tmp_path / "none.onnx")


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.5, 0.999])
def test_a_file_cut_short(model_file, fraction):
    content = model_file.read_bytes()
    model_file.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(
        ValueError, match=r"model.onnx (is not an ONNX file, or damaged: it can't be read|was not written by)"
    ):
        load(model_file)


def test_every_changed_byte_is_seen(model_file):
    content = model_file.read_bytes()
    for place in np.linspace(0, len(content) - 1, 60).astype(int):
        changed = bytearray(content)
        changed[place] ^= 16
        with pytest.raises(
            ValueError, match=r"model.onnx (is damaged|is not an ONNX file|was not written by|has weights)"
        ):
            checked(bytes(changed), model_file)
    middle = bytearray(content)
    middle[len(content) // 2] ^= 1  # in the weights, where only the seal sees it
    with pytest.raises(ValueError, match="model.onnx is damaged, or was changed after its export: its content doesn't"):
        checked(bytes(middle), model_file)


@given(st.binary(max_size=200))
def test_noise_is_refused(content):
    with pytest.raises(ValueError, match="noise (is not an ONNX file, or damaged|was not written by fastcaps.export)"):
        checked(content, "noise")


def test_another_tools_file(tmp_path):
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["images"], ["result"])], "g", [images], [result])
    onnx.save(helper.make_model(graph, producer_name="another"), tmp_path / "other.onnx")
    with pytest.raises(ValueError, match="other.onnx was not written by fastcaps.export, so its classes"):
        load(tmp_path / "other.onnx")
    (tmp_path / "picture.onnx").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    with pytest.raises(ValueError, match=r"picture.onnx is not an ONNX file, or damaged: it .* end \(108 bytes\)"):
        load(tmp_path / "picture.onnx")


@pytest.mark.parametrize("location", ["weights.bin", "../weights.bin", "/etc/passwd"])
def test_weights_in_another_file(model_file, location):
    model = onnx.load(model_file)
    tensor = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    (model_file.parent / "weights.bin").write_bytes(tensor.raw_data)
    onnx.external_data_helper.set_external_data(tensor, location)
    tensor.ClearField("raw_data")
    del model.metadata_props[-1]
    model_file.write_bytes(sealed(model.SerializeToString()))  # even if somebody seals it anew
    with pytest.raises(
        ValueError, match=rf"has weights in another file \({location}\), expected all in one file: export"
    ):
        load(model_file)


def test_weights_in_another_file_deep_inside(model_file):
    model = onnx.load(model_file)
    tensor = onnx.numpy_helper.from_array(np.zeros(3, np.float32), "hidden")
    onnx.external_data_helper.set_external_data(tensor, "/etc/passwd")
    tensor.ClearField("raw_data")
    inner = helper.make_graph([helper.make_node("Constant", [], ["hidden"], value=tensor)], "inner", [], [])
    condition = helper.make_node("If", ["x"], [], then_branch=inner, else_branch=inner)
    model.graph.node.append(condition)
    with pytest.raises(ValueError, match=r"has weights in another file \(/etc/passwd\)"):
        checked(model.SerializeToString(), model_file)


def test_graphs_within_graphs_without_end():
    def field(number, content):
        size, prefix = len(content), bytearray([number << 3 | 2])
        while size > 127:
            prefix.append(size & 127 | 128)
            size >>= 7
        return bytes(prefix) + bytes([size]) + content

    graph = b""
    for _ in range(2000):
        graph = field(1, field(5, field(6, graph)))  # node, attribute, graph
    with pytest.raises(ValueError, match="deep is not an ONNX file, or damaged: it can't be read to its end"):
        checked(field(2, b"fastcaps") + field(7, graph), "deep")


def resealed(path, change):
    model = onnx.load(path)
    change(model)
    del model.metadata_props[-1]
    path.write_bytes(sealed(model.SerializeToString()))


def test_a_later_format(model_file):
    resealed(model_file, lambda model: setattr(model.metadata_props[0], "value", '{"format": 3}'))
    with pytest.raises(
        ValueError, match="model.onnx has format 3, this version of fastcaps reads 1 and 2: export it with"
    ):
        load(model_file)


def test_what_onnx_runtime_cant_run(model_file):
    resealed(model_file, lambda model: setattr(model.graph.node[0], "op_type", "Unheard"))
    with pytest.raises(
        ValueError, match=r"model.onnx is not what fastcaps.export writes: it has the operator 'Unheard'"
    ):
        load(model_file)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "is damaged: expected object, got array"),
        ('{"format": 1}', "is damaged: object missing required field routing"),
        ('{"format": true}', "has format True, this version"),
        ('{"format": 1, "routing": "fast", "precision": "int8", "batch": "2", "config": {}}', "batch: expected int"),
        ('{"format": 1, "routing": "fast", "precision": "int8", "batch": 0, "config": {}}', "batch is 0, expected at"),
    ],
)
def test_metadata_that_are_damaged(model_file, about, words):
    resealed(model_file, lambda model: setattr(model.metadata_props[0], "value", about))
    with pytest.raises(ValueError, match=rf"model\.onnx.* {words}"):
        load(model_file)


def test_a_configuration_that_the_network_does_not_fit(model_file):
    def smaller(model):
        about = json.loads(model.metadata_props[0].value)
        about["config"]["height"] += 2
        model.metadata_props[0].value = json.dumps(about)

    resealed(model_file, smaller)
    with pytest.raises(ValueError, match=r"model\.onnx is not what fastcaps.export writes: the shape .* is") as error:
        load(model_file)
    assert "\n" not in str(error.value)


def test_a_field_that_others_would_read_as_another_one(model_file):
    """Readers of protobuf keep 32 bits of a key: to them this is field 7, the graph."""
    key, hidden = (7 << 3 | 2) + 2**32, b""
    while key:
        hidden += bytes([key & 127 | (128 if key > 127 else 0)])
        key >>= 7
    content = model_file.read_bytes()
    assert file.checked(content, "whole") == content
    with pytest.raises(ValueError, match=r"model.onnx is not an ONNX file, or damaged: it can't be read to its end"):
        file.checked(file.sealed(content + hidden + b"\x00"), "model.onnx")


@pytest.mark.parametrize("shape", [[], [0], [2] * 300_000, [2**27, 2]])
def test_shapes_that_no_module_has_are_refused_at_once(shape):
    about = {"format": 2, "fastcaps": "0.2.0", "routing": "fast", "precision": "float32", "batch": None, "input": ""}
    about |= {"weights_sha256": "", "input_shape": shape, "input_type": "float32"}
    about |= {"outputs": ["a"], "output_shapes": [[2]], "class_names": ["a", "b"]}
    with pytest.raises(ValueError, match=r"x.onnx is damaged: .*(expected at most 8|no sizes)") as caught:
        read_metadata(json.dumps(about), "x.onnx")
    assert len(str(caught.value)) < 300
