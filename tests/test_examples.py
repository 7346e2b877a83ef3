"""Scripts call commands and options that exist and that the documentation names; Python examples run."""

import re

import pytest
from tools.tables import ROOT
from typer.main import get_command

from fastcaps.cli import app

EXAMPLES = sorted(
    path for path in (ROOT / "examples").iterdir() if path.is_file() and path.suffix not in (".py", ".ipynb")
)
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
DOCUMENTATION = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
# `launch` is each script's own function that starts fastcaps under torchrun.
CALL = re.compile(r"(?:^|[ ;(!])(?:fastcaps|launch) (?P<name>[a-z]+)(?P<rest>[^\n;]*)", re.MULTILINE)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_call_documented_commands(path):
    known = get_command(app).commands  # type: ignore[attr-defined]
    calls = list(CALL.finditer(path.read_text()))
    assert calls
    for call in calls:
        assert f"fastcaps {call['name']}" in DOCUMENTATION
        options = {
            option
            for parameter in known[call["name"]].params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        assert set(re.findall(r"(?<!\S)--[a-z-]+", call["rest"])) <= options, call[0]


@pytest.mark.slow
@pytest.mark.usefixtures("operators_read_once")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_python_examples_run(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text, count = re.subn(r"^EPOCHS = \d$", "EPOCHS = 1", path.read_text(), flags=re.MULTILINE)
    assert count == 1
    exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    accuracies = [float(number) for number in re.findall(r"([0-9.]+)%", capsys.readouterr().out)]
    assert accuracies[-1] > 40  # the last printed: folded, or exported; guessing is right in at most a third
