"""The paper's table of accuracies beside ours: the runs it takes, their results, and both as tables and a page.

This package does not import PyTorch: a report only needs the JSON files of finished runs.
"""

from fastcaps.reproduction.cells import Cell, all_cells, finished, network, shard
from fastcaps.reproduction.page import report_page
from fastcaps.reproduction.paper import PAPER, TITLES
from fastcaps.reproduction.pooling import pooled_table
from fastcaps.reproduction.results import RunResult
from fastcaps.reproduction.table import Row, accuracy_table, losses_table, rows, runs_table, summary_table, with_tables

__all__ = [
    "PAPER",
    "TITLES",
    "Cell",
    "all_cells",
    "shard",
    "network",
    "finished",
    "RunResult",
    "Row",
    "rows",
    "accuracy_table",
    "summary_table",
    "runs_table",
    "losses_table",
    "pooled_table",
    "report_page",
    "with_tables",
]
