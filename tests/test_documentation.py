"""The documentation is true: its code runs, its commands exist, the reference names everything public.

Every Python block and every `fastcaps` command of a page runs in the order of the page, in one folder and one
namespace. Data sets have few images and networks few maps here, so that a page takes seconds. Comments in a page say
what is special, for the next block:

    <!-- test: with --epochs 1 -->      add options to its commands
    <!-- test: parse REASON -->         don't run it: Python must compile, commands and their options must exist
    <!-- test: file NAME -->            write the block to this file
    <!-- test: first COMMAND -->        run this command before; may be repeated
"""

import dataclasses
import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import sklearn.datasets
import torch
from PIL import Image
from tests.data import tiny
from tools.tables import ROOT
from typer.main import get_command
from typer.testing import CliRunner

from fastcaps.analysis import figures
from fastcaps.cli import app
from fastcaps.compression.results import NetworkTime
from fastcaps.data.registry import SETS
from fastcaps.functional.normalizations import REGISTRY as NORMALIZATIONS
from fastcaps.nn.routing import REGISTRY as ROUTINGS

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "start").glob("*.md"))]
REFERENCE = sorted((DOCS / "reference").glob("*.md"))
PACKAGES = ["fastcaps", *(f"fastcaps.{page.stem}" for page in REFERENCE if page.stem not in ("fastcaps", "index"))]
# Those that measure for minutes, wait for a browser or connect to somewhere are only parsed.
NOT_RUN = {"serve", "bench", "demo", "reproduce", "download"}
# One size instead of six.
ADDED = {"compress": ["--speedup", "2", "--epochs", "1"]}
SMALL = {"stem_channels": 8, "capsule_types": 4, "decoder": (16,)}
SETTINGS = {"epochs": 1, "batch_size": 16, "warmup": 5}
# With an example each, in the reference.
MOST_USED = [
    "fastcaps.CapsNetConfig",
    "fastcaps.CapsNet",
    "fastcaps.accumulate",
    "fastcaps.MasterCoefficients",
    "fastcaps.fold",
    "fastcaps.record",
    "fastcaps.FastCapsNet",
    "fastcaps.export",
    "fastcaps.nn.CapsuleLayer",
    "fastcaps.nn.PrimaryCapsules",
    "fastcaps.nn.DynamicRouting",
    "fastcaps.functional.squash",
    "fastcaps.functional.dynamic_routing",
    "fastcaps.functional.margin_loss",
    "fastcaps.data.load",
    "fastcaps.data.DataSet",
    "fastcaps.data.batches",
    "fastcaps.training.Trainer",
    "fastcaps.training.Run",
    "fastcaps.workflows.train",
    "fastcaps.workflows.accumulate",
    "fastcaps.workflows.evaluate",
    "fastcaps.workflows.predict",
    "fastcaps.runtime.load",
]
_PART = re.compile(
    r"<!-- test: (?P<mark>.*?) -->|^```(?P<language>\w*)\n(?P<block>.*?)^```|`(?P<inline>fastcaps [a-z][^`]*)`",
    re.DOTALL | re.MULTILINE,
)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def small_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with pictures and folders of images; data sets by the usual names, with few images each."""
    data, home = tmp_path / "data", tmp_path / "home"
    for name in ("mnist", "fashion_mnist"):
        entry = tiny.write_idx_set(data, name, train=80, test=20)
        monkeypatch.setitem(SETS, name, dataclasses.replace(entry, network=SMALL, training=SETTINGS))
    contents = tiny.cifar_contents(10)
    entry = tiny.with_hashes(SETS["cifar10"], contents, train=50, test=10)
    tiny.write(data, entry, contents)
    monkeypatch.setitem(
        SETS, "cifar10", dataclasses.replace(entry, network={**entry.network, **SMALL}, training=SETTINGS)
    )
    tiny.use_few_digits(monkeypatch)
    monkeypatch.setitem(SETS, "digits", dataclasses.replace(SETS["digits"], network=SMALL, training=SETTINGS))
    monkeypatch.setenv("FASTCAPS_DATA", str(data))
    monkeypatch.setenv("FASTCAPS_CACHE", str(tmp_path / "cache"))
    for number, picture in enumerate(("seven.png", "three.png", "two.png", "scans/one.png")):
        (home / picture).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.uint8(sklearn.datasets.load_digits().images[number] * 15)).save(home / picture)
    for kind in ("daisy", "rose"):
        for number in range(1, 11):
            tiny.save_image(home / "flowers" / kind / f"{number}.jpg", (24, 24), color=True)
    monkeypatch.setattr("fastcaps.workflows.compression.time_networks", _time_nothing)
    monkeypatch.chdir(home)
    known = [(registry, set(registry.names())) for registry in (NORMALIZATIONS, ROUTINGS)]
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)  # a second one only waits here
    yield home
    for registry, names in known:
        for name in set(registry.names()) - names:
            registry.forget(name)


def _time_nothing(networks: dict[str, Any]) -> tuple[NetworkTime, ...]:
    return tuple(NetworkTime(network=name, batch=1, engine="PyTorch", ms_per_image=1.0) for name in networks)


class Page:
    """A page, as it is run."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        self.path = path
        self.text = path.read_text() if text is None else text
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def run(self) -> None:
        text = self.text
        marks: list[str] = []
        for part in _PART.finditer(text):
            line = text.count("\n", 0, part.start()) + 1
            if part["mark"] is not None:
                marks.append(part["mark"])
            elif part["inline"] is not None:
                parse(part["inline"].split(" …")[0].replace("…", ""), f"{self.path.name}:{line}")
            else:
                self.block(part["language"], part["block"], marks, line)
                marks = []

    def block(self, language: str, block: str, marks: list[str], line: int) -> None:
        place = f"{name_of(self.path)}:{line}"
        said = {word: rest for word, _, rest in (mark.partition(" ") for mark in marks)}
        for mark in marks:
            if mark.startswith("first "):
                command(mark.removeprefix("first "), place)
        if "file" in said:
            Path(said["file"]).write_text(block)
        elif language == "python":
            code = compile("\n" * line + block, name_of(self.path), "exec")
            if "parse" not in said:
                exec(code, self.names)
        elif language == "sh":
            for one in block.replace("\\\n", " ").splitlines():
                (parse if "parse" in said else command)(f"{one.split(' #')[0]} {said.get('with', '')}", place)


