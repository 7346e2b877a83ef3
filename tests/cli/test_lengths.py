"""``fastcaps lengths`` on the bundled networks."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
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


def test_bad_input_is_refused(tmp_path):
    words = " ".join(invoke("lengths", "mnist", "--compare", "small", code=2).stderr.split())
    assert "'small' is no NAME=RUN, such as distilled=runs/distilled" in words
    words = " ".join(invoke("lengths", "mnist", "--compare", "a=b", "--compare", "a=c", code=2).stderr.split())
    assert "--compare has two runs with the name 'a': expected different names" in words
    with pytest.raises(ValueError, match="there is a row 'uniform' already: give the run another name"):
        workflows.compare_lengths("mnist", "digits", runs={"uniform": "mnist"}, limit=1)
    with pytest.raises(ValueError, match=r"the network of .*cifar10 has channels 3, expected 1 as the first one"):
        workflows.compare_lengths("mnist", "digits", runs={"other": "cifar10"}, limit=1)
    for number in range(8):
        (tmp_path / "test" / f"class {number % 2}").mkdir(parents=True, exist_ok=True)
        pixels = np.full((12, 10, 3), 20 * number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "test" / f"class {number % 2}" / f"{number}.png")
    shutil.copytree(tmp_path / "test", tmp_path / "train")
    with pytest.raises(
        ValueError, match=r"has images of \(3, 12, 10\), mnist of \(1, 28, 28\): expected images of one"
    ):
        workflows.compare_lengths("mnist", tmp_path, limit=1)
