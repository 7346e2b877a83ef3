"""Put a finished run's network into the package: ``python -m tools.bundle runs/reproduce/mnist-max_min-0 mnist``.

The weights are rounded to half precision first. Then coefficients are accumulated, unless the network was trained with
fixed ones, and accuracies are measured on the test set and, for a network of digits, on those that scikit-learn has.
All goes into ``run.json`` of the network, from which its card is written: ``python -m tools.bundle --cards`` does only
that, for all networks, and lists sizes and hashes of their files. ``--onnx`` puts an int8 file beside them.
"""

import argparse
import hashlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fastcaps import CapsNet, FastCapsNet, bundled, workflows
from fastcaps._files import json_bytes, write_atomically
from fastcaps._result import plain
from fastcaps.data import load
from fastcaps.nn.pretrained import save_folded_from, weights_hash
from fastcaps.training import Run
from fastcaps.training.accuracy import count_correct
from fastcaps.training.result import public
from tools.cards import card

ROOT = Path(__file__).parent.parent
MODELS = ROOT / "models" / "fastcaps_models"
LARGEST_ONNX = 8_000_000


def main() -> None:
    """Round, accumulate, evaluate, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="the run folder")
    parser.add_argument("name", nargs="?", help="name of the network in the package")
    parser.add_argument("--onnx", action="store_true", help="also export it in int8")
    parser.add_argument("--cards", action="store_true", help="only write the cards of what is there again")
    parser.add_argument("--data-dir", type=Path, default=None)
    arguments = parser.parse_args()
    if arguments.cards == (arguments.name is not None):
        parser.error("give a run and a name, or --cards")
    if arguments.cards:
        for name in bundled.names():
            write_card(MODELS / name)
        write_atomically({MODELS / bundled.FILES: manifest(MODELS)})
        return
    run = Run.open(arguments.run)
    if run.about.state != "finished":
        parser.error(f"{arguments.run} is not finished")
    bundle(run, MODELS / arguments.name, arguments.data_dir, onnx=arguments.onnx)
    write_atomically({MODELS / bundled.FILES: manifest(MODELS)})
    print(json.dumps(plain(bundled.describe(arguments.name)), indent=2))


def bundle(run: Run, folder: Path, data_dir: Path | None = None, *, onnx: bool = False) -> None:
    """Write a run's network, rounded, and all that belongs to it into a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        rounded = Run(Path(temporary))
        rounded.write_about(run.about)
        run.model().half().save_pretrained(rounded.model_folder)
        if run.about.fixed_coefficients:
            replace(run.master(), trained_with=weights_hash(rounded.model())).save(rounded.master_file)
        else:
            workflows.accumulate(rounded, rounded.master_file, data_dir=data_dir, device="cpu")
        evaluation = workflows.evaluate(rounded, data_dir=data_dir, device="cpu")
        provenance = {**rounded.model().provenance, "master": rounded.master().summary().to_dict()}
        save_folded_from(rounded.fast_folder, "model", rounded.master_file.name, provenance)
        names = ["model/config.json", "model/model.safetensors", "master.safetensors", "fast/config.json"]
        if onnx:
            workflows.export(rounded, rounded.folder / bundled.ONNX, precision="int8", data_dir=data_dir)
            size = (rounded.folder / bundled.ONNX).stat().st_size
            if size > LARGEST_ONNX:
                raise ValueError(f"the int8 file has {size:,} bytes, at most {LARGEST_ONNX:,} go into the package")
            names.append(bundled.ONNX)
        files = {folder / name: (rounded.folder / name).read_bytes() for name in names}
    if not onnx:
        (folder / bundled.ONNX).unlink(missing_ok=True)  # of other weights
    accuracies = {name: variant.accuracy for name, variant in evaluation.variants.items()}
    about = replace(public(run.about), evaluation=accuracies)
    write_atomically({**files, folder / "run.json": json_bytes(about.to_dict())})
    write_card(folder)


def write_card(folder: Path) -> None:
    """Measure a network of digits on the embedded ones, then write the card."""
    run = Run(folder)
    if run.about.config.class_names == tuple("0123456789"):
        measured = {"embedded_digits": on_embedded_digits(folder)}
        run.write_about(replace(run.about, more={**run.about.more, **measured}))
    write_atomically({folder / "README.md": card(folder).encode()})


def manifest(models: Path) -> bytes:
    """Return the sizes and hashes of the large files of all networks, as JSON."""
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(path for path in models.rglob("*") if path.suffix in (".safetensors", ".onnx")):
        name, _, inside = path.relative_to(models).as_posix().partition("/")
        content = path.read_bytes()
        file = bundled.ModelFile(len(content), hashlib.sha256(content).hexdigest())
        files.setdefault(name, {})[inside] = plain(file)
    return json_bytes(files)


def on_embedded_digits(folder: str | Path) -> dict[str, float]:
    """Return the accuracies on scikit-learn's test digits, of another hand and another scanner than MNIST's."""
    data = load("digits")
    networks: dict[str, Any] = {"dynamic": CapsNet, "fast": FastCapsNet}
    with torch.no_grad():
        return {
            routing: count_correct(kind.from_pretrained(folder), data.test, data.augmentation.test_view)
            / len(data.test)
            for routing, kind in networks.items()
        }


if __name__ == "__main__":
    main()
