"""What else one could run: the network the way public implementations write it, and Sabour's convolutional baseline."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from fastcaps.functional import fast_routing, max_min, prediction_vectors, squash
from fastcaps.nn import CapsNet, CapsNetConfig
from fastcaps.nn.layers import standardized


def plain_routing(
    votes: Tensor, iterations: int = 3, normalization: str = "max_min", lower: float = 0.0, upper: float = 1.0
) -> Tensor:
    """Votes ``(b i j e)`` to capsules ``(b j e)`` by dynamic routing: einsum, and autograd through the loop."""
    b, i, j, _ = votes.shape
    logits = votes.new_zeros(b, i, j)
    coefficients = votes.new_full((b, i, j), 1.0 if normalization == "max_min" else 1 / j)
    for iteration in range(iterations):
        capsules = squash(torch.einsum("bij,bije->bje", coefficients, votes))
        if iteration < iterations - 1:
            logits = logits + torch.einsum("bije,bje->bij", votes, capsules)
            coefficients = max_min(logits, lower, upper) if normalization == "max_min" else logits.softmax(-1)
    return capsules


class PlainCapsNet(nn.Module):
    """A network's weights as public implementations use them: `nn.Conv2d`, and all votes.

    With coefficients ``(i j)`` votes are weighted by these, which is the paper's Fast Routing Procedure to the letter;
    without, they are routed dynamically.
    """

    def __init__(self, model: CapsNet, coefficients: Tensor | None = None) -> None:
        super().__init__()
        self.standardize = model.config.standardize
        self.stem = nn.Sequential(model.stem.conv, nn.ReLU())
        self.primary = _PlainPrimary(model)
        self.routing = _PlainRouting(model, coefficients)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``(b c h w)`` to class capsules ``(b j e)``."""
        if self.standardize:
            images = standardized(images)
        return cast(Tensor, self.routing(self.primary(self.stem(images))))


class _PlainPrimary(nn.Module):
    def __init__(self, model: CapsNet) -> None:
        super().__init__()
        self.conv, self.dimension = model.primary.conv, model.config.lower_dimension

    def forward(self, maps: Tensor) -> Tensor:
        channels = self.conv(maps).permute(0, 2, 3, 1)  # (b, y, x, types·d)
        return squash(channels.unflatten(3, (-1, self.dimension)).flatten(1, 3))  # (b, i, d)


class _PlainRouting(nn.Module):
    def __init__(self, model: CapsNet, coefficients: Tensor | None) -> None:
        super().__init__()
        self.weight, self.coefficients, self.config = model.routing.weight, coefficients, model.config

    def forward(self, lower: Tensor) -> Tensor:
        votes = prediction_vectors(lower, self.weight)  # (b, i, j, e)
        if self.coefficients is None:
            config = self.config
            return plain_routing(votes, config.iterations, config.normalization, config.lower, config.upper)
        return fast_routing(votes, self.coefficients)


class ConvolutionalBaseline(nn.Sequential):
    """What Sabour et al. compare with: three 5×5 convolutions of 256, 256 and 128 channels, then 328, 192, classes.

    Padded to the size of the image, which gives the 35.4 million parameters that they name for MNIST.
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
        """The same as an ONNX model, from bytes ``(b c h w)`` to ``scores (b j)``."""
        from onnx import TensorProto

        from fastcaps.runtime.graph import Graph

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
