"""Alternatives: the network as in public implementations, and the convolutional baseline of Sabour et al."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from fastcaps.functional import MaxMin, Normalization, fast_routing, prediction_vectors, squash
from fastcaps.nn import CapsNet, CapsNetConfig
from fastcaps.nn.convolutional import standardized


def plain_routing(
    votes: Tensor,
    iterations: int = 3,
    normalization: Normalization | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Route votes ``(b i j e)`` to capsules ``(b j e)`` with einsum, and autograd through the loop."""
    b, i, j, _ = votes.shape
    normalization = MaxMin() if normalization is None else normalization
    logits = votes.new_zeros(b, i, j)
    coefficients = votes.new_full((b, i, j), normalization.start(j))
    for iteration in range(iterations):
        sums = torch.einsum("bij,bije->bje", coefficients, votes)
        capsules = squash(sums if bias is None else sums + bias)
        if iteration < iterations - 1:
            logits = logits + torch.einsum("bije,bje->bij", votes, capsules)
            coefficients = normalization(logits)
    return capsules


class PlainCapsNet(nn.Module):
    """A network as in public implementations: `nn.Conv2d`, and all votes in memory.

    With coefficients ``(i j)``, votes are weighted by them, exactly as in the paper's Fast Routing Procedure; without,
    they are routed dynamically.
    """

    def __init__(self, model: CapsNet, coefficients: Tensor | None = None) -> None:
        super().__init__()
        self.standardize = model.config.standardize
        norms = [] if model.stem.norm is None else [model.stem.norm]
        self.stem = nn.Sequential(*model.stem.layers, model.stem.conv, *norms, nn.ReLU())
        self.primary = _PlainPrimary(model)
        self.routing = _PlainRouting(model, coefficients)

    def forward(self, images: Tensor) -> Tensor:
        """Return the class capsules ``(b j e)`` of images ``(b c h w)``."""
        if self.standardize:
            images = standardized(images)
        return cast(Tensor, self.routing(self.primary(self.stem(images))))


class _PlainPrimary(nn.Module):
    def __init__(self, model: CapsNet) -> None:
        super().__init__()
        self.conv, self.dimension = model.primary.conv, model.config.lower_dimension
        self.norm = model.primary.norm or nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        channels = self.norm(self.conv(maps)).permute(0, 2, 3, 1)  # (b, y, x, types·d)
        return squash(channels.unflatten(3, (-1, self.dimension)).flatten(1, 3))  # (b, i, d)


class _PlainRouting(nn.Module):
    def __init__(self, model: CapsNet, coefficients: Tensor | None) -> None:
        super().__init__()
        self.layer, self.coefficients = model.routing, coefficients

    def forward(self, lower: Tensor) -> Tensor:
        layer, routing = self.layer, self.layer.routing
        votes = prediction_vectors(lower, layer.weight)  # (b, i, j, e)
        if self.coefficients is None:
            return plain_routing(votes, routing.iterations, routing.normalization, layer.bias)
        return fast_routing(votes, self.coefficients, bias=layer.bias)


class ConvolutionalBaseline(nn.Sequential):
    """The baseline of Sabour et al.: three 5×5 convolutions of 256, 256 and 128 channels, then 328, 192, classes.

    With padding to the size of the image it has 35.4 million parameters for MNIST, as in their paper.
    """

    def __init__(self, config: CapsNetConfig, channels: tuple[int, int, int] = (256, 256, 128)) -> None:
        layers: list[nn.Module] = []
        inputs = config.channels
        for outputs in channels:
            layers += [nn.Conv2d(inputs, outputs, 5, padding=2), nn.ReLU()]
            inputs = outputs
        layers.append(nn.Flatten())
        features = inputs * config.height * config.width
        for outputs in (328, 192):
            layers += [nn.Linear(features, outputs), nn.ReLU()]
            features = outputs
        super().__init__(*layers, nn.Linear(features, config.classes))

    def onnx(self, config: CapsNetConfig) -> Any:
        """Return the network as an ONNX model, from bytes ``(b c h w)`` to ``scores (b j)``."""
        from onnx import TensorProto

        from fastcaps.exporting.graph import Graph

        graph = Graph()
        numbers = graph.add("Cast", ["images"], "numbers", to=TensorProto.FLOAT)
        values = graph.add("Div", [numbers, graph.constant("white", 255)], "scaled")
        for number, layer in enumerate(self):
            name = f"layer_{number}"
            if isinstance(layer, nn.Conv2d | nn.Linear):
                inputs = [values, graph.constant(f"{name}_weight", layer.weight.detach().numpy())]
                inputs.append(graph.constant(f"{name}_bias", layer.bias.detach().numpy()))  # type: ignore[union-attr]
                convolution = isinstance(layer, nn.Conv2d)
                options: dict[str, Any] = {"pads": [2, 2, 2, 2]} if convolution else {"transB": 1}
                values = graph.add("Conv" if convolution else "Gemm", inputs, name, **options)
            else:
                values = graph.add("Relu" if isinstance(layer, nn.ReLU) else "Flatten", [values], name)
        values = graph.add("Identity", [values], "scores")
        shape = [config.channels, config.height, config.width]
        return graph.model((TensorProto.UINT8, shape), {values: [config.classes]}, None)
