"""A static page with the network inside: an exported file, and ONNX Runtime as WebAssembly."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import msgspec

from fastcaps._files import write_atomically
from fastcaps._result import Result, Table
from fastcaps.bundled import ONNX, resolve
from fastcaps.runtime import Predictor
from fastcaps.serving.examples import examples
from fastcaps.serving.models import ServedModel, open_model

# Version of onnxruntime-web that web/package.json pins, with the hashes of its files as browsers check them.
VERSION = "1.30.0"
MODULE, BINARY = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
INTEGRITY = {
    MODULE: "sha384-PLWz+nHEVHpjwBsO0YVdvQj6n5814Iv8E3b8FG0Rp/uIAtjFMCKOpP66iPzedrIG",
    BINARY: "sha384-vjBJ1z7qrhkTyYsNqKeF6c7N+nOJSU94czEo+tvZcu8G75JparGq9kB+kTnEUNVM",
}
LINKED = f"https://cdn.jsdelivr.net/npm/onnxruntime-web@{VERSION}/dist/"
# Where npm installs it, relative to the current folder.
_INSTALLED = (Path("web/node_modules/onnxruntime-web/dist"), Path("node_modules/onnxruntime-web/dist"))
_FILES = ("site.js", "charts.js", "drawing.js", "pictures.js", "style.css", "icon.svg")
_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'{0}; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'{0}; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True, repr=False, eq=False)
class Site(Result):
    """A static page that was written.

    Attributes:
        folder: folder of the page.
        network_bytes: size of the network.
        total_bytes: size of everything.
        runtime: folder that ONNX Runtime was copied from, or the address it is linked from.
    """

    folder: str
    network_bytes: int
    total_bytes: int
    runtime: str

    def tables(self) -> list[Table]:
        """Return the sizes."""
        rows = [["network", f"{self.network_bytes / 1e6:.1f}"], ["everything", f"{self.total_bytes / 1e6:.1f}"]]
        return [Table(self.folder, ["part", "MB"], rows)]


def write_site(
    model: str | Path, folder: str | Path, *, runtime: str | Path | None = None, linked: str = LINKED
) -> Site:
    """Write a page that runs a network in the visitor's browser, for any static host.

    Args:
        model: a bundled network that comes with an exported file, a run folder that has one, or an exported file.
        folder: folder to write to; other files in it are kept.
        runtime: folder with the files of onnxruntime-web, which are copied; searched in ``node_modules`` when None.
        linked: address that they are loaded from if there is no such folder; browsers check their hashes.
    """
    path = _exported_file(model)
    served = open_model(f"network={path}", pytorch=False)
    assert served.predictor is not None
    source = _runtime_folder(runtime)
    place = "./" if source is not None else linked
    page = resources.files("fastcaps.serving") / "static"
    policy, tag = ("", "") if source is not None else (f" {linked}", _script(linked))
    out = Path(folder)
    files = {out / name: (page / name).read_bytes() for name in _FILES}
    template = Template((page / "site.html").read_text())
    files[out / "index.html"] = template.substitute(policy=_POLICY.format(policy), runtime=tag).encode()
    files[out / "network.onnx"] = path.read_bytes()
    files[out / "network.json"] = msgspec.json.encode(_about(served, served.predictor, place))
    if source is not None:
        files |= {out / name: content for name, content in _checked(source).items()}
    write_atomically(files)
    total = sum(map(len, files.values()))
    return Site(str(out), path.stat().st_size, total, str(source) if source is not None else linked)


def _exported_file(model: str | Path) -> Path:
    path = Path(model)
    if path.is_file() or path.suffix == ".onnx":
        return path
    path = resolve(model, exported=True) / ONNX
    if not path.is_file():
        raise FileNotFoundError(
            f"{model} has no exported file for the browser: make one with "
            f"workflows.export('{model}', 'model.onnx', precision='int8'), and give that"
        )
    return path


def _runtime_folder(runtime: str | Path | None) -> Path | None:
    if runtime is not None:
        if not (Path(runtime) / BINARY).is_file():
            raise FileNotFoundError(f"{runtime} has no {BINARY}: expected the folder dist of onnxruntime-web {VERSION}")
        return Path(runtime)
    return next((folder for folder in _INSTALLED if (folder / BINARY).is_file()), None)


def _checked(source: Path) -> dict[str, bytes]:
    """Return the files of ONNX Runtime; raise if they are of another version."""
    contents = {name: (source / name).read_bytes() for name in (MODULE, BINARY)}
    for name, content in contents.items():
        if integrity(content) != INTEGRITY[name]:
            raise ValueError(f"{source / name} is not of onnxruntime-web {VERSION}: run npm ci in web/")
    return contents


def integrity(content: bytes) -> str:
    """Return the hash of a file as browsers check it."""
    return "sha384-" + base64.b64encode(hashlib.sha384(content).digest()).decode()


def _script(linked: str) -> str:
    """Return the element that loads ONNX Runtime: a later import of the same address gets what was checked here."""
    check = f'integrity="{INTEGRITY[MODULE]}" crossorigin="anonymous"'
    return f'<script type="module" src="{linked}{MODULE}" {check}></script>\n'


def _about(served: ServedModel, predictor: Predictor, place: str) -> dict[str, Any]:
    image = served.image
    accuracy = served.card.get("accuracy") or {}
    facts = {"Data": served.data or "unknown", "Routing": served.routing, "Precision": predictor.precision}
    if "accuracy" in accuracy:
        facts["Accuracy"] = f"{accuracy['accuracy']:.2%} of {accuracy['images']:,} test images"
    outputs: Sequence[str] = served.card.get("outputs", ["lengths"])
    return {
        "routing": served.routing,
        "precision": predictor.precision,
        "classes": served.class_names,
        "background": served.background,
        "input": {"channels": image.channels, "height": image.height, "width": image.width, "resize": image.resize},
        "floats": predictor.takes_floats,
        "output": outputs[-1],
        "facts": facts,
        "examples": examples(served),
        "runtime": {"module": place + MODULE, "binary": place + BINARY, "integrity": INTEGRITY[BINARY]},
    }
