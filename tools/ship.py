"""Put a finished run's network into the package: ``python -m tools.ship runs/mnist mnist``.

The weights are rounded to half precision first; coefficients are accumulated and accuracies measured with the rounded
weights. What was measured goes into the network's ``run.json`` and into ``results/``.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from fastcaps._files import json_bytes, write_atomically
from fastcaps.cli._common import set_up
from fastcaps.cli.accumulate import accumulated
from fastcaps.cli.evaluate import evaluated
from fastcaps.training import Run
from fastcaps.training.result import public, result_of

ROOT = Path(__file__).parent.parent


def main() -> None:
    """Round, accumulate, evaluate, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("name", help="name of the network in the package")
    parser.add_argument("--data-dir", type=Path, default=None)
    arguments = parser.parse_args()
    run = Run.open(arguments.run)
    if run.about["state"] != "finished":
        parser.error(f"{arguments.run} is not finished")
    device = set_up("cpu", None)
    with tempfile.TemporaryDirectory() as temporary:
        rounded = Run(Path(temporary))
        rounded.write_about(run.about)
        run.model().half().save_pretrained(rounded.model_folder)
        accumulated(rounded, device, rounded.master_file, data_dir=arguments.data_dir)
        evaluation = evaluated(rounded, device, None, data_dir=arguments.data_dir)
        folder = ROOT / "src" / "fastcaps" / "models" / arguments.name
        files = {
            path: (rounded.folder / path).read_bytes()
            for path in ("model/config.json", "model/model.safetensors", "master.safetensors")
        }
    write_atomically(
        {
            **{folder / path: content for path, content in files.items()},
            folder / "run.json": json_bytes({**public(run.about), "evaluation": summary(evaluation)}),
        }
    )
    write_atomically({ROOT / "results" / f"{arguments.name}.json": json_bytes(result_of(run, evaluation))})
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder.relative_to(ROOT)}: {size / 1e6:.1f} MB", summary(evaluation))


def summary(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Accuracies in a line."""
    return {name: variant["accuracy"] for name, variant in evaluation["variants"].items()}


if __name__ == "__main__":
    main()
