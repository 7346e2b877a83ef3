"""An evaluation says what its numbers say, and is read back from its file or refused by the field that is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest

from fastcaps.analysis import Comparison, Evaluation, Variant

RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*.json"))
EVALUATED = [path for path in RESULTS if "evaluation" in json.loads(path.read_bytes())]


def variant(speed: float | None = None, **comparisons: Comparison) -> Variant:
    return Variant(
        correct=3,
        errors=1,
        accuracy=0.75,
        interval=(0.3, 0.95),
        per_class=np.array([0.75, np.nan]),
        confusion=np.array([[3, 1], [0, 0]]),
        images_per_second=speed,
        against_dynamic=comparisons.get("dynamic"),
        against_uniform=comparisons.get("uniform"),
    )


def evaluation(difference: float = 0.03, p_value: float = 0.01, speed: float | None = 250.0) -> Evaluation:
    change = Comparison(changed=7, gained=2, lost=5, p_value=0.5, difference=-0.003, interval=(-0.01, 0.004))
    uniform = Comparison(changed=9, gained=4, lost=1, p_value=p_value, difference=difference, interval=(0.0, 0.1))
    variants = {
        "dynamic": variant(speed and 100.0),
        "fast": variant(speed, dynamic=change, uniform=uniform),
        "uniform": variant(dynamic=change),
    }
    return Evaluation(images=1000, class_names=("cat", "dog"), variants=variants, data="pets", part="test")


@pytest.mark.parametrize(
    ("difference", "p_value", "words"),
    [
        (0.03, 0.01, "Fast routing is better than equal coefficients, no routing at all (+3.00 points, +4 −1 answers"),
        (-0.05, 0.01, "Fast routing is worse than equal coefficients, no routing at all (−5.00 points"),
        (
            0.03,
            0.2,
            "Fast routing does not differ significantly from equal coefficients, no routing at all (+3.00 points",
        ),
    ],
)
def test_the_verdict_says_what_the_paired_tests_say(difference, p_value, words):
    text = evaluation(difference, p_value).verdict()
    assert "2.5 times as fast; 7 of 1,000 answers change, 2 for the better and 5 for the worse." in text
    assert words in text
    assert f"McNemar p = {p_value}" in text
    unmeasured = evaluation(difference, p_value, None).verdict()
    assert unmeasured.startswith("Speeds were not measured on so few images; 7 of")


def test_tables_for_people():
    routing, classes = evaluation().tables()
    assert routing.title == "pets: 1,000 test images"
    assert routing.rows[1] == ["fast", "75.00%", "30.00% – 95.00%", "1", "7", "+2 −5", "0.5", "250"]
    assert classes.rows == [["cat", "75.00%", "75.00%"], ["dog", "–", "–"]]


def test_a_comparison_that_was_not_made():
    with pytest.raises(ValueError, match="no other network was compared"):
        evaluation().compare_with_other()


@pytest.mark.parametrize("path", EVALUATED, ids=lambda path: path.stem)
def test_stored_evaluations_come_back_as_they_were(path):
    stored = json.loads(path.read_bytes())["evaluation"]
    # What early versions did not write, or called otherwise.
    master = {"trained_with": None, "method": "per_class", "filters": [], **stored["master"]}
    master["method"] = master["method"].replace("containers", "per_class")
    expected = {**stored, "master": master}
    assert Evaluation.from_dict(stored).to_dict() == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["variants"]["fast"].pop("accuracy"), r"variants\[...\]: object missing required field accuracy"),
        (lambda d: d["variants"].pop("uniform"), "variants.uniform is missing"),
        (lambda d: d.update(images="many"), "images: expected int, got str"),
        (lambda d: d["variants"]["fast"].update(interval=[0.1]), r"variants\[...\].interval: expected array of length"),
        (lambda d: d["variants"]["fast"].update(confusion=[[1], [2, 3]]), r"variants\[...\].confusion: expected lists"),
        (lambda d: d["class_names"].append(3), r"class_names\[2\]: expected str, got int"),
    ],
)
def test_a_damaged_file_is_refused_by_its_field(change, message, tmp_path):
    values = evaluation().to_dict()
    change(values)
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=f"evaluation.json is damaged: {message}"):
        Evaluation.load(path)


def test_a_file_that_is_no_evaluation(tmp_path):
    path = tmp_path / "evaluation.json"
    path.write_text("{")
    with pytest.raises(ValueError, match="evaluation.json is not JSON"):
        Evaluation.load(path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match=r"is damaged: expected object, got array"):
        Evaluation.load(path)
