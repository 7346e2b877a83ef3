"""The content of ``run.json``. This module does not import PyTorch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from fastcaps._former_dict import FormerDict
from fastcaps._machine import Machine
from fastcaps._result import Record, json_field
from fastcaps.data.options import LoadCall
from fastcaps.data.registry import SETS
from fastcaps.master.summary import MasterSummary
from fastcaps.nn.config import CapsNetConfig
from fastcaps.training.config import Convolution
from fastcaps.training.settings import TrainSettings

if TYPE_CHECKING:
    from fastcaps.data import DataSet

State = Literal["running", "interrupted", "failed", "finished"]


@dataclass(frozen=True, kw_only=True)
class DataDescription(Record):
    """The data set of a run, as stored in ``run.json``.

    Attributes:
        name: name of the data set.
        call: arguments of `fastcaps.data.load`; None for a data set made in Python.
        fingerprint: identifies the images.
        provenance: origin of the images.
        train: number of training images.
        validation: number of training images held out.
        test: number of test images.
        augmentation: augmentation of the training images.
        background: as `DataSet.background`.
        test_hashes: as `DataSet.test_hashes`.
        left_out: as `DataSet.left_out`.
    """

    name: str
    call: LoadCall | None
    fingerprint: str
    provenance: dict[str, Any] = field(default_factory=dict)
    train: int | None = None
    validation: int = 0
    test: int | None = None
    augmentation: dict[str, Any] = field(default_factory=dict)
    background: float | None = None
    test_hashes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @classmethod
    def stored(cls, values: dict[str, Any], source: str) -> dict[str, Any]:
        """Add the background, which earlier versions did not store; raise if the entries don't tell the images."""
        call, provenance, name = (values.get(entry) for entry in ("call", "provenance", "name"))
        if isinstance(call, dict) and "name_or_folder" not in call:
            raise ValueError(f"{source} is damaged: data.call has no name_or_folder, expected a name or a folder")
        if isinstance(provenance, dict) and provenance.get("kind") == "folder":
            images = provenance.get("images")
            if not isinstance(images, dict) or {type(images.get(part)) for part in ("train", "test")} != {int}:
                raise ValueError(
                    f"{source} is damaged: data.provenance.images is {images!r}, expected the numbers of train and test"
                )
        if "background" not in values and isinstance(name, str) and name in SETS:
            return {**values, "background": SETS[name].background}
        return values

    @property
    def kind(self) -> str:
        """The ``kind`` of the provenance, such as ``"original"`` or ``"folder"``."""
        return str(self.provenance.get("kind"))

    @classmethod
    def of(cls, data: "DataSet", train: int, validation: int) -> Self:
        """Describe a data set with these numbers of images to train on and held out."""
        return cls(
            name=data.name,
            call=data.call,
            fingerprint=data.fingerprint,
            provenance=data.provenance,
            train=train,
            validation=validation,
            test=len(data.test),
            augmentation=data.augmentation.to_dict(),
            background=data.background,
            test_hashes=data.test_hashes,
            left_out=data.left_out,
        )


@dataclass(frozen=True)
class Extension:
    """An extension of a run after ``after_epoch`` epochs, from ``epochs`` to ``new_epochs`` epochs."""

    epochs: int
    new_epochs: int
    after_epoch: int


@dataclass(frozen=True)
class InitialWeights:
    """The run whose weights another run started from, and the hash of these weights."""

    run: str
    weights: str


@dataclass(frozen=True, kw_only=True)
class RunDescription(FormerDict):
    """The content of ``run.json``. Entries that an earlier version did not write are None, or have their default.

    Attributes:
        state: ``"running"``, ``"interrupted"`` (also by being killed), ``"failed"``, or ``"finished"``.
        command: command line that started the run.
        init: the run it started from, if any.
        master: summary of the initial coefficients, if any.
        extended: extensions of the run by more epochs, if any.
        fast_every: epochs between measurements with fast routing.
        data: the data set.
        settings: settings of the training.
        config: configuration of the network.
        convolution: implementation of the convolution of the lower capsules.
        fixed_coefficients: whether it was trained with fixed coefficients.
        device: device that it was trained on.
        threads: CPU threads.
        processes: number of processes.
        machine: machine that it was trained on.
        versions: versions of packages, by name.
        seconds: duration of the training.
        rounded: precision to which the weights were rounded before an evaluation, if they were.
        evaluation: accuracy by variant of routing; for bundled networks only.
        more: other entries, from the ``about`` of the trainer.
    """

    state: State = "finished"
    command: str | None = json_field(omit_none=True)
    init: InitialWeights | None = json_field(omit_none=True)
    master: MasterSummary | None = json_field(omit_none=True)
    extended: tuple[Extension, ...] | None = json_field(omit_none=True)
    fast_every: int | None = json_field(omit_none=True)
    data: DataDescription
    settings: TrainSettings
    config: CapsNetConfig
    convolution: Convolution = "auto"
    fixed_coefficients: bool = False
    device: str | None = json_field(omit_none=True)
    threads: int | None = json_field(omit_none=True)
    processes: int | None = json_field(omit_none=True)
    machine: Machine | None = json_field(omit_none=True)
    versions: Mapping[str, str] | None = json_field(omit_none=True)
    seconds: float | None = json_field(omit_none=True)
    rounded: str | None = json_field(omit_none=True)
    evaluation: Mapping[str, float] | None = json_field(omit_none=True)
    more: Mapping[str, Any] = json_field(default_factory=dict, flat=True)

    @classmethod
    def stored(cls, values: dict[str, Any], source: str) -> dict[str, Any]:
        """Return the content of ``run.json``; raise ValueError for other files."""
        if not {"data", "settings", "config"} <= values.keys():
            raise ValueError(f"{source} is not of a fastcaps run: it lacks data, settings or config")
        return values
