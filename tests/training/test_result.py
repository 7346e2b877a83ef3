"""A run as one JSON."""

from dataclasses import replace

import pytest

from fastcaps.training.description import RunDescription
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
    about = RunDescription.from_dict(
        {
            "command": command,
            "data": {"name": "a", "call": None, "fingerprint": "b"},
            "settings": {},
            "config": {},
            "own": 1,
        }
    )
    assert public(about) == replace(about, command=f"fastcaps train {kept}")
