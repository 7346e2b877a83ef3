"""The paper's table of accuracies beside ours: what there is to run, what was found, and both as one table.

Knows no PyTorch: a report is made wherever the JSON files of finished runs are.
"""

from fastcaps.reproduction.cells import Cell, all_cells, finished, network, shard
from fastcaps.reproduction.paper import PAPER, TITLES
from fastcaps.reproduction.table import Row, accuracy_table, losses_table, report_page, rows, runs_table, with_tables

__all__ = [
    "PAPER",
    "TITLES",
    "Cell",
    "all_cells",
    "shard",
    "network",
    "finished",
    "Row",
    "rows",
    "accuracy_table",
    "runs_table",
    "losses_table",
    "report_page",
    "with_tables",
]
