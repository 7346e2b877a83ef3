"""Commands one after another in the processes of one job: starting processes takes longer than most commands."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch.distributed
from tests.pages import save_nothing

from fastcaps.cli import main


def run_all(plan: Sequence[tuple[Path, Sequence[list[str]]]]) -> None:
    """Run commands in this rank; for each a folder and the arguments of each rank.

    The folder gets what all ranks print (``out``, ``err``) and the exit code of each (``code-0``, …).
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", save_nothing)
        for number, (folder, of_ranks) in enumerate(plan):
            # Each command has its own part of the launcher's store, as after a restart.
            os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
            _run(folder, of_ranks[int(os.environ["RANK"])])


def _run(folder: Path, arguments: list[str]) -> None:
    """Run a command in this rank as if its process had just started."""
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.stdout, sys.stderr, sys.argv = sys.__stdout__, sys.__stderr__, ["fastcaps", *arguments]
    try:
        main()
    except SystemExit as end:
        (folder / f"code-{os.environ['RANK']}").write_text(str(end.code))
    assert sys.__stdout__ is not None
    sys.__stdout__.flush()
    if torch.distributed.is_initialized():  # after an error
        torch.distributed.destroy_process_group()
