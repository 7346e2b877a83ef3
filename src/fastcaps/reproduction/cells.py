"""The runs of the paper's table: a cell is one training, by data set, normalization and seed, and has one JSON file.

A file counts when it has a cell's name *and* its content is that cell's: the paper's network, trained with dynamic
routing, evaluated on the whole test set with the paper's coefficients. Other files are ignored.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastcaps.data.registry import SETS
from fastcaps.nn.config import CapsNetConfig
from fastcaps.reproduction.paper import NORMALIZATIONS, TITLES
from fastcaps.reproduction.results import RunResult
from fastcaps.training.description import RunDescription

_NAME = re.compile(rf"({'|'.join(TITLES)})-({'|'.join(NORMALIZATIONS)})-(0|[1-9][0-9]*)")


@dataclass(frozen=True)
class Cell:
    """One training.

    Attributes:
        data: name of the data set.
        normalization: normalization of the coefficients.
        seed: seed of weights, order and augmentation.
    """

    data: str
    normalization: str
    seed: int

    @property
    def name(self) -> str:
        """Name of its run folder and its JSON file."""
        return f"{self.data}-{self.normalization}-{self.seed}"


def all_cells(data: Iterable[str], normalizations: Iterable[str], seeds: Iterable[int]) -> list[Cell]:
    """Return all combinations, ordered by seed first."""
    sets, rules = list(data), list(normalizations)
    return [Cell(name, rule, seed) for seed in seeds for rule in rules for name in sets]


def shard(wanted: Sequence[Cell], number: int, count: int) -> list[Cell]:
    """Return the cells of machine ``number`` (from 1) of ``count``; numbers of cells differ by at most one."""
    if not 1 <= number <= count:
        raise ValueError(f"there is no part {number} of {count}: expected a number from 1 to {count}")
    return list(wanted[number - 1 :: count])


def network(cell: Cell) -> CapsNetConfig:
    """Return the paper's network for a cell."""
    if cell.data == "cifar10":
        return CapsNetConfig.cifar10(normalization=cell.normalization)
    return CapsNetConfig.mnist(normalization=cell.normalization, class_names=SETS[cell.data].class_names)


def finished(folder: str | Path) -> dict[Cell, RunResult]:
    """Return the results of a folder by their cells; files with other names are ignored."""
    results = {}
    for path in sorted(Path(folder).glob("*.json")):
        match = _NAME.fullmatch(path.stem)
        if match is not None:
            cell = Cell(match[1], match[2], int(match[3]))
            results[cell] = RunResult.load(path)
            check_result(results[cell], cell, path)
    return results


def check_result(result: RunResult, cell: Cell, where: Path) -> None:
    """Raise if a result is not that of the cell: another run, a part of the test images, or other coefficients."""
    check_run(result.about, cell, where)
    evaluation, iterations = result.evaluation, result.about.config.iterations
    if evaluation.part != "test" or evaluation.images != result.about.data.test:
        raise ValueError(
            f"{where} was evaluated on {evaluation.images} {evaluation.part} images, expected all "
            f"{result.about.data.test} test images: evaluate it on the whole test set"
        )
    master = evaluation.master
    iteration, method, filters = (
        (None, None, 0) if master is None else (master.iteration, master.method, len(master.filters))
    )
    if (iteration, method, filters) != (iterations, "per_class", 0):
        raise ValueError(
            f"{where} was evaluated with coefficients of iteration {iteration}, {method}, "
            f"{filters} filters, expected the paper's (iteration {iterations}, per_class, 0 filters): "
            "fastcaps accumulate without options makes them"
        )


def check_run(run: RunDescription, cell: Cell, where: Path) -> None:
    """Raise if a run is not that of the cell: other data, network or seed, or not only dynamic routing."""
    expected = {"data": cell.data, "normalization": cell.normalization, "seed": cell.seed}
    values = {"data": run.data.name, "normalization": run.config.normalization, "seed": run.settings.seed}
    wrong = [f"{name} is {values[name]}, expected {value}" for name, value in expected.items() if values[name] != value]
    if not wrong:
        own, paper = run.config.to_dict(), network(cell).to_dict()
        wrong += [f"{name} is {own[name]}, the paper's {paper[name]}" for name in own if own[name] != paper[name]]
    if run.fixed_coefficients or run.init or run.master:
        wrong.append("it was trained with fixed coefficients, or from another run's weights")
    if run.settings.loss != "margin":
        wrong.append(f"loss is {run.settings.loss}, the paper's margin")
    if wrong:
        raise ValueError(f"{where} is no run for the paper's table ({'; '.join(wrong)}): move it to another name")
