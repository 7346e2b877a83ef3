"""The card of a network in the package, from its ``run.json`` and the files beside it."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from fastcaps import bundled
from fastcaps._result import Table
from fastcaps.analysis.results import MEANINGS
from fastcaps.analysis.statistics import proportion_interval
from fastcaps.reproduction.paper import NORMALIZATIONS, TITLES
from fastcaps.runtime import load
from fastcaps.training import Run
from fastcaps.training.description import RunDescription

# What a network of these images is good for, and where it fails.
_USES = {
    "mnist": (
        "Single handwritten digits as MNIST has them: one digit, light on dark, in the middle, about 20 pixels high\n"
        "in 28×28. `fastcaps predict` inverts dark-on-light pictures and resizes them, but finds no digit in a scene.",
        "An image that is not a digit gets a class, too.",
    ),
    "fashion_mnist": (
        "Single pieces of clothing as Fashion-MNIST has them: 28×28, gray, light on dark, from the front.",
        "Photographs of people wearing them are something else.",
    ),
    "cifar10": (
        "Small color photographs of one of ten things, as CIFAR-10 has them.",
        "Convolutional networks reach far more on these images: this is not one to build a product on.",
    ),
}


# What routings mean for a network that was trained with fixed coefficients.
_MEANINGS_FIXED = {
    "dynamic": "the routing loop, added to weights that were trained without it",
    "fast": "as trained: coefficients folded into the weights, no loop",
}

# Description of the decay of the learning rate, unless it is the default.
_DECAYS = {"exponential": "", "cosine": "along a cosine ", "linear": "linearly "}


def _summary(about: RunDescription, network: str, rule: str) -> str:
    """Return the first paragraph."""
    small = about.more.get("compression")
    if small is None and about.fixed_coefficients:
        return f"{network}.\nTrained with fixed coefficients, so it needs no routing: the row *fast* is this network."
    if small is None:
        return (
            f"{network}, {about.config.iterations} iterations of\n{rule} routing, and master coefficients that "
            "replace them."
        )
    types, maps = small["size"]["types"], small["size"]["maps"]
    return (
        f"{network}.\nCompressed from `{small['run']}` to {types} capsule types and {maps} feature maps "
        "(`fastcaps compress`): folded, without routing. The row\n*fast* is this network; its coefficients are all 1."
    )


def card(folder: Path) -> str:
    """Return the card as Markdown."""
    about = Run(folder).about
    settings = about.settings
    network = bundled.describe(folder.name)
    data, config, versions = about.data, about.config, about.versions or {}
    title, rule = TITLES.get(data.name, data.name), NORMALIZATIONS[config.normalization]
    use, limit = _USES.get(data.name, (f"Images as {title} has them.", "Other images are another matter."))
    purpose = "measure what is lost" if "compression" in about.more else "choose the epoch"
    held_out = f", {data.validation:,} held out to {purpose}" if data.validation else ""
    accumulated = "" if about.fixed_coefficients else ", then accumulated over the training images"
    size = f"{config.height}×{config.width}×{config.channels}"
    elsewhere = _elsewhere(about.more.get("embedded_digits"))
    origins = {"original": "the original files", "generated": "generated images, not those of the paper"}
    return f"""# {folder.name}

{_summary(about, f"A capsule network for {title}: images of {size}, {config.classes} classes", rule)}

```sh
fastcaps predict {folder.name} picture.png
fastcaps evaluate {folder.name}
```

## Accuracy

On the {data.test:,} test images, of the weights as they are stored, rounded to half precision:

{Table("", ["routing", "", "accuracy", "95 %"], _accuracies(network, about)).to_markdown()}{elsewhere}
## Training

- {title}, {origins.get(data.kind, "a folder of images")}: {data.train:,} training images{held_out}.
- {settings.epochs} epochs, batches of {settings.batch_size}, seed {settings.seed}, Adam at \
{settings.learning_rate:g}, decayed {_DECAYS[settings.decay]}to {settings.learning_rate * settings.final_rate:g}.
- {(about.seconds or 0) / 60:.0f} minutes on {about.threads} threads; \
{", ".join(f"{name} {number}" for name, number in versions.items())}.
- Made by `{about.command}`, then rounded{accumulated}.

## Use and limits

{use}

{limit}

A capsule's length is no calibrated probability. Nothing else is known about images from elsewhere.

## Files

- `model/`: the weights, SHA-256 `{network.weights_sha256}`
- `master.safetensors`: the master coefficients, and the sums they are made of
- `run.json`: settings, data with hashes, versions, accuracies
{_onnx(network)}
License of the weights: Apache-2.0, as fastcaps. The training images are not in here and have terms of their own.
"""


def _accuracies(network: bundled.BundledNetwork, about: RunDescription) -> list[list[str]]:
    rows = []
    meanings = {**MEANINGS, **(_MEANINGS_FIXED if about.fixed_coefficients else {})}
    for routing, accuracy in network.accuracy.items():
        low, high = proportion_interval(round(accuracy * network.images), network.images)
        rows.append([routing, meanings[routing], f"{accuracy:.2%}", f"{low:.2%} – {high:.2%}"])
    return rows


def _elsewhere(accuracies: Mapping[str, float] | None) -> str:
    if accuracies is None:
        return ""
    dynamic, fast = accuracies["dynamic"], accuracies["fast"]
    return f"""
On scikit-learn's 360 test digits, of other hands, another scanner and enlarged from 8×8, without any training on them:
dynamic {dynamic:.2%}, fast {fast:.2%}.
"""


def _onnx(network: bundled.BundledNetwork) -> str:
    if not network.onnx:
        return ""
    file = Path(network.onnx)
    measured = load(file).about.accuracy
    assert measured is not None
    return (
        f"- `{bundled.ONNX}`: the folded network in int8, for use without PyTorch: {measured.accuracy:.2%}, "
        f"{measured.changed} of {measured.images:,}\n"
        f"  answers differ from the network's in float32; SHA-256 `{hashlib.sha256(file.read_bytes()).hexdigest()}`\n"
    )
