"""A run as one JSON."""

import pytest

from fastcaps.training.result import public


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("fastcaps train --data mnist --data-dir '/some where/data' --out runs/mnist", "--data mnist --out runs/mnist"),
        ("fastcaps train --data mnist --data-dir=/data --out runs/mnist", "--data mnist --out runs/mnist"),
        ("fastcaps train --data mnist --out runs/mnist", "--data mnist --out runs/mnist"),
    ],
)
def test_the_command_keeps_no_folder_of_data(command, kept):
    assert public({"command": command, "seed": 1}) == {"command": f"fastcaps train {kept}", "seed": 1}
