"""The paper's table from Python: what is to do, and the report of what is done."""

import subprocess
import sys
from pathlib import Path

import pytest

from fastcaps import workflows
from fastcaps.reproduction import all_cells

RESULTS = Path(__file__).parent.parent.parent / "results"


def test_status_of_runs_that_are_not_begun(tmp_path):
    cells = all_cells(["mnist"], ["max_min", "softmax"], [3])
    status = workflows.reproduction_status(cells, tmp_path / "runs", tmp_path / "results", epochs=5)
    assert [(entry.run, entry.state, entry.epochs, entry.of) for entry in status.runs] == [
        ("mnist-max_min-3", "to do", 0, 5),
        ("mnist-softmax-3", "to do", 0, 5),
    ]
    assert "training left" in repr(status)


@pytest.mark.slow
def test_report_of_finished_runs_without_pytorch(tmp_path):
    script = f"""
import sys
from fastcaps import workflows
report = workflows.reproduction_report({str(RESULTS)!r}, {str(tmp_path)!r})
print(len(report.rows), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    rows, with_torch = done.stdout.split()
    assert int(rows) > 0
    assert with_torch == "False"
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "report.html"}


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"none does not exist: give the folder of the JSON files of finished runs as results="
    ):
        workflows.reproduction_report(tmp_path / "none", tmp_path)
