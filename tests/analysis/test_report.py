"""The page of a report: every number with its place in ``analysis.json``, every name escaped."""

import re
from dataclasses import dataclass, field, replace

import pytest
import torch
from tests.analysis.conftest import small_network
from tests.analysis.test_report_builder import built

from fastcaps._page import Traced, number
from fastcaps.analysis.figures import page_svg
from fastcaps.analysis.report import report_page
from fastcaps.analysis.report_data import ReportSettings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report():
    torch.manual_seed(0)
    model = small_network(class_names=("cat & <dog>", "1", "2"))
    settings = ReportSettings("fastcaps analyze '<script>'", 12, "w", "m", "d")
    data, _, _ = built(model)
    evaluation = replace(data.evaluation, data="<pets>", threads=1, batch_size=12, part="test", versions={"torch": "2"})
    finding = replace(data.finding, title="<pets>: a capsule network with Max-Min routing")
    return replace(data, run="runs/<x>", settings=settings, evaluation=evaluation, finding=finding)


@pytest.fixture(scope="module")
def page(report):
    return report_page(report, {name: page_svg(figure) for name, figure in report.figures.items()})


def test_numbers_carry_their_places_and_names_are_escaped(report, page):
    values = report.to_dict()
    shown = re.findall(r'<data value="([^"]*)" data-path="([^"]*)" data-format="([^"]*)">([^<]*)</data>', page)
    assert len(shown) > 60
    for value, path, form, text in shown:
        entry = values
        for step in path.split("/"):
            entry = entry[int(step)] if isinstance(entry, list) else entry[step]
        assert float(value) == entry, path
        assert text == format(entry, form).replace("-", "−"), path
    for name in ("<pets>", "<x>", "<script>", "<dog>"):
        assert name not in page
    assert "cat &amp; &lt;dog&gt;" in page
    assert page.count("<figure") == len(report.figures)
    assert "runs/&lt;x&gt;" not in page.partition("</h1>")[0]
    title = "&lt;pets&gt;: a capsule network with Max-Min routing"
    assert f"<title>{title}</title>" in page
    assert f'<meta property="og:title" content="{title}">' in page
    assert page.count("Without its routing loop") == 1


def words(page: str) -> str:
    """Return what a reader sees of a page, in one line."""
    return " ".join(re.sub(r"<[^>]*>", "", page.partition("</style>")[2]).split())


def with_changes(report, changed: int):
    """Return a report of which so many answers change, all for the worse."""
    disagreements = replace(report.disagreements, changed=changed, drawn=0, images=report.examples.images[:changed])
    variants = dict(report.evaluation.variants)
    change = replace(variants["fast"].against_dynamic, changed=changed, gained=0, lost=changed)
    variants["fast"] = replace(variants["fast"], against_dynamic=change, errors=changed)
    return replace(report, disagreements=disagreements, evaluation=replace(report.evaluation, variants=variants))


@pytest.mark.parametrize(
    ("changed", "sentences"),
    [
        (0, ["gives the same answer for all 12 test images.", "Nowhere: none of the 12 test images changes class."]),
        (1, ["changes 1 of 12 answers: 0 for the better, 1 for the worse.", "One of 12 test images changes class:"]),
        (2, ["changes 2 of 12 answers: 0 for the better, 2 for the worse.", "2 of 12 test images change class."]),
    ],
)
def test_the_finding_and_the_disagreements_in_words(report, changed, sentences):
    seen = words(report_page(with_changes(report, changed), {}))
    for sentence in sentences:
        assert sentence in seen
    errors = "1 error," if report.evaluation.dynamic.errors == 1 else f"{report.evaluation.dynamic.errors} errors,"
    assert ("1 errors" in seen, "1 images" in seen, "1 threads" in seen) == (False, False, False)
    assert "on 1 thread," in seen
    assert errors.strip(",") in seen or "Nothing to draw: neither dynamic" in seen


def test_a_figure_that_would_show_nothing_is_a_sentence(report, page):
    assert not {"dimensions", "strongest_dimensions"} & set(report.figures)  # the decoder is not trained
    assert not report.reconstructions.differ
    assert "What the decoder draws is left out: it differs between two classes by" in words(page)
    assert "Nothing to draw: no number changes what the decoder draws of test image" in words(page)
    assert "thickness" not in page
    assert words(report_page(report, {})).count("Nothing to draw: ") == 9


@pytest.mark.parametrize(
    ("speedup", "sentence"),
    [
        (None, "Without its routing loop the network changes"),
        (0.5, "is no faster here (0.50 times the speed). It changes"),
        (1.0, "is about as fast as with it. It changes"),
        (3.21, "is 3.2 times as fast and changes"),
    ],
)
def test_the_speed_in_words(report, speedup, sentence):
    changed = with_changes(replace(report, finding=replace(report.finding, speedup=speedup)), 2)
    assert sentence in words(report_page(changed, {}))


def test_a_picture_must_be_an_svg(report):
    with pytest.raises(ValueError, match=r"the picture begins with b'PNG', expected an SVG of `page_svg`"):
        report_page(report, {"tuning": b"PNG"})


def test_a_bare_module_has_no_page(report):
    with pytest.raises(ValueError, match="expected run and settings"):
        report_page(replace(report, run=None), {})


@dataclass(frozen=True)
class Sample:
    label: str = field(metadata={"key": "class"})
    values: tuple[float | None, ...]


def test_a_number_is_not_shown_without_its_place():
    traced = Traced({"one": Sample("<a>", (0.5, None))})
    assert str(traced.one.label) == "<a>"
    assert number(traced.one.values[0], ".1f") == (
        '<data value="0.5" data-path="one/values/0" data-format=".1f">0.5</data>'
    )
    assert number(traced.one.values[-1]) == "not defined"
    with pytest.raises(TypeError, match="one/values/0 is 0.5, expected a text: show numbers with the number filter"):
        str(traced.one.values[0])
    with pytest.raises(AttributeError, match="one has no field 'other'"):
        _ = traced.one.other
