"""The settings of a training run. This module does not import PyTorch.

Adam with its default moments. The learning rate rises linearly over the first steps, because the first updates of
Adam move all weights of a class capsule in the same direction at once, and Max-Min adds them all up; then it decays,
exponentially, linearly or along a cosine, to a given fraction of itself at the last step.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypedDict, get_args

from fastcaps._renamed import renamed_attributes, renamed_fields, warn_renamed
from fastcaps._result import Record, ShortRepr
from fastcaps.data.registry import SETS

Decay = Literal["exponential", "cosine", "linear"]
Loss = Literal["margin", "cross_entropy"]

# Groups of options on the command line.
_LOSS, _FIXED = {"group": "Loss"}, {"group": "Fixed coefficients"}
_RENAMED = {"afresh": "reinit", "refresh": "refresh_every"}


class HeldOut(TypedDict, total=False):
    """Settings that decide which training images are held out; empty if none are.

    Attributes:
        validation: as `TrainSettings.validation`.
        seed: as `TrainSettings.seed`.
    """

    validation: float | int
    seed: int


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings of an earlier version under their current names."""
    return {_RENAMED.get(name, name): value for name, value in values.items()}


@renamed_attributes(going_on="finetune_defaults")
@renamed_fields(**_RENAMED)
@dataclass(frozen=True, kw_only=True, repr=False)
class TrainSettings(ShortRepr, Record):
    """Settings of a training run. With network, data and number of threads they determine its result.

    Attributes:
        epochs: passes over the training images (default: by data set).
        batch_size: images per step (default: 128, fewer for small folders).
        seed: seed of initial weights, order and augmentation.
        learning_rate: highest learning rate of Adam (default: 0.001, lower for small folders).
        primary_rate: learning rate of PrimaryCaps as a fraction of that of the other layers.
        whiten_stem: start the filters of the stem as whitened principal components of patches of the training images.
        final_rate: fraction of the learning rate that is left at the last step (default: 0.02, or by data set).
        decay: decay of the learning rate: exponential, linear or cosine (default: exponential).
        averaging: decay of the moving average of the weights, such as 0.999; the average is validated, tested and
            saved (default: 0, no average).
        warmup: steps over which the learning rate rises, at most a third of all (default: 100, or by data set).
        validation: fraction of the training images to hold out, or their number (default: none).
        test_every: epochs between evaluations on the test images, which decide nothing; 0 for never.
        checkpoint_every: steps between checkpoints within an epoch; 0 for none.
        loss: loss of the lengths of class capsules: margin or cross_entropy.
        sharpness: factor of the lengths in the cross-entropy.
        reconstruction_weight: weight of the squared error of the decoder.
        positive_margin: length that the capsule of the label should exceed.
        negative_margin: length that the other capsules should stay below.
        negative_weight: weight of the other capsules in the margin loss.
        dynamic_epochs: epochs with dynamic routing, after which coefficients are accumulated and fixed (default: all).
        dynamic_fraction: fraction of the training images for the dynamic epochs and the accumulation.
        reinit: draw new weights when the coefficients have been accumulated.
        refresh_every: epochs after which fixed coefficients are accumulated again; 0 for never.
        routing_only: train the weights of the routing layer alone.
        distill: learn the capsules of the initial network with dynamic routing, too; for fixed coefficients.
    """

    epochs: int = 12
    batch_size: int = 128
    seed: int = 0
    learning_rate: float = 1e-3
    primary_rate: float = 1.0
    whiten_stem: bool = False
    final_rate: float = 0.02
    decay: Decay = "exponential"
    averaging: float = 0.0
    warmup: int = 100
    validation: float | int = 0
    test_every: int = 0
    checkpoint_every: int = 0
    loss: Loss = field(default="margin", metadata=_LOSS)
    sharpness: float = field(default=20.0, metadata=_LOSS)
    reconstruction_weight: float = field(default=0.0005, metadata=_LOSS)
    positive_margin: float = field(default=0.9, metadata=_LOSS)
    negative_margin: float = field(default=0.1, metadata=_LOSS)
    negative_weight: float = field(default=0.5, metadata=_LOSS)
    dynamic_epochs: int | None = field(default=None, metadata=_FIXED)
    dynamic_fraction: float = field(default=1.0, metadata=_FIXED)
    reinit: bool = field(default=False, metadata=_FIXED)
    refresh_every: int = field(default=0, metadata=_FIXED)
    routing_only: bool = field(default=False, metadata=_FIXED)
    distill: bool = field(default=False, metadata=_FIXED)

    def __post_init__(self) -> None:
        """Raise ValueError if a value is not valid."""
        for name, minimum in {
            "epochs": 1,
            "batch_size": 1,
            "seed": 0,
            "warmup": 0,
            "test_every": 0,
            "checkpoint_every": 0,
            "refresh_every": 0,
        }.items():
            value = getattr(self, name)
            if type(value) is not int or not minimum <= value < 2**63:
                raise ValueError(f"{name} is {value!r}, expected a whole number, at least {minimum}, below 2^63")
        # A rate of 0 can't be reached exponentially.
        positive = (
            "learning_rate",
            "primary_rate",
            "sharpness",
            *(("final_rate",) if self.decay == "exponential" else ()),
        )
        for name in positive:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected a number above 0")
        for name, known in {"decay": get_args(Decay), "loss": get_args(Loss)}.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(known)}")
        for name in ("final_rate", "reconstruction_weight", "negative_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected a number, at least 0")
        if not 0 <= self.negative_margin < self.positive_margin <= 1:
            raise ValueError(
                f"the margins are {self.negative_margin} and {self.positive_margin}: "
                "expected 0 ≤ negative < positive ≤ 1"
            )
        self._check_validation()
        if not 0 <= self.averaging < 1:
            raise ValueError(f"averaging is {self.averaging!r}, expected a share of at least 0 and below 1")
        if not 0 < self.dynamic_fraction <= 1:
            raise ValueError(f"dynamic_fraction is {self.dynamic_fraction!r}, expected a part above 0, at most 1")
        if self.routing_only and self.reinit:
            raise ValueError("routing_only=True keeps weights that reinit=True draws anew: give one of them")
        if self.distill and self.dynamic_epochs is not None:
            raise ValueError(
                "distill=True learns from the initial network, which dynamic_epochs= trains: give one of them"
            )
        if self.dynamic_epochs is None:
            if self.dynamic_fraction != 1 or self.reinit:
                raise ValueError(
                    "dynamic_fraction= and reinit=True are for runs with dynamic_epochs=: give their number"
                )
        elif type(self.dynamic_epochs) is not int or not 0 < self.dynamic_epochs < self.epochs:
            raise ValueError(
                f"dynamic_epochs is {self.dynamic_epochs!r}, expected a whole number from 1 to {self.epochs - 1}, "
                "less than all epochs"
            )

    def _check_validation(self) -> None:
        value = self.validation
        if type(value) not in (int, float) or not (value >= 0 if type(value) is int else 0 <= value < 1):
            raise ValueError(f"validation is {value!r}, expected a fraction below 1, or a whole number of images")

    @classmethod
    def for_data(cls, name: str, **changes: Any) -> Self:
        """Return the defaults for a named data set, or the general defaults for any other name, with changes."""
        key = name.replace("-", "_")
        return cls(**{**(SETS[key].training if key in SETS else {}), **changes})

    @classmethod
    def finetune_defaults(cls, **changes: Any) -> Self:
        """Return the defaults for training from trained weights: few epochs at a small learning rate."""
        epochs, rate = (5, 3e-4) if changes.get("routing_only") else (2, 2e-4)
        return cls(**({"epochs": epochs, "learning_rate": rate, "warmup": 0} | changes))

    @classmethod
    def stored(cls, values: dict[str, Any], source: str) -> dict[str, Any]:
        """Return stored settings under their current names; raise ValueError, naming ``source``, for unknown ones."""
        values = renamed(values)
        unknown = values.keys() - {entry.name for entry in dataclasses.fields(cls)}
        if unknown:
            raise ValueError(f"{source} is damaged: {', '.join(sorted(unknown))} is no setting")
        return values

    @staticmethod
    def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
        """Return stored settings under their current names; will be removed in the next release."""
        warn_renamed("TrainSettings.renamed", "TrainSettings.from_dict")
        return renamed(values)

    @classmethod
    def with_defaults(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return stored settings with defaults for missing ones; will be removed in the next release."""
        warn_renamed("TrainSettings.with_defaults, completed", "TrainSettings.from_dict(values).to_dict()")
        return {**cls().to_dict(), **renamed(values)}

    completed = with_defaults

    @classmethod
    def of_the_loss(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return `loss_settings` of stored settings; will be removed in the next release."""
        warn_renamed("TrainSettings.of_the_loss", "TrainSettings.from_dict(values).loss_settings()")
        return cls.from_dict(values).loss_settings()

    def loss_settings(self) -> dict[str, Any]:
        """Return the settings that decide what is learned, and from how many images per step."""
        names = ["batch_size", "loss", "sharpness", "positive_margin", "negative_margin", "negative_weight"]
        if not self.routing_only:  # otherwise the decoder is not trained
            names.append("reconstruction_weight")
        return {name: getattr(self, name) for name in names}

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0, in a training of ``steps`` steps."""
        warmup = min(self.warmup, steps // 3)
        rising = min(1.0, (step + 1) / warmup) if warmup else 1.0
        done = step / max(steps - 1, 1)
        if self.decay == "cosine":
            left = self.final_rate + (1 - self.final_rate) * (1 + math.cos(math.pi * done)) / 2
        elif self.decay == "linear":
            left = self.final_rate + (1 - self.final_rate) * (1 - done)
        else:
            left = math.pow(self.final_rate, done)
        return self.learning_rate * rising * left
