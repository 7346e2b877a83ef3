"""Convert a notebook to a page of Markdown: its text, its code, and its outputs. For the site and for tests."""

import html
import json
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    """Return a notebook with the text of each cell in one piece."""
    notebook: Notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    """Return the cells with code, in their order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def texts(cell: dict[str, Any]) -> list[str]:
    """Return all outputs of a cell but pictures: printed text, values, tables as HTML, errors."""
    shown: list[str] = []
    for output in cell["outputs"]:
        shown += ["".join(output["text"])] if "text" in output else []
        shown += output.get("traceback", [])
        shown += ["".join(value) for kind, value in output.get("data", {}).items() if kind != "image/png"]
    return shown


def to_markdown(notebook: Notebook) -> str:
    """Return the cells in their order; an output follows its code, a value in its richest format."""
    parts = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(cell["source"])
            continue
        parts.append(f"```python\n{cell['source']}\n```")
        parts += [_output_markdown(output) for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def _output_markdown(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="What the code above draws" src="data:image/png;base64,{"".join(data["image/png"])}">'
    if "text/html" in data:
        return "".join(data["text/html"])
    words = "".join(output.get("text", data.get("text/plain", [])))
    return f'<pre class="output">{html.escape(words.rstrip())}</pre>'
