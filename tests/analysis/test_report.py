"""The verdict says what the numbers say."""

from typing import Any

import pytest

from fastcaps.analysis.report import verdict


def evaluation(difference: float, p_value: float, speed: float | None) -> dict[str, Any]:
    def variant(per_second, against, uniform=None):
        return {"images_per_second": per_second, "against_dynamic": against, "against_uniform": uniform}

    against = {"changed": 7, "gained": 2, "lost": 5}
    uniform = {"difference": difference, "gained": 4, "lost": 1, "p_value": p_value}
    return {
        "images": 1000,
        "variants": {"dynamic": variant(speed and 100.0, None), "fast": variant(speed, against, uniform)},
    }


@pytest.mark.parametrize(
    ("difference", "p_value", "words"),
    [
        (0.03, 0.01, "Fast routing is better than all coefficients 1, no routing at all (+3.00 points, +4 −1 answers"),
        (-0.05, 0.01, "Fast routing is worse than all coefficients 1, no routing at all (-5.00 points"),
        (0.03, 0.2, "Fast routing can't be told from all coefficients 1, no routing at all (+3.00 points"),
    ],
)
def test_the_verdict_says_what_the_paired_tests_say(difference, p_value, words):
    text = verdict(evaluation(difference, p_value, 250.0))
    assert "2.5 times as fast; 7 of 1,000 answers change, 2 for the better and 5 for the worse." in text
    assert words in text
    assert f"McNemar p = {p_value}" in text
    assert verdict(evaluation(difference, p_value, None)).startswith("Speeds were not measured on so few images; 7 of")
