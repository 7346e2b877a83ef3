"""What ``run.json`` says of a run: read from this and earlier versions, written completely."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastcaps.training import Run, TrainSettings
from fastcaps.training.description import RunDescription

DATA: dict[str, Any] = {"name": "mnist", "call": None, "fingerprint": "0"}
LEAST: dict[str, Any] = {"data": DATA, "settings": {}, "config": {}}
STOPPED = Path(__file__).parent.parent / "files" / "v0.1" / "stopped" / "run.json"


def test_further_entries_survive(tmp_path):
    run = Run(tmp_path)
    run.write_about(RunDescription.from_dict({**LEAST, "state": "running", "own": {"entry": 1}}))
    Run.open(tmp_path)  # notes that it was interrupted
    stored = json.loads(run.about_file.read_text())
    assert (stored["state"], stored["own"]) == ("interrupted", {"entry": 1})
    assert stored.keys() == {"state", "own", *LEAST, "convolution", "fixed_coefficients"}
    assert RunDescription.load(run.about_file) == run.about


def test_a_run_of_an_earlier_version():
    about = RunDescription.load(STOPPED)
    stored = json.loads(STOPPED.read_text())
    assert about.settings == TrainSettings.from_dict(stored["settings"])
    assert about.data.background == 0  # which it did not store
    written = about.to_dict()
    assert written.keys() == stored.keys()
    assert written["data"].keys() == stored["data"].keys() | {"background", "test_hashes", "left_out"}
    assert written["config"] | stored["config"] == written["config"]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"settings": {"epochs": "two"}}, "file is damaged: settings.epochs: expected int, got str"),
        ({"settings": {"epochs": 0}}, "file is damaged: settings: epochs is 0, expected a whole number, at least 1"),
        ({"settings": {"epoch": 1}}, "file is damaged: epoch is no setting"),
        ({"settings": []}, "file is damaged: settings: expected object, got array"),
        ({"data": {**DATA, "name": ["mnist"]}}, r"file is damaged: data.name: expected str, got array"),
        (
            {"data": {**DATA, "call": {}}},
            r"file is damaged: data\.call has no name_or_folder, expected a name or a folder",
        ),
        (
            {"data": {**DATA, "provenance": {"kind": "folder", "images": 3}}},
            r"file is damaged: data\.provenance\.images is 3, expected the numbers of train and test",
        ),
        ({"state": "lost"}, "file is damaged: state: invalid enum value 'lost'"),
        ({"extended": [{"epochs": 1}]}, r"file is damaged: extended\[0\]: object missing required field new_epochs"),
    ],
)
def test_damage_is_named(entry, words):
    with pytest.raises(ValueError, match=words):
        RunDescription.from_dict({**LEAST, **entry}, "file")


def test_reading_it_as_a_dictionary_is_deprecated():
    about = replace(RunDescription.from_dict(LEAST), command="train")
    with pytest.warns(DeprecationWarning, match=r'RunDescription\["command"\]: use RunDescription.command or .to_dict'):
        assert about["command"] == "train"
    with pytest.warns(DeprecationWarning, match=r"RunDescription.get\(.init.\)"):
        assert about.get("init", 1) == 1
    with pytest.warns(DeprecationWarning, match="RunDescription contains 'data'"):
        assert "data" in about
    with pytest.warns(DeprecationWarning, match="RunDescription"):
        assert {**about} == about.to_dict()


@pytest.mark.parametrize(
    ("read", "old"),
    [
        (lambda about: dict(about.items()), ".items()"),
        (lambda about: dict(zip(about.to_dict(), about.values(), strict=True)), ".values()"),
        (lambda about: {name: about.to_dict()[name] for name in about}, " as an iterable"),
        (lambda about: about.to_dict() if len(about) == len(about.to_dict()) else None, " with a length"),
        (lambda about: about | {}, " | …"),
        (lambda about: {"own": 2} | about, " | …"),
    ],
)
def test_all_that_a_dictionary_can_is_deprecated(read, old):
    about = RunDescription.from_dict({**LEAST, "own": 1})
    words = f"RunDescription{old}: use RunDescription.to_dict(); will be removed"
    with pytest.warns(DeprecationWarning, match=re.escape(words)):
        assert read(about) == about.to_dict()


def test_the_warning_names_what_exists():
    about = RunDescription.from_dict({**LEAST, "own": 1})
    with pytest.warns(DeprecationWarning, match=re.escape('["own"]: use RunDescription.more["own"] or .to_dict();')):
        assert about["own"] == 1
    with pytest.warns(DeprecationWarning, match=re.escape('.get("other"): use RunDescription.to_dict();')):
        assert about.get("other") is None
    assert about  # without a warning
