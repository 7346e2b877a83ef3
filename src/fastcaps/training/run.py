"""A run folder: its files, and how to open it.

| file | written by | content |
|---|---|---|
| ``run.json`` | train | settings, network, data and its provenance, versions, command, state |
| ``config.toml`` | train | all options, for ``fastcaps train --config`` |
| ``metrics.jsonl`` | train | one line per epoch |
| ``checkpoint.safetensors`` | train | the state to resume from |
| ``.lock`` | everything that writes | locked while a process writes |
| ``best/`` | train | with a validation split: the best weights on it |
| ``model/`` | train | the trained network: the best with a validation split, otherwise the last |
| ``tensorboard/`` | train | events of the TensorBoard logger |
| ``master.safetensors`` | accumulate | the master coefficients of ``model/``; others beside it under other names |
| | train | with fixed coefficients: the ones used in training |
| ``fast/`` | accumulate, train | ``model/`` with ``master.safetensors`` folded in |
| ``evaluation.json``, ``confusion.png`` | evaluate | all measurements |
| ``ablation.json``, ``ablation.png`` | ablate | all variants of building the matrix |
| ``report/`` | analyze, demo | a page about the run |
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fastcaps import _hub
from fastcaps._files import json_bytes, recover, write_atomically
from fastcaps._json import parse_json
from fastcaps._renamed import warn_renamed
from fastcaps.bundled import is_bundled, names_expected, resolve
from fastcaps.training.description import RunDescription
from fastcaps.training.reports import EpochMetrics
from fastcaps.training.run_data import find_data, has_grown, images_note
from fastcaps.training.settings import HeldOut, TrainSettings

if TYPE_CHECKING:
    from fastcaps.data import DataSet, Split
    from fastcaps.master import MasterCoefficients
    from fastcaps.nn import CapsNet


@dataclass(frozen=True, repr=False)
class Run:
    """A run folder.

    Attributes:
        folder: path of the folder.
    """

    folder: Path

    def __repr__(self) -> str:
        """Return the folder."""
        return f"Run({str(self.folder)!r})"

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Return the run of a folder that `fastcaps train` or `Trainer` wrote, or by name: bundled or on the Hub."""
        run = cls(resolve(folder))
        if not is_bundled(run.folder):
            recover(run.folder)
            run._mark_interrupted()
        if not run.about_file.is_file():
            raise FileNotFoundError(
                f"{folder} is no run: it has no run.json, as fastcaps train writes; expected a folder that has one, or "
                f"{names_expected(folder)}"
            )
        return run

    @property
    def about_file(self) -> Path:
        """Settings and provenance."""
        return self.folder / "run.json"

    @property
    def config_file(self) -> Path:
        """All options, as a config file."""
        return self.folder / "config.toml"

    @property
    def metrics_file(self) -> Path:
        """One line per epoch."""
        return self.folder / "metrics.jsonl"

    @property
    def checkpoint_file(self) -> Path:
        """The state to resume from."""
        return self.folder / "checkpoint.safetensors"

    @property
    def model_folder(self) -> Path:
        """The trained network."""
        return self.folder / "model"

    @property
    def best_folder(self) -> Path:
        """The best network on the validation split."""
        return self.folder / "best"

    @property
    def best_master_file(self) -> Path:
        """The fixed coefficients that the best network was trained with, if any."""
        return self.best_folder / "master.safetensors"

    @property
    def fast_folder(self) -> Path:
        """The folded network."""
        return self.folder / "fast"

    @property
    def master_file(self) -> Path:
        """The master coefficients that are used by default."""
        return self.folder / "master.safetensors"

    @property
    def evaluation_files(self) -> tuple[Path, Path]:
        """The files that an evaluation writes."""
        return self.folder / "evaluation.json", self.folder / "confusion.png"

    @cached_property
    def about(self) -> RunDescription:
        """The content of ``run.json``."""
        return RunDescription.load(self.about_file)

    @property
    def description(self) -> RunDescription:
        """Former name of `about`; will be removed in the next release."""
        warn_renamed("Run.description", "Run.about")
        return self.about

    @property
    def settings(self) -> TrainSettings:
        """The settings of the training."""
        return self.about.settings

    def write_about(self, about: RunDescription, files: Mapping[Path, bytes | None] | None = None) -> None:
        """Write ``run.json``, in one transaction with other files of the folder."""
        write_atomically({**(files or {}), self.about_file: json_bytes(about.to_dict())})
        self.__dict__.pop("about", None)

    def outdated(self) -> dict[Path, bytes | None]:
        """Return the files made with the current weights, each as None, so that `write_about` removes them."""
        files = [*self.evaluation_files, self.master_file, *self.fast_folder.glob("*")]
        return {file: None for file in files if file.is_file()}

    def _mark_interrupted(self) -> None:
        """Mark a run as interrupted in ``run.json`` if its process was killed before it could do so."""
        with suppress(ValueError, OSError):  # damaged, not a run, or not ours to write
            if self.about.state == "running":
                with self.locked():
                    self.write_about(replace(self.about, state="interrupted"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing into the folder.

        The lock is released however this process ends. Only on file systems without locks, a killed process leaves it.
        """
        from filelock import FileLock, Timeout

        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / ".lock"
        lock = FileLock(file)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(
                f"another process is writing into {self.folder}: wait until it has finished, or choose another folder "
                f"(if none is, remove {file})"
            ) from None
        try:
            recover(self.folder)
            yield
        finally:
            lock.release()

    def metrics(self) -> list[EpochMetrics]:
        """Return the metrics of all epochs that are done."""
        if not self.metrics_file.is_file():
            return []
        rows = []
        for number, line in enumerate(self.metrics_file.read_bytes().splitlines(), 1):
            source = f"line {number} of {self.metrics_file}"
            rows.append(EpochMetrics.from_dict(parse_json(line, Any, source), source))
        return rows

    def model(self) -> "CapsNet":
        """Return the trained network."""
        from fastcaps.nn import CapsNet

        if not self.model_folder.is_dir():
            raise FileNotFoundError(f"{self.model_folder} does not exist: the run is not finished, resume its training")
        return CapsNet.from_pretrained(self.model_folder)

    def master(self, file: str | Path | None = None) -> "MasterCoefficients":
        """Return the master coefficients of a file, by default those of the run."""
        from fastcaps.master import MasterCoefficients

        if file is None and not self.master_file.is_file():
            raise FileNotFoundError(
                f"{self.master_file} does not exist: make it with fastcaps accumulate {self.folder}"
            )
        master = MasterCoefficients.load(file or self.master_file)
        if file is None and self.fast_folder.is_dir():
            from fastcaps.nn.pretrained import check_same_coefficients, recorded_coefficients

            recorded = recorded_coefficients(self.fast_folder)
            check_same_coefficients(self.fast_folder, recorded, self.master_file, master.values_hash)
        return master

    def push_to_hub(
        self, name: str, *, message: str | None = None, private: bool | None = None, token: str | None = None
    ) -> str:
        """Upload networks, coefficients and ``run.json`` to the Hugging Face Hub, and return their address.

        Unlike a network alone, a run can be used by its name on the command line, too: ``fastcaps predict user/name``.

        Args:
            name: name of the repository, such as ``"user/name"``; it is created if it doesn't exist. A card is added
                if it has none.
            message: commit message.
            private: whether a new repository is private; by default the setting of the account.
            token: token of an account with write access; by default that of ``hf auth login`` or ``$HF_TOKEN``.
        """
        from fastcaps.nn.pretrained import card
        from fastcaps.training.result import public

        self.model()  # raises if the network can't be loaded
        files = {file: (self.folder / file).read_bytes() for file in _hub.FILES if (self.folder / file).is_file()}
        files[self.about_file.name] = json_bytes(public(self.about).to_dict())
        kind = "FastCapsNet" if "fast/config.json" in files else "CapsNet"
        text = files.pop(_hub.CARD, card(self.about.config, name, kind).encode())
        return _hub.upload(name, files, text, message=message, private=private, token=token)

    def held_out(self, data: "DataSet") -> HeldOut:
        """Return the settings with which another run on the same data holds out the same images."""
        settings = self.settings
        if not settings.validation or not self._is_own(data):
            return {}
        return {"validation": settings.validation, "seed": settings.seed}

    def check_held_out(self, data: "DataSet", settings: TrainSettings) -> None:
        """Raise if a run that starts from these weights would not hold out the same images."""
        own = self.settings
        if not self._is_own(data) or not (own.validation or settings.validation):
            return
        if (own.validation, own.seed) != (settings.validation, settings.seed):
            raise ValueError(
                f"{self.folder} was trained with {_held_out(own.validation, own.seed)}, this run would be with "
                f"{_held_out(settings.validation, settings.seed)}: some images would be seen in one and held "
                "out in the other, so leave validation= and seed= as they were"
            )

    def check_comparable(self, other: "Run", part: str) -> None:
        """Raise if two runs have different images, or if only one of them was trained on some images of ``part``."""
        data, others = self.about.data, other.about.data
        if data.fingerprint != others.fingerprint:
            raise ValueError(
                f"{self.folder} was trained with other images ({data.name}, fingerprint {data.fingerprint[:12]}…) than "
                f"{other.folder} ({others.name}, {others.fingerprint[:12]}…): compare runs with the same data"
            )
        held_out, others_held_out = (_held_out(run.settings.validation, run.settings.seed) for run in (self, other))
        if part != "test" and held_out != others_held_out:
            raise ValueError(
                f"{self.folder} was trained with {held_out}, {other.folder} with {others_held_out}: one of them has "
                f"learned from images of the {part} part that the other has not, so compare on the test images"
            )

    def test_part(self, data: "DataSet") -> "Split":
        """Return the images to test on: the test images, or all images of another folder that is not divided."""
        return data.everything() if self.has_others(data) and data.test_hashes else data.test

    def training_part(self, data: "DataSet") -> "Split":
        """Return the images that the run was trained on: all training images but those held out for validation.

        For other data, return its training images.
        """
        settings = self.settings
        if not settings.validation or not self._is_own(data):
            return data.train
        return data.validation_split(settings.validation, settings.seed)[0]

    def validation_part(self, data: "DataSet") -> "Split | None":
        """Return the training images that the run held out; None if there are none, and for other data."""
        settings = self.settings
        if not settings.validation or not self._is_own(data):
            return None
        return data.validation_split(settings.validation, settings.seed)[1]

    @property
    def background(self) -> float | None:
        """Brightness of the edge of the training images, as `DataSet.background`."""
        return self.about.data.background

    def data(
        self,
        data_dir: str | Path | None = None,
        *,
        data: "DataSet | str | Path | None" = None,
        test_only: bool = False,
    ) -> "DataSet":
        """Return the data set that the run was trained with; raise if its images have changed.

        A folder that has grown is used with a warning: its test images stay the same, new images are for training.

        Args:
            data_dir: folder with the files of the data sets.
            data: the data set itself, the folder where it is now, or other images of the same classes, also by the
                name of a data set; see `images_note`.
            test_only: load only the test images.
        """
        return find_data(self.folder, self.about.data, self.about.config, data, data_dir, test_only)

    def images_note(self, data: "DataSet") -> str | None:
        """Return a note for results on images that are not those of the run; None for its own."""
        return images_note(self.about.data, data)

    def has_others(self, data: "DataSet") -> bool:
        """Return whether images are others than those of the run; a folder that has grown doesn't count as other."""
        return not self._is_own(data) and not has_grown(self.about.data, data)

    def _is_own(self, data: "DataSet") -> bool:
        return data.fingerprint == self.about.data.fingerprint


def training_provenance(data: "DataSet", settings: TrainSettings) -> dict[str, Any]:
    """Return the provenance of coefficients that are accumulated from the training images."""
    return {
        "data": data.name,
        "data_fingerprint": data.fingerprint,
        "part": "train without validation" if settings.validation else "train",
        "validation": settings.validation,
        "seed": settings.seed,
    }


def check_not_held_out(master: "MasterCoefficients", data: "DataSet", settings: TrainSettings) -> None:
    """Raise if coefficients were accumulated with images that a run would hold out."""
    about = master.provenance
    if not settings.validation or about.get("data_fingerprint") != data.fingerprint:
        return
    held_out = (about.get("validation") or 0, about.get("seed"))
    if held_out != (settings.validation, settings.seed):
        raise ValueError(
            f"the coefficients were accumulated with {_held_out(*held_out)}, this run would be with "
            f"{_held_out(settings.validation, settings.seed)}: images that it holds out were accumulated: "
            "use coefficients of a run that holds out the same images"
        )


def _held_out(validation: float, seed: int | None) -> str:
    if not validation:
        return "no images held out"
    words = f"{validation:g} of its images" if validation < 1 else f"{validation} images"
    return f"{words} held out by seed {seed}"
