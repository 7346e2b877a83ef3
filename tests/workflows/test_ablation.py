"""Comparing variants of the master matrix of a run."""

import json

import pytest

from fastcaps import workflows


@pytest.mark.slow
def test_variants_from_python(run, data, tmp_path):
    result = workflows.ablate(
        run,
        tmp_path / "out",
        filters={"none": []},
        methods=["pooled", "columns"],
        iterations=[2, "final"],
        limit=100,
        result_file=tmp_path / "result.json",
        data=data,
    )
    assert [(trial.method, trial.iteration) for trial in result.trials] == [
        ("pooled", 2),
        ("columns", 2),
        ("pooled", 4),
        ("columns", 4),
    ]
    content = (tmp_path / "out" / "ablation.json").read_bytes()
    assert content == (tmp_path / "result.json").read_bytes()
    assert json.loads(content) == json.loads(json.dumps(result.to_dict()))
    (table,) = result.tables()
    assert len(table.rows) == 5
    assert result.sentences()[-1].startswith("Best on the held-out images: ")
