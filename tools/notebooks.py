"""Run the notebooks in ``examples`` and store their outputs: ``python -m tools.notebooks [NAME…]``.

Each runs in a new kernel and an empty folder, without a data folder and without a cache, so that it can't depend on
files of this machine. Differences between runs without meaning are removed: execution times, progress, the description
of the kernel. Cells keep their ids. A test checks what is stored with `problems`.
"""

import ast
import base64
import io
import json
import os
import platform
import re
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from fastcaps._files import write_atomically
from tools.gallery import small_png
from tools.notebook_page import Notebook, code_cells, read, texts

FOLDER = Path(__file__).parent.parent / "examples"
LARGEST = 300_000
# Tag of the cell whose values a test makes smaller.
PARAMETERS = "parameters"
_SECONDS = 600
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|usr|var|opt|work|Users|private)/|\b[A-Z]:\\")


def notebooks(*names: str) -> list[Path]:
    """Return the files of all notebooks, or of those with these names."""
    paths = [FOLDER / f"{name.removesuffix('.ipynb')}.ipynb" for name in names]
    return paths or sorted(FOLDER.glob("*.ipynb"))


def execute(notebook: Notebook) -> Notebook:
    """Return a notebook with the outputs of a new run."""
    import nbformat
    from nbclient import NotebookClient

    environment = {name: value for name, value in os.environ.items() if name != "FASTCAPS_DATA"}
    with TemporaryDirectory() as folder, TemporaryDirectory() as cache:
        client = NotebookClient(
            nbformat.from_dict(notebook),
            timeout=_SECONDS,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],
        )
        client.resources = {"metadata": {"path": folder}}
        client.execute(env=environment | {"FASTCAPS_CACHE": cache})
    executed: Notebook = json.loads(nbformat.writes(client.nb))
    return executed


def normalized(notebook: Notebook) -> Notebook:
    """Return a notebook without meaningless differences between runs, with small pictures."""
    cells = []
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags")
        plain = {**cell, "metadata": {"tags": tags} if tags else {}, "source": _lines(cell["source"])}
        if cell["cell_type"] == "code":
            plain["outputs"] = _joined([_output(output) for output in cell["outputs"] if not _is_progress(output)])
        cells.append(plain)
    return {"cells": cells, "metadata": _METADATA, "nbformat": 4, "nbformat_minor": 5}


def _joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what was printed in several pieces as one output."""
    joined: list[dict[str, Any]] = []
    for output in outputs:
        if joined and "text" in output and joined[-1].get("name") == output["name"]:
            joined[-1] = {**output, "text": _lines([*joined[-1]["text"], *output["text"]])}
        else:
            joined.append(output)
    return joined


def _output(output: dict[str, Any]) -> dict[str, Any]:
    if "text" in output:
        return {**output, "text": _lines(output["text"])}
    data = {kind: value if kind == "image/png" else _lines(value) for kind, value in output.get("data", {}).items()}
    if "image/png" in data:
        data = {"image/png": _small("".join(data["image/png"]))}
    return {**output, "data": data, "metadata": {}}


def _small(picture: str) -> str:
    """Return a PNG in base64 with a palette; one that has a palette is unchanged."""
    content = base64.b64decode(picture)
    has_palette = Image.open(io.BytesIO(content)).mode == "P"
    return base64.b64encode(content if has_palette else small_png(content)).decode()


def _is_progress(output: dict[str, Any]) -> bool:
    """Return whether an output is a finished progress bar, or lines on stderr that are not warnings."""
    if output["output_type"] == "stream" and output["name"] == "stderr":
        return "Warning" not in "".join(output["text"])
    return output["output_type"] == "display_data" and not "".join(output["data"].get("text/html", "-"))


def _lines(text: str | list[str]) -> list[str]:
    return "".join(text).splitlines(keepends=True)


def to_json(notebook: Notebook) -> str:
    """Return the content of the file, as Jupyter writes it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def problems(path: Path) -> list[str]:
    """Return what is wrong with a stored notebook: outputs that are missing or should not be there, size, form."""
    text, notebook = path.read_text(), read(path)
    messages = [f"it has {len(text.encode()):,} bytes, expected at most {LARGEST:,}"] * (len(text.encode()) > LARGEST)
    if to_json(normalized(notebook)) != text:
        messages.append("it is not as python -m tools.notebooks writes it")
    before = "code"
    for cell in notebook["cells"]:
        if before == cell["cell_type"] == "code":
            messages.append(f"no sentence introduces {_name(cell)}")
        before = cell["cell_type"]
    for number, cell in enumerate(code_cells(notebook), 1):
        words = "\n".join(texts(cell))
        if cell["execution_count"] != number:
            messages.append(f"{_name(cell)} was run as number {cell['execution_count']}, expected {number}")
        if _shows(cell["source"]) and not cell["outputs"]:
            messages.append(f"{_name(cell)} shows something, but has no output")
        if any(output["output_type"] == "error" for output in cell["outputs"]) or "Warning" in words:
            messages.append(f"{_name(cell)} has an error or a warning: {words}")
        if _MACHINE_PATH.search(words):
            messages.append(f"{_name(cell)} shows a path of a machine: {words}")
    return messages


def _name(cell: dict[str, Any]) -> str:
    return f"the cell {cell['source'].splitlines()[0]!r}"


def _shows(code: str) -> bool:
    """Return whether a cell prints, or ends with a value that notebooks show."""
    tree = ast.parse(code)
    prints = any(isinstance(node, ast.Name) and node.id in ("print", "display") for node in ast.walk(tree))
    return prints or (isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"))


def _machine_names(notebook: Notebook) -> list[str]:
    """Return the cells that show the name of this machine."""
    name = re.compile(rf"\b{re.escape(platform.node())}\b")
    shown = [cell for cell in code_cells(notebook) if name.search("\n".join(texts(cell)))]
    return [f"{_name(cell)} shows the name of this machine, {platform.node()}" for cell in shown]


def main() -> None:
    """Run the notebooks that are named, or all, and write them."""
    for path in notebooks(*sys.argv[1:]):
        begun = time.monotonic()
        content = to_json(normalized(execute(read(path)))).encode()
        write_atomically({path: content})
        print(f"{path.name}: {time.monotonic() - begun:.0f} s, {len(content) / 1e3:.0f} kB")
        for problem in problems(path) + _machine_names(read(path)):
            print(f"  {problem}")


if __name__ == "__main__":
    main()
