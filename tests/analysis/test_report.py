"""The verdict says what the numbers say."""

import pytest

from fastcaps.analysis.report import report_page, verdict


def evaluation(fast: float, uniform: float, speed: float | None) -> dict[str, object]:
    def variant(accuracy, per_second, against):
        return {
            "accuracy": accuracy,
            "errors": 3,
            "interval": [0.5, 0.9],
            "images_per_second": per_second,
            "against_dynamic": against,
        }

    against = {"changed": 7, "gained": 2, "lost": 5}
    return {
        "run": "runs/<x>",
        "data": "digits",
        "generated": True,
        "part": "test",
        "images": 1000,
        "threads": 2,
        "batch_size": 128,
        "versions": {"torch": "2"},
        "variants": {
            "dynamic": variant(0.9, speed and 100.0, None),
            "fast": variant(fast, speed, against),
            "uniform": variant(uniform, None, against),
            "ceiling": variant(1.0, None, against),
        },
    }


@pytest.mark.parametrize(
    ("fast", "uniform", "words"),
    [(0.88, 0.85, "3.00 points better than"), (0.8, 0.85, "5.00 points worse than"), (0.8, 0.8, "as good as")],
)
def test_the_verdict_compares_with_no_routing(fast, uniform, words):
    text = verdict(evaluation(fast, uniform, 250.0))
    assert "2.5 times as fast; 7 of 1,000 answers change, 2 for the better and 5 for the worse" in text
    assert f"It is {words} the same network with no routing at all." in text
    assert verdict(evaluation(fast, uniform, None)).startswith("Speeds were not measured on so few images; 7 of")


def test_the_page_escapes_and_says_generated():
    page = report_page(evaluation(0.88, 0.85, 250.0), b"png")
    assert "<h1>runs/&lt;x&gt;</h1>" in page
    assert "(generated images)" in page
    assert "<td>88.00%</td>" in page
    assert 'src="data:image/png;base64,cG5n"' in page
