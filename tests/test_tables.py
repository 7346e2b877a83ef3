"""The tables of the documentation are those of the results."""

import re

import pytest
from tools.tables import PAGES, TABLES, updated

from fastcaps.reproduction import with_tables


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_are_up_to_date(page):
    text = page.read_text()
    assert updated(page, text) == text, "run python -m tools.tables"


def test_every_table_is_somewhere_and_a_changed_number_shows():
    text = "".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"<!-- table: ([\w-]+) -->", text)) == set(TABLES)
    page = "<!-- table: cifar10-ablation -->\n\n| 12.34% |\n<!-- end -->\n"
    assert "12.34%" not in with_tables(page, TABLES)
