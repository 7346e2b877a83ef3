"""``fastcaps compress`` parses its options, calls the workflow and prints."""

import json

from typer.testing import CliRunner

from fastcaps.cli import app
from fastcaps.compression import CompressSettings, RefitSettings, Size
from fastcaps.compression.results import CompressionResult
from fastcaps.compression.search import Step

STEP = Step(Size(2, 3), 100, 1000, 0.5, 0.9, [])
RESULT = CompressionResult(
    run="mnist", folder="small", command=None, settings=CompressSettings(max_drop=0.3), size=STEP.size, seconds=1.0,
    whole=Size(4, 6), met=False, reference=0.95, source_accuracy=0.99, held_out=10, seen=True, steps=(STEP,),
    rankings=(), times=(),
)  # fmt: skip


def test_options_become_settings(monkeypatch):
    asked = []

    def compress(run, out, **options):
        asked.append((str(run), str(out), options))
        return RESULT

    monkeypatch.setattr("fastcaps.workflows.compression.compress", compress)
    arguments = (
        "compress mnist --out small --max-drop 0.3 --types 2 --stem 3 --epochs 4 --views 2 --held-out 0.2 "
        "--batch-size 16 --data pictures"
    )
    done = CliRunner().invoke(app, [*arguments.split(), "--resume", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == RESULT.to_dict()
    ((run, out, options),) = asked
    assert (run, out) == ("mnist", "small")
    settings = CompressSettings(
        max_drop=0.3, types=2, maps=3, held_out=0.2, views=2, batch_size=16, refit=RefitSettings(epochs=4)
    )
    assert (options["settings"], options["data"]) == (settings, "pictures")
    assert options["resume"]
    done = CliRunner().invoke(app, ["compress", "mnist", "--out", "small", "--held-out", "100"])
    assert asked[1][2]["settings"] == CompressSettings(held_out=100)
    assert "it loses 5.00 points, more than the limit of 0.3" in done.output


def test_an_interrupt_names_the_option(monkeypatch):
    def compress(run, out, **options):
        raise KeyboardInterrupt("interrupted: the same call with resume=True resumes the search")

    monkeypatch.setattr("fastcaps.workflows.compression.compress", compress)
    done = CliRunner().invoke(app, ["compress", "mnist", "--out", "small"])
    assert done.exit_code == 130
    assert "interrupted: the same call with --resume resumes the search" in done.stderr


def test_contradictions_are_refused():
    done = CliRunner().invoke(app, ["compress", "mnist", "--out", "small", "--speedup", "3", "--types", "2"])
    assert done.exit_code == 2
    assert "--speedup decides the numbers of types and maps" in " ".join(done.stderr.split())
