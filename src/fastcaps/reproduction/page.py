"""The paper's table beside ours as one HTML page that opens from disk."""

import re
from collections.abc import Mapping

from fastcaps._page import render
from fastcaps._result import Table
from fastcaps.reproduction.cells import Cell
from fastcaps.reproduction.paper import TITLES
from fastcaps.reproduction.pooling import pooled_table
from fastcaps.reproduction.results import RunResult
from fastcaps.reproduction.table import accuracy_table, losses_table, rows, runs_table

_NUMBER_AND_DETAILS = re.compile(r"(\S+) \((.*)\)(.*)")


def report_page(results: Mapping[Cell, RunResult]) -> str:
    """Return the page of all finished runs."""
    table = rows(results)
    by_data = {title: [row for row in table if row.data == data] for data, title in TITLES.items()}
    return render(
        "reproduction.html.j2",
        done=sum(bool(row.seeds) for row in table),
        total=len(table),
        sections={title: (_numbers(accuracy_table(part)), part) for title, part in by_data.items()},
        runs=runs_table(results),
        losses=losses_table(results),
        pooled=pooled_table(results),
        results={cell.name: results[cell] for cell in sorted(results, key=lambda cell: cell.name)},
        split=_split,
    )


def _numbers(table: Table) -> Table:
    """Return the columns of one data set that hold numbers."""
    return Table(table.title, table.columns[1:7], [row[1:7] for row in table.rows])


def _split(text: str) -> list[str]:
    """Return a number and the details after it, such as its interval, which the page shows below it."""
    match = _NUMBER_AND_DETAILS.fullmatch(text)
    return [text] if match is None else [match[1], *f"{match[2]}{match[3]}".split(", ")]
