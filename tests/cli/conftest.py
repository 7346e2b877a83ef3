"""Images as a person could have them, and commands that leave the process of the tests as it is."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def kept_memory(monkeypatch):
    """Note when a command keeps its memory; it must not happen in the process of the tests."""
    calls: list[str] = []
    monkeypatch.setattr("fastcaps.cli._common.reuse_memory", lambda: calls.append("reuse_memory"))
    return calls


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
