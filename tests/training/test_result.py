"""A run as one JSON."""

from dataclasses import replace
from typing import Any

import pytest

from fastcaps.training.description import InitialWeights, RunDescription
from fastcaps.training.result import public

LEAST: dict[str, Any] = {"data": {"name": "a", "call": None, "fingerprint": "b"}, "settings": {}, "config": {}}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("fastcaps train --data mnist --data-dir '/some where/data' --out runs/mnist", "--data mnist --out runs/mnist"),
        ("fastcaps train --data mnist --data-dir=/data --out runs/mnist", "--data mnist --out runs/mnist"),
        ("fastcaps train --data mnist --out runs/mnist", "--data mnist --out runs/mnist"),
        ("fastcaps train --data /home/me/own --out=/home/me/runs/x", "--data own --out=x"),
        ("/home/me/bin/fastcaps train --data 'C:\\me\\own' --init ~/runs/x", "--data own --init x"),
        ("fastcaps train --data mnist --data-dir", "--data mnist"),
        ("fastcaps train --data '/home/me/own", "--data own"),
    ],
)
def test_the_command_keeps_no_folder_of_the_machine(command, expected):
    about = RunDescription.from_dict({**LEAST, "command": command, "own": 1})
    assert public(about) == replace(about, command=f"fastcaps train {expected}")


def test_neither_call_nor_initial_run_keep_a_folder_of_the_machine():
    call = {"name_or_folder": "/home/me/own", "seed": 3, "photographs": "pictures/sea"}
    init = {"run": "/home/me/runs/x", "weights": "0"}
    about = public(RunDescription.from_dict({**LEAST, "data": {**LEAST["data"], "call": call}, "init": init}))
    assert about.command is None
    assert about.data.call == {**call, "name_or_folder": "own"}
    assert about.init == InitialWeights("x", "0")
