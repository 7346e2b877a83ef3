"""torch.compile and torch.export on dynamic and folded networks, for any size of the batch."""

import pytest
import torch
from torch import nn

import fastcaps
from fastcaps import nn as caps


def two_layers():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        caps.PrimaryCapsules(6, types=3, dim=4, kernel_size=3),
        caps.CapsuleLayer(27, 4, 5, 6, routing=caps.DynamicRouting(2, caps.Softmax())),
        caps.CapsuleLayer(5, 6, 3, 8, routing=caps.DynamicRouting(2), bias=True),
    ).eval()


def capsnet():
    config = fastcaps.CapsNetConfig.for_images(
        *(12, 12, 1), classes=3, stem_channels=6, stem_kernel=3, capsule_types=3, lower_dimension=4, primary_kernel=3,
        iterations=2,
    )  # fmt: skip
    return fastcaps.CapsNet(config).eval()


NETWORKS = {
    "CapsNet": capsnet,
    "FastCapsNet": lambda: fastcaps.fold(capsnet(), "uniform"),
    "tree": two_layers,
    "folded tree": lambda: fastcaps.fold(two_layers(), "uniform"),
}


def capsules(output):
    return getattr(output, "capsules", output)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_export_with_any_batch(name):
    network, images = NETWORKS[name](), torch.rand(4, 1, 12, 12)
    program = torch.export.export(network, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    for count in (1, 7, 70):  # more than one piece of a CapsNet
        others = torch.rand(count, 1, 12, 12)
        torch.testing.assert_close(capsules(program(others)), capsules(network(others)), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_compile(name):
    network, images = NETWORKS[name](), torch.rand(4, 1, 12, 12)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(capsules(compiled(images)), capsules(network(images)), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_a_compiled_network_trains():
    network, images = capsnet(), torch.rand(4, 1, 12, 12)
    lengths = torch.compile(network, backend="aot_eager")(images).lengths
    lengths.square().sum().backward()
    compiled = [parameter.grad.clone() for parameter in network.routing.parameters()]
    network.zero_grad()
    network(images).lengths.square().sum().backward()
    for one, other in zip(compiled, network.routing.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad, atol=1e-5, rtol=1e-3)


def operators(graph):
    """Operators of fastcaps in a graph."""
    return {str(node.target) for node in graph.nodes if "fastcaps" in str(node.target)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CapsNet", "FastCapsNet"])
def test_compilers_get_the_fast_convolution_and_routing_and_exporters_do_not(name):
    network, images, graphs = NETWORKS[name](), torch.rand(4, 1, 12, 12), []

    def keep(module, inputs):
        graphs.append(module.graph)
        return module.forward

    before = capsules(network(images))
    with torch.no_grad():
        compiled = torch.compile(network, backend=keep, fullgraph=True)(images)
    torch.testing.assert_close(capsules(compiled), before, atol=1e-5, rtol=1e-4)
    compiled = set.union(*map(operators, graphs))
    assert any("conv2d" in operator for operator in compiled)
    assert any("route_capsules" in operator for operator in compiled) == (name == "CapsNet")
    dynamic = ({0: torch.export.Dim("batch")},)
    assert not operators(torch.export.export(network, (images,), dynamic_shapes=dynamic).graph)


@pytest.mark.slow
def test_the_gradient_of_the_compiled_convolution():
    network, images = capsnet(), torch.rand(4, 1, 12, 12)
    weight = network.primary.conv.weight
    torch.compile(network, backend="aot_eager")(images).lengths.square().sum().backward()
    compiled, weight.grad = weight.grad, None
    network(images).lengths.square().sum().backward()
    torch.testing.assert_close(compiled, weight.grad, atol=1e-6, rtol=1e-3)
