"""The notebooks run, and are stored with their outputs; objects show themselves in notebooks."""

import builtins
import json
import re
import sys
from types import ModuleType, SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from tests.test_documentation import Page, small_world  # noqa: F401  a fixture
from tools.notebook_page import code_cells, read, to_markdown
from tools.notebooks import PARAMETERS, normalized, notebooks, problems, to_json

from fastcaps import _progress
from fastcaps._result import Table
from fastcaps.data import SETS
from fastcaps.training import Report

PATHS = notebooks()
MNIST = SETS["mnist"]
# Few images and epochs in place of the values of the first cell.
SMALLER = {
    "quick_start": "count = 8",
    "own_backbone_and_data": "epochs = 1",
    "what_routing_does": "count = 20",
    "compress_and_deploy": "epochs, refit_epochs = 1, 1",
}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebooks_are_stored_with_their_outputs(path):
    assert problems(path) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("small_world", "unrendered", "operators_read_once")
def test_notebooks_run(path, monkeypatch):
    monkeypatch.setitem(SETS, "mnist", MNIST)  # its test images come with the package
    monkeypatch.delenv("FASTCAPS_DATA")
    notebook = read(path)
    (parameters,) = (cell for cell in code_cells(notebook) if PARAMETERS in cell["metadata"].get("tags", ()))
    for cell in code_cells(notebook):
        cell["outputs"] = []
    parameters["source"] += f"\n{SMALLER[path.stem]}"
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    with mpl.rc_context():
        Page(path, to_markdown(notebook)).run()
    plt.close("all")


def test_links_of_notebooks_lead_to_files():
    for path in PATHS:
        links = re.findall(r"\]\((?!https?:)([^)#\s]+)", to_markdown(read(path)))
        assert links
        for link in links:
            assert (path.parent / link).exists(), f"{path.name}: {link}"


def sample(*cells):
    title = {"cell_type": "markdown", "id": "t", "metadata": {}, "source": "A sentence."}
    return {"cells": [title, *cells], "metadata": {"kernelspec": {"name": "mine"}}, "nbformat": 4, "nbformat_minor": 5}


def code(source, *outputs, count=1, **metadata):
    return {
        "cell_type": "code",
        "id": "a",
        "metadata": metadata,
        "source": source,
        "execution_count": count,
        "outputs": list(outputs),
    }


def printed(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def test_what_differs_from_run_to_run_is_left_out():
    bar = {"output_type": "display_data", "data": {"text/html": "", "text/plain": "<HTML object>"}, "metadata": {}}
    again = normalized(
        sample(
            code("print(1)", printed("epoch 1\n", "stderr"), bar, printed("1\n"), printed("2\n"), execution={"t": 1})
        )
    )
    (cell,) = code_cells(again)
    assert (cell["id"], cell["metadata"]) == ("a", {})
    assert cell["outputs"] == [printed(["1\n", "2\n"])]
    assert again["metadata"]["kernelspec"]["name"] == "python3"
    assert normalized(again) == again


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([code("x = 1", count=2)], "was run as number 2, expected 1"),
        ([code("1 + 1")], "shows something, but has no output"),
        ([code("f()", printed("UserWarning: slow\n", "stderr"))], "has an error or a warning"),
        ([code("f()", {"output_type": "error", "ename": "E", "evalue": "e", "traceback": ["E"]})], "has an error"),
        ([code("f()", printed("/home/me/x.png\n"))], "shows a path of a machine"),
        ([code("x = 1"), code("y = 1", count=2)], "no sentence introduces the cell 'y = 1'"),
        ([code("x = 1", execution={"t": 1})], "it is not as python -m tools.notebooks writes it"),
        ([code(f"# {'x' * 300_000}\nx = 1")], "bytes, expected at most 300,000"),
    ],
)
def test_what_is_wrong_with_a_notebook_is_said(cells, expected, tmp_path):
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps(sample(*cells)) if cells[0]["metadata"] else to_json(normalized(sample(*cells))))
    (problem,) = problems(path)
    assert expected in problem


@pytest.fixture
def shown(monkeypatch):
    """What a notebook shows: outputs as HTML, in their last state."""
    outputs = []

    def display(value, **options):
        outputs.append(value.data)
        number = len(outputs) - 1
        return SimpleNamespace(update=lambda new: outputs.__setitem__(number, new.data))

    module = ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    module.HTML = lambda text: SimpleNamespace(data=text)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    return outputs


def test_progress_in_a_notebook_is_a_bar_that_disappears(shown, capsys):
    with _progress.progress_bar("counting <b>", 10) as count:
        count(4)
        assert shown == ['<progress value="4" max="10"></progress> counting &lt;b&gt; 4/10']
    assert shown == [""]
    report = Report(
        task="training", epoch=1, epochs=2, step=3, steps=5, loss=0.5, accuracy=0.9, images_per_second=7, seconds_left=9
    )
    with _progress.training_progress("digits") as show:
        show(report)
        assert '<progress value="3" max="5"></progress> digits epoch 1/2 step 3/5 loss 0.5000' in shown[1]
    assert shown == ["", ""]
    assert capsys.readouterr().err == ""


def test_a_table_is_shown_once(shown):
    table = Table("title", ["a"], [["<1>"]])
    assert "<1>" in repr(table)
    assert shown == []  # rich would show it while it is drawn
    assert table._repr_html_() == table.to_html()
