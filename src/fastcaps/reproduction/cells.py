"""What the table is made of: a cell is one training, by data set, normalisation and seed, and has one JSON file.

A file counts when it has a cell's name *and* its content is that cell's: the paper's network, trained with dynamic
routing, evaluated on the whole test set with the paper's coefficients. Other files beside it are other people's.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastcaps.data.registry import SETS
from fastcaps.nn.config import CapsNetConfig
from fastcaps.reproduction.paper import NORMALIZATIONS, TITLES

_NAME = re.compile(rf"({'|'.join(TITLES)})-({'|'.join(NORMALIZATIONS)})-(0|[1-9][0-9]*)")
_ENTRIES = {"data", "settings", "config", "metrics", "evaluation"}


@dataclass(frozen=True)
class Cell:
    """One training.

    Attributes:
        data: name of the data set.
        normalization: of the coefficients.
        seed: of weights, order and augmentation.
    """

    data: str
    normalization: str
    seed: int

    @property
    def name(self) -> str:
        """Of its run folder and its JSON file."""
        return f"{self.data}-{self.normalization}-{self.seed}"


def all_cells(data: Iterable[str], normalizations: Iterable[str], seeds: Iterable[int]) -> list[Cell]:
    """All combinations, in the order in which they are worth most: one seed of everything first, Max-Min first."""
    sets, rules = list(data), list(normalizations)
    return [Cell(name, rule, seed) for seed in seeds for rule in rules for name in sets]


def shard(wanted: Sequence[Cell], number: int, count: int) -> list[Cell]:
    """The cells of one machine of several, counted from 1: each is one machine's, shares differ by at most one."""
    if not 1 <= number <= count:
        raise ValueError(f"there is no part {number} of {count}: expected a number from 1 to {count}")
    return list(wanted[number - 1 :: count])


def network(cell: Cell) -> CapsNetConfig:
    """The paper's network for a cell."""
    if cell.data == "cifar10":
        return CapsNetConfig.cifar10(normalization=cell.normalization)
    return CapsNetConfig.mnist(normalization=cell.normalization, class_names=SETS[cell.data].class_names)


def finished(folder: Path) -> dict[Cell, dict[str, Any]]:
    """What the JSON files of a folder say of each cell that has one; other files are left alone."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        match = _NAME.fullmatch(path.stem)
        if match is not None:
            cell = Cell(match[1], match[2], int(match[3]))
            found[cell] = result(path, cell)
    return found


def result(path: Path, cell: Cell) -> dict[str, Any]:
    """What a cell's JSON file says; refused when it is about anything else."""
    try:
        found = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict) or not found.keys() >= _ENTRIES:
        raise ValueError(f"{path} is not of a finished run: it lacks one of {', '.join(sorted(_ENTRIES))}")
    check_result(found, cell, path)
    return found


def check_result(found: dict[str, Any], cell: Cell, where: Path) -> None:
    """Refuse a result that is not the cell's: another run, a part of the test images, coefficients of another kind."""
    check_run(found, cell, where)
    evaluation, iterations = found["evaluation"], found["config"]["iterations"]
    if evaluation["part"] != "test" or evaluation["images"] != found["data"]["test"]:
        raise ValueError(
            f"{where} was evaluated on {evaluation['images']} {evaluation['part']} images, expected all "
            f"{found['data']['test']} test images: evaluate it without --part and --limit"
        )
    master = evaluation["master"]
    given = (master["iteration"], master.get("method", "containers"), len(master.get("filters", [])))
    if given != (iterations, "containers", 0):
        raise ValueError(
            f"{where} was evaluated with coefficients of iteration {given[0]}, {given[1]}, {given[2]} filters, "
            f"expected the paper's (iteration {iterations}, containers, 0 filters): "
            "fastcaps accumulate without options makes them"
        )


def check_run(about: dict[str, Any], cell: Cell, where: Path) -> None:
    """Refuse a run that is not the cell's: other data, network or seed, or not trained with dynamic routing alone."""
    expected = {"data": cell.data, "normalization": cell.normalization, "seed": cell.seed}
    given = {
        "data": about["data"]["name"],
        "normalization": about["config"].get("normalization"),
        "seed": about["settings"]["seed"],
    }
    wrong = [f"{name} is {given[name]}, expected {value}" for name, value in expected.items() if given[name] != value]
    if not wrong:
        own, papers = CapsNetConfig.from_dict(about["config"]).to_dict(), network(cell).to_dict()
        wrong += [f"{name} is {own[name]}, the paper's {papers[name]}" for name in own if own[name] != papers[name]]
    if about.get("fixed_coefficients") or about.get("init") or about.get("master"):
        wrong.append("it was trained with fixed coefficients, or from another run's weights")
    if about["settings"].get("loss", "margin") != "margin":
        wrong.append(f"loss is {about['settings']['loss']}, the paper's margin")
    if wrong:
        raise ValueError(f"{where} is no run for the paper's table ({'; '.join(wrong)}): move it to another name")
