"""2,000 damaged and hostile files; ``make fuzz`` runs many more."""

import os

import pytest
from tests.hostile.supervisor import Target, run
from tests.hostile.targets import TARGETS, specimens

TRIES = 2000 // len(TARGETS) + 1


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of time and memory need processes of Unix")
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_damaged_file_is_read_or_refused_in_one_line(target: Target) -> None:
    specimens()  # here, not in every process
    summary = run(target, range(TRIES))
    assert summary.tries == TRIES
    assert not summary.failures, f"first seeds: {summary.examples}"
