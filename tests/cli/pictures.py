"""A run on small pictures, for the tests of export and predict."""

import numpy as np
import pytest
from PIL import Image
from tests.cli.commands import invoke


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on pictures of three gray patterns, light on dark, of 20×24."""
    random = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("deploy")
    for part, count in (("train", 8), ("test", 3)):
        for number, name in enumerate(("left", "middle", "right")):
            (folder / "photos" / part / name).mkdir(parents=True)
            for k in range(count):
                pixels = random.integers(0, 40, (20, 24))
                pixels[4:16, 3 + 7 * number : 7 + 7 * number] += 200
                Image.fromarray(pixels.astype(np.uint8)).save(folder / "photos" / part / name / f"{k}.png")
    network = ["stem_channels=8", "capsule_types=2", "decoder=[16]", "stem_kernel=5", "primary_kernel=5"]
    options = [word for change in network for word in ("--set", change)]
    options += ["--epochs", "12", "--batch-size", "8", "--warmup", "2", "--threads", "1", "--learning-rate", "0.005"]
    invoke("train", "--data", folder / "photos", "--out", folder / "run", *options)
    invoke("accumulate", folder / "run", "--threads", 1)
    return folder / "run"
