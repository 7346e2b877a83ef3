"""The examples call commands that exist, with options that exist, and that the documentation names."""

import re

import pytest
from tools.tables import ROOT
from typer.main import get_command

from fastcaps.cli import app

EXAMPLES = sorted((ROOT / "examples").iterdir())
DOCUMENTATION = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
# `launch` is each script's own function that starts fastcaps under torchrun.
CALL = re.compile(r"(?:^|[ ;(!])(?:fastcaps|launch) (?P<name>[a-z]+)(?P<rest>[^\n;]*)", re.MULTILINE)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_call_documented_commands(path):
    known = get_command(app).commands  # type: ignore[attr-defined]
    found = list(CALL.finditer(path.read_text()))
    assert found
    for call in found:
        assert f"fastcaps {call['name']}" in DOCUMENTATION
        options = {option for parameter in known[call["name"]].params for option in parameter.opts}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", call["rest"])) <= options, call[0]
