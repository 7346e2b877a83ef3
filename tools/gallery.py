"""Draw the pictures of the gallery with the code of its page: ``python -m tools.gallery``."""

import io
import re
from pathlib import Path
from typing import Any

from PIL import Image

from fastcaps._figure import Figure
from fastcaps._files import write_atomically
from fastcaps.analysis.figures import figure_bytes

PAGE = Path(__file__).parent.parent / "docs" / "gallery.md"
_PART = re.compile(r"```python\n(?P<code>.*?)```|!\[[^]]*\]\((?P<picture>[^)]+)\)", re.DOTALL)


def draw(page: str) -> dict[str, Figure]:
    """Run the code of the page; return the figure before each picture, by the path of the picture."""
    names: dict[str, Any] = {}
    pictures = {}
    for part in _PART.finditer(page):
        if part["code"] is not None:
            exec(compile(part["code"], str(PAGE), "exec"), names)  # noqa: S102
        else:
            pictures[part["picture"]] = names.pop("figure")
    return pictures


def picture(figure: Figure, kind: str) -> bytes:
    """Return a small file: a PNG has a palette."""
    content = figure_bytes(figure, kind)
    return small_png(content) if kind == "png" else content


def small_png(content: bytes) -> bytes:
    """Return a PNG with a palette of 128 colors."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(content)).convert("RGB").quantize(128).save(buffer, "png", optimize=True)
    return buffer.getvalue()


def main() -> None:
    """Write the pictures."""
    figures = draw(PAGE.read_text())
    contents = {PAGE.parent / path: picture(figure, Path(path).suffix[1:]) for path, figure in figures.items()}
    (PAGE.parent / "images" / "gallery").mkdir(parents=True, exist_ok=True)
    write_atomically(contents)
    print(f"{len(contents)} pictures, {sum(map(len, contents.values())) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
