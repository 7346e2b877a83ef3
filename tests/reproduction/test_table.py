"""Means, deviations and words, from results written by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reproduction.conftest import result, values

from fastcaps._result import Table
from fastcaps.reproduction import (
    TITLES,
    Cell,
    RunResult,
    accuracy_table,
    losses_table,
    report_page,
    rows,
    runs_table,
    with_tables,
)
from fastcaps.reproduction.table import spread

MNIST = [Cell("mnist", "max_min", seed) for seed in range(3)]


def row(results, routing="dynamic", data="mnist", normalization="max_min"):
    wanted = (data, normalization, routing)
    return next(one for one in rows(results) if (one.data, one.normalization, one.routing) == wanted)


def words(results, **which):
    """A row of the table by the names of its columns."""
    table = accuracy_table([row(results, **which)])
    return dict(zip(table.columns, table.rows[0], strict=True))


@given(st.lists(st.floats(0, 100), min_size=2, max_size=9))
def test_spread_is_the_mean_and_the_deviation_of_a_sample(values):
    mean, deviation = spread(values) or (math.nan, math.nan)
    assert mean == pytest.approx(sum(values) / len(values))
    assert deviation == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)), abs=1e-9)


def test_spread_of_one_and_of_none():
    assert spread([99.5]) == (99.5, None)
    assert spread([]) is None
    assert spread(None) is None


def test_over_seeds_final_and_highest():
    results = {
        MNIST[0]: result(MNIST[0], (90, 95, 93), 91, 92),
        MNIST[1]: result(MNIST[1], (90, 91, 95), 93, 94),
        MNIST[2]: result(MNIST[2], (98, 90, 97), 95, 96),
    }
    dynamic = row(results)
    assert dynamic.seeds == (0, 1, 2)
    assert dynamic.final == pytest.approx((93, 95, 97))
    assert dynamic.highest == pytest.approx((95, 95, 98))
    assert dynamic.difference == pytest.approx(95 - 99.55)
    said = words(results)
    assert said["ours, final"] == "95.00 ± 2.00"
    assert said["ours, highest"] == "96.00 ± 1.73"
    assert (said["paper"], said["difference"], said["seeds"]) == ("99.55 ± 0.02", "−4.55", "3")
    assert (said["epochs"], said["images"], said["uniform"], said["notes"]) == ("3", "original", "", "")
    fast = words(results, routing="fast")
    assert (fast["ours, final"], fast["ours, highest"], fast["uniform"]) == ("93.00 ± 2.00", "–", "94.00 ± 2.00")
    plain = dynamic.to_dict()
    assert plain["mean_and_deviation"]["final"] == pytest.approx((95, 2))
    assert plain["difference"] == pytest.approx(-4.55)


def test_fast_has_a_highest_only_if_every_epoch_was_measured():
    every = {MNIST[0]: result(MNIST[0], fast=91, fasts=(89, 94, 91))}
    assert words(every, routing="fast")["ours, highest"] == "94.00"
    some = {MNIST[0]: result(MNIST[0], fast=91, fasts=(None, 94, 91))}
    assert words(some, routing="fast")["ours, highest"] == "–"
    one_of_two = {**every, MNIST[1]: result(MNIST[1])}
    assert words(one_of_two, routing="fast")["ours, highest"] == "–"


def test_notes_say_what_a_reader_must_know():
    held_out = values(MNIST[0], (None, 90), kind="generated")
    held_out["data"] |= {"validation": 5000, "augmentation": {"flip": True}}
    results = {
        MNIST[0]: RunResult.from_dict(held_out),
        MNIST[1]: result(MNIST[1], (91, 92, 93), learning_rate=0.002),
    }
    said = words(results)
    assert said["epochs"] == "2, 3"
    assert said["images"] == "generated, original"
    assert said["notes"] == (
        "5,000 training images held out; test set seen after 1 of 2 epochs; "
        "differ between seeds: epochs, learning_rate, augmentation"
    )
    never = {MNIST[0]: result(MNIST[0], (None, None))}
    assert (words(never)["ours, highest"], words(never)["notes"]) == ("–", "")
    rounded = {MNIST[0]: RunResult.from_dict({**values(MNIST[0], (None, None)), "rounded": "half precision"})}
    assert words(rounded)["notes"] == "weights rounded to half precision before evaluation"
    # What the other's loss was before it was a setting.
    newer = {MNIST[0]: result(MNIST[0]), MNIST[1]: result(MNIST[1], loss="margin")}
    assert words(newer)["notes"] == ""


def test_what_has_not_been_run_says_so():
    table = accuracy_table(rows({}))
    assert len(table.rows) == 20
    assert {line[table.columns.index("ours, final")] for line in table.rows} == {"not run"}
    assert table.rows[-1][:3] == ["CIFAR-10", "fast, softmax", "47.11 ± 8.70"]
    assert words({MNIST[0]: result(MNIST[0])}, normalization="softmax")["ours, final"] == "not run"


def test_every_run_by_itself():
    softmax = Cell("mnist", "softmax", 0)
    cifar = Cell("cifar10", "max_min", 0)
    results = {cell: result(cell) for cell in (cifar, softmax, MNIST[1], MNIST[0])}
    table = runs_table(results, lambda name: f"[{name}]")
    assert [line[0] for line in table.rows] == [
        *("[mnist-max_min-0]", "[mnist-max_min-1]", "[mnist-softmax-0]", "[cifar10-max_min-0]")
    ]
    said = dict(zip(table.columns, table.rows[0], strict=True))
    assert said["dynamic"] == "93.00 (92.00 to 94.00)"
    assert said["fast − dynamic"] == "−1.00 (−2.00 to +0.30), p = 0.25"
    assert said["hours"] == "2.0"


def test_losses_of_what_was_run_with_both_normalizations():
    softmax = Cell("mnist", "softmax", 1)
    results = {cell: result(cell) for cell in (MNIST[0], MNIST[1], Cell("cifar10", "softmax", 1))}
    lossy = values(softmax)
    lossy["evaluation"]["variants"]["fast"]["against_dynamic"] |= {"difference": -0.05, "interval": [-0.062, -0.03]}
    results[softmax] = RunResult.from_dict(lossy)
    table = losses_table(results)
    assert [line[0] for line in table.rows] == list(TITLES.values())
    assert table.rows[-1] == ["CIFAR-10", "", "−5.59", "−26.54", "not run with both", "", "", ""]
    # The halves of both intervals, 1.15 and 1.6, are the sides of a right angle; the middles, −0.85 and −4.6.
    assert dict(zip(table.columns, table.rows[0], strict=True)) == {
        "data set": "MNIST",
        "seed": "1",
        "paper, Max-Min": "−0.12",
        "paper, softmax": "−0.36",
        "Max-Min": "−1.00 (−2.00 to +0.30)",
        "softmax": "−5.00 (−6.20 to −3.00)",
        "softmax − Max-Min": "−4.00 (−5.72 to −1.78)",
        "differ in": "",
    }
    lossy["settings"]["learning_rate"] = 0.5
    results[softmax] = RunResult.from_dict(lossy)
    assert losses_table(results).rows[0][-1] == "learning_rate"
    assert "−4.00<br><small>−5.72 to −1.78</small>" in report_page(results)


def test_markdown_and_its_place():
    table = Table("", ["a", "b"], [["1", "2"]]).to_markdown()
    assert table == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    page = "x\n<!-- table: one -->\nold\n<!-- end -->\n<!-- table: other -->\nkept\n<!-- end -->\n"
    new = with_tables(page, {"one": lambda: table})
    assert f"x\n<!-- table: one -->\n\n{table}\n<!-- end -->\n" in new
    assert "old" not in new
    assert "kept" in new
    assert with_tables(new, {"one": lambda: table}) == new
    torn = page.replace("old\n<!-- end -->", "old")
    with pytest.raises(ValueError, match="the table one has no end: put <!-- end --> on a line after <!-- table: one"):
        with_tables(torn, {"one": lambda: table})
    assert with_tables(torn, {"other": lambda: table}).startswith("x\n<!-- table: one -->\nold\n")


def test_the_page_escapes_what_a_run_says():
    named = {**values(MNIST[0]), "command": "fastcaps reproduce --runs '<b>&'"}
    page = report_page({MNIST[0]: RunResult.from_dict(named)})
    assert "&lt;b&gt;&amp;" in page
    assert "<b>" not in page
    assert "2 of 20 rows were\nrun" in page
