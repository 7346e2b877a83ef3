"""The report on a run."""

import json

import pytest
from tests.training.conftest import make_data, small_config

from fastcaps import CapsNet, workflows
from fastcaps.training import Trainer, TrainSettings


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_report_and_figures(tmp_path):
    run, data = tmp_path / "run", make_data()  # three classes, so that figures have few panels
    Trainer(CapsNet(small_config()), data, TrainSettings(epochs=1, batch_size=16), run, loggers=[]).fit()
    workflows.accumulate(run, data=data)
    result = workflows.analyze(run, tmp_path / "report", limit=24, data=data, compare=run, examples=[3])
    assert result.report is not None
    assert result.report.compared is not None
    assert (result.folder / "index.html").is_file()
    assert json.loads((result.folder / "analysis.json").read_text()) == json.loads(json.dumps(result.to_dict()))
    assert result.report.training.images == 24
    assert result.report.compared.run == str(run)
    assert result.evaluation.images == 24
    result.save_figures(file_format="svg")
    assert {path.stem for path in (result.folder / "figures").iterdir()} == set(result.report.figures)


def test_a_part_is_not_the_report_of_the_run(run, data):
    message = "made with limit= or coefficients= is not the run's own report: give a folder as out="
    with pytest.raises(ValueError, match=message):
        workflows.analyze(run, limit=10, data=data)
    with pytest.raises(ValueError, match="mnist comes with fastcaps and is not written to"):
        workflows.analyze("mnist")
