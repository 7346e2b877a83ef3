"""Evaluating the network of a run."""

import json

import pytest
import torch

from fastcaps import workflows
from fastcaps.analysis.results import Evaluation


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_the_whole_test_set_goes_into_the_run_folder_and_a_part_nowhere(run, data, tmp_path):
    evaluation = workflows.evaluate(run, data=data, result_file=tmp_path / "result.json", command="made by hand")
    assert json.loads((run / "evaluation.json").read_bytes()) == json.loads(json.dumps(evaluation.to_dict()))
    assert (evaluation.images, evaluation.part, evaluation.data) == (100, "test", "few digits")
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["evaluation"]["command"] == "made by hand"
    before = (run / "evaluation.json").read_bytes()
    held_out = workflows.evaluate(str(run), part="validation", data=data)
    assert held_out.images == 100
    few = workflows.evaluate(run, tmp_path / "few", limit=20, data=data, batch_size=10)
    assert Evaluation.load(tmp_path / "few" / "evaluation.json").images == few.images == 20
    assert (run / "evaluation.json").read_bytes() == before


def test_another_network_on_the_same_images(run, data):
    evaluation = workflows.evaluate(run, compare=run, limit=40, data=data)
    assert evaluation.other is not None
    assert evaluation.other.run == str(run)
    assert evaluation.variants["other"].correct == evaluation.dynamic.correct
    assert len(evaluation.sentences()) == 2


def test_a_result_needs_the_epochs(tmp_path):
    with pytest.raises(FileNotFoundError, match="metrics.jsonl does not exist, and a result has the accuracy of every"):
        workflows.evaluate("mnist", result_file=tmp_path / "result.json")


def test_threads_are_those_of_the_call(run, data):
    before = torch.get_num_threads()
    assert workflows.evaluate(run, data=data, limit=20, threads=before + 1).threads == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ValueError, match="can't be used here"):
        workflows.evaluate(run, data=data, limit=20, threads=before + 1, device="nowhere")
    assert torch.get_num_threads() == before
