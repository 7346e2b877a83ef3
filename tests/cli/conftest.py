"""Images as a person could have them."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def images(tmp_path):
    """Three classes of 40×32 color images."""
    random = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 3)):
        for number, name in enumerate(("apple", "leaf", "sky")):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for k in range(count):
                pixels = random.integers(0, 120, (40, 32, 3))
                pixels[..., number] += 120
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{k}.png")
    return tmp_path / "photos"
