"""The ONNX graph against the paper's procedures, loop by loop, and against PyTorch; int8 against float32."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tests.reference.network import network as reference_network
from tests.runtime.conftest import networks, small_config, some_images

from fastcaps.exporting import graph
from fastcaps.exporting.exporter import calibrated
from fastcaps.exporting.graph import network_graph
from fastcaps.exporting.quantize import CAPSULES, LARGEST_FOLDED, LARGEST_WEIGHT, PIXELS, quantized_weight, rounds_stem


def arrays(network):
    return {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}


def answers(model, images):
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["capsules", "lengths"], {"images": images.numpy()})


def restored(weight, axis, largest):
    steps, scales = quantized_weight(weight.astype(np.float32), axis, largest)
    shape = [1] * weight.ndim
    shape[axis] = -1
    return steps * scales.astype(np.float64).reshape(shape), scales.astype(np.float64)


CONFIGS = [
    small_config(),
    small_config(channels=3, standardize=True, stem_stride=2),
    small_config(normalization="softmax", iterations=2),
    small_config(iterations=1, primary_stride=1),
    small_config(iterations=4, lower=-0.5, upper=2.0),
    small_config(normalization="leaky_softmax", class_bias=True),
    small_config(height=17, width=16, stem_layers=((3, 3, 1), (4, 3, 2)), stem_kernel=2, class_bias=True),
]


def different(config):
    return f"{config.channels} channels, {config.normalization}, {config.iterations} iterations"


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["fast", "dynamic"])
@pytest.mark.parametrize("config", CONFIGS, ids=different)
def test_it_follows_the_paper_loop_by_loop(config, routing):
    network = networks(config)[routing]
    images = some_images(config, 3)
    images[0] = 7  # a flat one
    capsules, lengths = answers(network_graph(config, arrays(network), routing), images)
    double = {name: array.astype(np.float64) for name, array in arrays(network).items()}
    for k in range(3):
        expected = reference_network(images[k].numpy(), double, config.to_dict(), routing)
        np.testing.assert_allclose(capsules[k], expected, atol=1e-5)
        np.testing.assert_allclose(lengths[k], np.linalg.norm(expected, axis=-1), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["fast", "dynamic"])
@pytest.mark.parametrize("config", CONFIGS, ids=different)
def test_int8_rounds_what_it_says_and_nothing_else(config, routing):
    """The same loops, with weights and activations rounded to the steps of their ranges."""
    network = networks(config)[routing]
    images = some_images(config, 32)
    ranges = calibrated(network, images.split(16))
    model = network_graph(config, arrays(network), routing, ranges)
    capsules, _ = answers(model, images[:4])
    weights = {name: array.astype(np.float64) for name, array in arrays(network).items()}
    inputs = {"primary": ranges.maps_scale} | ({"stem": PIXELS} if rounds_stem(config) else {})
    for layer, scale in inputs.items():
        weights[f"{layer}.conv.weight"], scales = restored(weights[f"{layer}.conv.weight"], 0, LARGEST_WEIGHT)
        # Biases are rounded to the steps of what they are added to.
        steps = scales * float(scale.scale)
        weights[f"{layer}.conv.bias"] = np.rint(weights[f"{layer}.conv.bias"] / steps) * steps
    if routing == "fast":
        weights["routing.weight"], _ = restored(weights["routing.weight"], 1, LARGEST_FOLDED)

    def rounded(name, values):
        if name == "channels":
            steps = ranges.channel_steps.astype(np.float64).reshape(-1, 1, 1)
            return steps * np.clip(np.rint(values / steps), -128, 127)
        scale, zero = ranges.maps_scale if name == "maps" else CAPSULES
        return float(scale) * (np.clip(np.rint(values / float(scale)) + int(zero), 0, 255) - int(zero))

    different = 0
    for k in range(4):
        expected = reference_network(images[k].numpy(), weights, config.to_dict(), routing, rounded)
        different += not np.allclose(capsules[k], expected, atol=2e-4)
    # What lies in the middle between two steps may be rounded to either.
    assert different <= 1
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    assert {name for name in ("stem", "primary") if f"{name}_weight_bytes" in tensors} == set(inputs)
    assert tensors["primary_weight_bytes"].data_type == onnx.TensorProto.INT8


def test_a_channel_of_next_to_no_weights_keeps_its_bias(fast):
    """In steps of such weights the bias would not fit into 32 bits."""
    with torch.no_grad():
        fast.primary.conv.weight[0] = 1e-12
        fast.primary.conv.bias[0] = 0.7
    images = some_images(fast.config, 32)
    ranges = calibrated(fast, [images])
    _, exact = answers(network_graph(fast.config, arrays(fast), "fast"), images)
    _, rounded = answers(network_graph(fast.config, arrays(fast), "fast", ranges), images)
    np.testing.assert_allclose(rounded, exact, atol=0.03)


@pytest.mark.parametrize("routing", ["fast", "dynamic"])
def test_black_images_give_numbers(routing):
    config = small_config(standardize=True)
    network = networks(config)[routing]
    _, lengths = answers(network_graph(config, arrays(network), routing), torch.zeros(2, 1, 11, 10, dtype=torch.uint8))
    assert np.isfinite(lengths).all()


def test_what_doesnt_fit_into_a_file_is_refused(fast, monkeypatch):
    monkeypatch.setattr(graph, "LARGEST_BYTES", 1000)
    with pytest.raises(ValueError, match="the network has [0-9,]+ bytes of weights, an ONNX file holds at most 1,000"):
        network_graph(fast.config, arrays(fast), "fast")


@pytest.mark.parametrize(("value", "dtype"), [([1, 2], np.float32), ([[1], [3]], np.float32), ([1, 3], np.int32)])
def test_a_constant_of_another_value_shape_or_type_needs_another_name(value, dtype):
    builder = graph.Graph()
    assert builder.constant("steps", [1, 3]) == builder.constant("steps", np.array([1.0, 3.0])) == "steps"
    with pytest.raises(ValueError, match="the graph has a constant 'steps' of another value: choose another name"):
        builder.constant("steps", value, dtype)


def test_constants_of_the_same_bytes_and_another_type_clash():
    builder = graph.Graph()
    builder.constant("zero", 0, np.float32)
    with pytest.raises(ValueError, match="the graph has a constant 'zero' of another value"):
        builder.constant("zero", 0, np.int32)
