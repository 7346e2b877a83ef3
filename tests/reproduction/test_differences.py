"""What differs between published runs, whatever version wrote them."""

import pytest
from tools.tables import load

from fastcaps.reproduction import RunResult
from fastcaps.reproduction.results import differing_settings


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # The first was written before descriptions had rotation and zoom.
        (("background_mnist-max_min-0", "background_mnist-max_min-1"), []),
        (("background_mnist-max_min-0", "rotated_mnist-max_min-0"), ["augmentation", "fingerprint"]),
        (("cifar10-20", "cifar10-cosine"), ["epochs", "decay", "final_rate", "validation"]),
    ],
)
def test_settings_that_differ(names, expected):
    assert set(differing_settings([load(RunResult, name) for name in names])) == set(expected)


def test_accuracy_on_held_out_images_if_there_are_any():
    assert load(RunResult, "cifar10-best").best_validation_accuracy == pytest.approx(0.7314)
    assert load(RunResult, "cifar10-best-24").best_validation_accuracy is None
