"""The page of a report: every number with its place in ``analysis.json``, every name escaped."""

import re
from dataclasses import dataclass, field, replace

import pytest
from tests.analysis.test_report_builder import built

from fastcaps._page import Traced, number
from fastcaps.analysis.figures import figure_bytes
from fastcaps.analysis.report import report_page
from fastcaps.analysis.report_data import ReportSettings


@pytest.fixture
def report(small_model):
    model = small_model
    names = ("cat & <dog>", "1", "2")
    object.__setattr__(model, "config", replace(model.config, class_names=names))
    settings = ReportSettings("fastcaps analyze '<b>'", 12, "w", "m", "d")
    data, _, _ = built(model)
    evaluation = replace(data.evaluation, data="<pets>", threads=1, batch_size=12, part="test", versions={"torch": "2"})
    return replace(data, run="runs/<x>", settings=settings, evaluation=evaluation)


def test_numbers_carry_their_places_and_names_are_escaped(report):
    page = report_page(report, {name: figure_bytes(figure) for name, figure in report.figures.items()})
    values = report.to_dict()
    shown = re.findall(r'<data value="([^"]*)" data-path="([^"]*)" data-format="([^"]*)">([^<]*)</data>', page)
    assert len(shown) > 60
    for value, path, form, text in shown:
        entry = values
        for step in path.split("/"):
            entry = entry[int(step)] if isinstance(entry, list) else entry[step]
        assert float(value) == entry, path
        assert text == format(entry, form).replace("-", "−"), path
    for name in ("<pets>", "<x>", "<b>", "<dog>"):
        assert name not in page
    assert "cat &amp; &lt;dog&gt;" in page
    assert page.count("<figure") == len(report.figures)


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
