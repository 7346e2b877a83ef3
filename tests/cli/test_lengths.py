"""``fastcaps lengths`` on the bundled networks."""

import json

import pytest
from tests.cli.commands import invoke

from fastcaps import workflows

pytestmark = pytest.mark.slow


def test_rows_and_result(tmp_path):
    arguments = ["lengths", "mnist", "--outside", "digits", "--compare", "small=mnist-small", "--limit", 40]
    done = invoke(*arguments, "--threads", 1, "--result", tmp_path / "lengths.json", "--json")
    result = json.loads(done.stdout)
    assert [row["network"] for row in result["rows"]] == ["dynamic", "master", "uniform", "small"]
    assert (result["images"], result["outside_images"], result["outside"]) == (40, 40, "digits")
    assert result["rows"][0]["agreement"] == 1
    assert result["rows"][1]["other_length"] > result["rows"][0]["other_length"]
    assert json.loads((tmp_path / "lengths.json").read_bytes()) == result


def test_bad_input_is_refused():
    words = " ".join(invoke("lengths", "mnist", "--compare", "small", code=2).stderr.split())
    assert "'small' is no NAME=RUN, such as distilled=runs/distilled" in words
    with pytest.raises(ValueError, match=r"the network of .*cifar10 has channels 3, expected 1 as the first one"):
        workflows.compare_lengths("mnist", "digits", runs={"other": "cifar10"}, limit=1)
    with pytest.raises(ValueError, match=r"digits has images of \(1, 28, 28\), cifar10 of \(3, 24, 24\): expected"):
        workflows.compare_lengths("cifar10", "digits", limit=1)