def command(line: str, place: str) -> None:
    """Run a command of fastcaps; of others see that what they name exists."""
    words = parse(line, place)
    if words is None or NOT_RUN & set(words[:2]):
        return
    result = CliRunner().invoke(app, [*words, *ADDED.get(words[0], [])])
    assert result.exit_code == 0, f"{place}: {line}\n{result.output}"


def parse(line: str, place: str) -> list[str] | None:
    """Check that a command and its options exist; return the arguments if it is fastcaps alone."""
    words = shlex.split(line, comments=True)
    if "fastcaps" not in words:
        assert exists(words), f"{place}: there is no {line}"
        return None
    start = words.index("fastcaps")  # after variables, or a launcher
    node: Any = get_command(app)
    rest = words[start + 1 :]
    while hasattr(node, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in node.commands, f"{place}: there is no command {rest[0]}: {line}"
        node = node.commands[rest.pop(0)]
    options = {option for one in node.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    unknown = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)} - options
    assert not unknown, f"{place}: {unknown} are no options of {node.name}: {line}"
    return words[1:] if start == 0 else None


def exists(words: list[str]) -> bool:
    """Whether the target of make, our own module or the extra exists that a command names."""
    match words:
        case ["make", target, *_]:
            return bool(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE))
        case ["python", "-m", module, *_] if module.startswith(("tools", "tests", "benchmarks")):
            return find_spec(module) is not None
        case ["pip", "install", *rest]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            return {extra for names in re.findall(r"\[(.*?)\]", " ".join(rest)) for extra in names.split(",")} <= set(
                extras
            )
    return True


@pytest.mark.slow
@pytest.mark.parametrize("page", [*PAGES, *REFERENCE], ids=name_of)
@pytest.mark.usefixtures("small_world", "unrendered", "operators_read_once")
def test_what_a_page_shows_runs(page):
    with mpl.rc_context():
        Page(page).run()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_has_every_public_name(package):
    text = (DOCS / "reference" / f"{package.rpartition('.')[2]}.md").read_text()
    public = importlib.import_module(package).__all__
    shown = set(re.findall(rf"^::: {package}\.(\w+)$", text, re.MULTILINE)) | set(re.findall(r"`(\w+)`\]\[", text))
    if package == "fastcaps":  # packages and the version are named in a sentence
        shown |= {name for name in public if re.search(rf"`(fastcaps\.)?{name}`", text)}
    assert shown - {"figures"} == set(public)


def test_the_most_used_names_have_an_example():
    assert len(MOST_USED) >= 20
    text = "".join(page.read_text() for page in REFERENCE)
    for name in MOST_USED:
        assert re.search(rf"^::: {re.escape(name)}\n(    options:.*\n)?\n```python\n", text, re.MULTILINE), name


def test_the_gallery_has_every_figure():
    drawn = set(re.findall(r"figures\.(\w+_figure)\(", (DOCS / "gallery.md").read_text()))
    assert drawn == {name for name in vars(figures) if re.fullmatch(r"[a-z]\w*_figure", name)}
    pictures = list((DOCS / "images" / "gallery").iterdir())
    assert sum(picture.stat().st_size for picture in pictures) < 1e6
    assert {f"images/gallery/{picture.name}" for picture in pictures} == set(
        re.findall(r"\]\((images/gallery/[^)]+)\)", (DOCS / "gallery.md").read_text())
    )


def test_links_lead_to_files():
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for link in re.findall(
            r"\]\((?!https?:|#|mailto:)([^)#\s]+)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        ):
            is_generated = link.startswith("project/")
            assert is_generated or (page.parent / link).exists(), f"{name_of(page)}: {link}"


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub and MkDocs make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = [re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[-\s]+", "-", title) for title in titles}


def test_links_lead_to_headings():
    followed = 0
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", text):
            other = page.parent / target if target else page
            if other.suffix == ".md" and other.exists() and "reference" not in other.parts:
                followed += 1
                assert anchor in anchors(other), f"{name_of(page)}: {target}#{anchor}"
    assert followed > 20
