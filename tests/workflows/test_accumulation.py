"""Accumulating the coefficients of a run."""

import pytest
import torch

from fastcaps import MasterCoefficients, workflows
from fastcaps.master import KMeans, Similarity
from fastcaps.training import Run


@pytest.mark.slow
def test_coefficients_of_the_run_and_of_a_file(run, data, tmp_path):
    before = Run.open(run).master()
    result = workflows.accumulate(run, tmp_path / "m.st", filters=[Similarity(), KMeans()], data=data, device="cpu")
    assert result.path == tmp_path / "m.st"
    assert torch.equal(MasterCoefficients.load(result.path).values, result.coefficients.values)
    assert torch.equal(Run.open(run).master().values, before.values)
    assert int(before.counts.sum()) == 600
    (table,) = result.tables()
    assert list(table.columns) == ["class", "seen", "similarity", "kmeans"]
    assert table.rows[-1][:2] == ["all", "600"]
    assert "similarity" in repr(result)
    final = workflows.accumulate(run, tmp_path / "final.st", iteration="final", data=data)
    assert "coefficients of iteration 4 (after the last) of 600 images" in final.sentences()[-1]
    assert final.tables() == []
    assert final.to_dict() == {"master": str(final.path), **final.coefficients.summary().to_dict()}


@pytest.mark.slow
def test_what_is_refused(run, data, tmp_path):
    with pytest.raises(ValueError, match="device='cuda:7' can't be used here .*: try auto or cpu"):
        workflows.accumulate(run, tmp_path / "m.st", device="cuda:7", data=data)
    with pytest.raises(
        ValueError, match=r"mnist comes with fastcaps and is not written to: give another place as out="
    ):
        workflows.accumulate("mnist")
    with pytest.raises(ValueError, match="few digits, a data set made in Python.*pass the same data set as data="):
        workflows.accumulate(run, tmp_path / "m.st")
    assert not list(tmp_path.iterdir())
