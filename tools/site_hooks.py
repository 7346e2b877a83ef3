"""Hooks of mkdocs: pages may link to files of the repository outside ``docs``, which are copied into the site.

On a page, ``../results/bench-mnist.json`` is a path from the page's own folder, as it is where the repository is
browsed. A linked Markdown file or notebook becomes a page, any other file is copied to ``files``. No page may load
anything from elsewhere.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from tools.notebook_page import read, to_markdown

_LINK = re.compile(r"(?<=\]\()(?P<path>(?:\.\./)+[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")

_LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?P<address>(?:https?:)?//[^\"' >]+)")


def on_files(files: Any, config: Any) -> Any:
    """Add the changelog and every linked file outside ``docs`` to the site."""
    from mkdocs.structure.files import File

    root = Path(config.docs_dir).parent
    linked = {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
    for page in files.documentation_pages():
        linked |= {path for path, _ in _outside(Path(page.abs_src_path).read_text(), page.src_uri)}
    # Those that became pages link to files, too.
    for name in [name for name in linked if name.endswith(".md")]:
        linked |= {path for path, _ in _outside(_from_docs((root / name).read_text()), _address(name))}
    for name in sorted(linked):
        if not (root / name).is_file():
            raise FileNotFoundError(f"a page links to {name}, which is no file of the repository")
        if name.endswith((".md", ".ipynb")):
            notebook = name.endswith(".ipynb")
            content = _from_examples(root / name) if notebook else _from_docs((root / name).read_text())
            files.append(File.generated(config, _address(name), content=content))
        else:
            files.append(File.generated(config, _address(name), abs_src_path=str(root / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Redirect links to files outside ``docs`` to their copies."""
    here = page.file.src_uri
    for path, link in _outside(markdown, here):
        target = posixpath.relpath(_address(path), posixpath.dirname(here) or ".")
        markdown = markdown.replace(f"]({link}", f"]({target}")
    return markdown


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Raise if a page loads something from another host: the site must work without a connection."""
    if loaded := _LOADED.search(output):
        raise ValueError(f"{page.file.src_uri} loads {loaded['address']}: put a copy into docs/assets")
    return output


def _outside(markdown: str, page: str) -> list[tuple[str, str]]:
    """Return the files outside ``docs`` that a page links to: their path in the repository, and the link's path."""
    outside = []
    for match in _LINK.finditer(markdown):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), match["path"]))
        if not path.startswith("docs/"):
            outside.append((path, match["path"]))
    return outside


def _address(path: str) -> str:
    """Return where a file of the repository lies in the site."""
    if path.endswith(".ipynb"):
        return f"notebooks/{Path(path).stem}.md"
    return f"project/{Path(path).name.lower()}" if path.endswith(".md") else f"files/{path}"


def _from_examples(path: Path) -> str:
    """Return a notebook as a page of ``docs/notebooks``: its links lead to pages of the site."""
    text = to_markdown(read(path))
    return re.sub(r"\]\(\.\./docs/", "](../", re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", text))


def _from_docs(markdown: str) -> str:
    """Return the text of a page at the top of the repository with links as from ``docs/project``."""
    there = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)(?P<path>[^)\s]+)(?=\))")

    def moved(match: re.Match[str]) -> str:
        path = match["path"]
        return f"../{path.removeprefix('docs/')}" if path.startswith("docs/") else f"../../{path}"

    return there.sub(moved, markdown)
