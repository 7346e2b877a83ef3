"""The configuration of a training run, as in a config file. This module does not import PyTorch.

A file has four tables, all of them optional::

    [data]
    name = "digits"

    [network]
    normalization = "max_min"
    stem_channels = 64

    [training]
    epochs = 5

    [run]
    out = "runs/digits"

The keys of ``[network]`` are ``stem`` and the fields of `CapsNetConfig` that don't follow from the images; the keys of
``[training]`` are the fields of `TrainSettings`. Missing keys have their defaults.
"""

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from fastcaps._result import ShortRepr
from fastcaps.nn.config import CapsNetConfig
from fastcaps.training.settings import TrainSettings

Convolution = Literal["auto", "direct", "winograd"]
Stem = Literal["auto", "paper", "strided"]

# Marks keys of a file that have no option on the command line.
_FILE_ONLY = {"option": False}
# Other names of keys: in `Trainer`, and former ones.
_OTHERWISE = {"master": "coefficients", "afresh": "reinit"}
_FROM_IMAGES = {"height", "width", "channels", "classes", "class_names"}


class ConfigError(ValueError):
    """Arguments that can't be combined, or a wrong entry of a config file."""


@dataclass(frozen=True, kw_only=True, repr=False)
class DataOptions(ShortRepr):
    """The table ``[data]``: the arguments of `fastcaps.data.load`.

    Attributes:
        name: name of a data set (fastcaps data list), or a folder of images.
        size: height and width for the images of a folder, such as 40x32.
        test_fraction: fraction of test images of a folder without train and test.
        channels: 1 or 3, for the images of a folder.
        seed: seed of generated images, and of the choice of test images in a folder.
        photographs: folder of photographs for the backgrounds of background_mnist.
        skip_broken: leave out the files of a folder that can't be decoded, and name them.
        rotation: largest random rotation of training images in degrees (default: that of the set).
        zoom: largest random change of their height and width, such as 0.1 (default: that of the set).
        data_dir: folder that has the files of the data sets.
    """

    name: str | None = None
    size: tuple[int, int] | str | None = field(default=None, metadata={"metavar": "HxW"})
    test_fraction: float | None = None
    channels: int | None = field(default=None, metadata=_FILE_ONLY)
    seed: int | None = field(default=None, metadata=_FILE_ONLY)
    photographs: str | None = field(default=None, metadata=_FILE_ONLY)
    skip_broken: bool | None = None
    rotation: float | None = None
    zoom: float | None = None
    data_dir: str | None = None

    def __post_init__(self) -> None:
        """Accept a size such as ``"40x32"``."""
        if isinstance(self.size, str):
            sides = self.size.lower().replace("×", "x").split("x")
            if len(sides) != 2 or not all(side.isdigit() for side in sides):
                raise ConfigError(f"size={self.size}: expected height and width such as 40x32")
            object.__setattr__(self, "size", (int(sides[0]), int(sides[1])))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for `fastcaps.data.load` beside the name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "name" and value is not None}


@dataclass(frozen=True, kw_only=True, repr=False)
class RunOptions(ShortRepr):
    """The table ``[run]``: where a run starts, where it goes and how it is computed.

    Attributes:
        out: the run folder.
        init: a run to start from, with its network, weights, data and held-out images.
        recipe: how to train: paper (default), or best for the most accurate way known, where the data set has one
            (cifar10); other options override it.
        coefficients: coefficients to train with in place of routing: a file, or uniform.
        loggers: where metrics go beside metrics.jsonl: tensorboard, or a logger of your own.
        convolution: convolution of PrimaryCaps; auto takes the faster one.
        device: device to train on; auto takes a GPU where there is one.
        threads: CPU threads (default: all).
    """

    out: str | None = None
    init: str | None = field(default=None, metadata={"metavar": "RUN"})
    recipe: str | None = None
    coefficients: str | None = field(default=None, metadata={"metavar": "FILE"})
    loggers: tuple[str, ...] = ()
    convolution: Convolution = "auto"
    device: str = "auto"
    threads: int | None = None


@dataclass(frozen=True)
class NetworkOptions:
    """Entries of the table ``[network]`` that are options of their own on the command line.

    Attributes:
        normalization: normalization of the coefficients: max_min (default), softmax, leaky_softmax, or your own.
        iterations: iterations of dynamic routing (default: 3).
        stem: auto (default) for strides that keep the number of capsules near the paper's, paper for one convolution,
            strided for more in front of it.
    """

    normalization: str | None = None
    iterations: int | None = None
    stem: Stem | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainConfig(ShortRepr):
    """A training run as four tables.

    Attributes:
        data: where the images come from.
        network: changes to the default network for the images.
        training: changes to the default settings for the data set and the initial weights.
        run: where the run starts, where it goes and how it is computed.
    """

    data: DataOptions = DataOptions()
    network: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    run: RunOptions = RunOptions()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a TOML file; raise `ConfigError`, naming table and key, if an entry is wrong."""
        try:
            tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{path} is not TOML: {error}") from None
        return cls.from_dict(tables, str(path))

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any], source: str = "the configuration") -> Self:
        """Return the configuration from tables by name; errors name ``source``."""
        for table, entries in tables.items():
            _check_known(f"{source}: there is no table [{table}]", table, _KEYS, "[{}]")
            if not isinstance(entries, Mapping):
                raise ConfigError(f"{source}: {table} is {entries!r}, expected a table [{table}]")
            for key, value in entries.items():
                _check_known(f"{source}: [{table}] has no key '{key}'", key, _KEYS[table], "'{}'")
                if not _fits(value, _KEYS[table][key]):
                    raise ConfigError(
                        f"{source}: [{table}] {key} is {json.dumps(value, default=str)}, expected "
                        f"{_words(_KEYS[table][key])}"
                    )
        values = {table: {key: _frozen(value) for key, value in entries.items()} for table, entries in tables.items()}
        return cls(
            data=DataOptions(**values.get("data", {})),
            network=values.get("network", {}),
            training=values.get("training", {}),
            run=RunOptions(**values.get("run", {})),
        )

    def changed(self, **changes: Any) -> Self:
        """Return a copy with changed entries, by key; ``data`` is the name of the data set."""
        tables: dict[str, dict[str, Any]] = {table: {} for table in _KEYS}
        for name, value in changes.items():
            key = "name" if name == "data" else name
            table = next((table for table in ("training", "run", "data", "network") if key in _KEYS[table]), None)
            if table is None or name == "name":
                names = {"data", *(key for keys in _KEYS.values() for key in keys)} - {"name"}
                _check_known(f"{name} is no argument of a training run", name, names)
                raise ConfigError(f"{name} is no argument of a training run")
            tables[table][key] = str(value) if isinstance(value, Path) else _frozen(value)
        return dataclasses.replace(
            self,
            data=dataclasses.replace(self.data, **tables["data"]),
            network={**self.network, **tables["network"]},
            training={**self.training, **tables["training"]},
            run=dataclasses.replace(self.run, **tables["run"]),
        )

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the tables with all entries that are not None."""
        tables = {
            "data": dataclasses.asdict(self.data),
            "network": self.network,
            "training": self.training,
            "run": dataclasses.asdict(self.run),
        }
        return {
            table: {key: value for key, value in entries.items() if value is not None}
            for table, entries in tables.items()
        }

    def to_toml(self, *comments: str) -> str:
        """Return a config file, with comments in front."""
        lines = [f"# {comment}" for comment in comments]
        for table, entries in self.to_dict().items():
            if entries:
                lines += ["", f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in entries.items())]
        return "\n".join(lines).lstrip() + "\n"


def network_keys() -> dict[str, Any]:
    """Return the type of each key of ``[network]``."""
    hints = get_type_hints(CapsNetConfig)
    return {"stem": Stem, **{name: hint for name, hint in hints.items() if name not in _FROM_IMAGES}}


# The type of each key of each table.
_KEYS: dict[str, dict[str, Any]] = {
    "data": get_type_hints(DataOptions),
    "network": network_keys(),
    "training": get_type_hints(TrainSettings),
    "run": get_type_hints(RunOptions),
}


def _check_known(problem: str, name: str, known: Iterable[str], form: str = "{}") -> None:
    names = sorted(known)
    if name in names:
        return
    close = [_OTHERWISE[name]] if _OTHERWISE.get(name) in names else difflib.get_close_matches(name, names, 1)
    listed = ", ".join(form.format(one) for one in names)
    raise ConfigError(f"{problem}: did you mean {form.format(close[0])}?" if close else f"{problem}, expected {listed}")


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a TOML value has a type; True for types that are not checked."""
    kinds = {int: (int,), float: (int, float), str: (str,), bool: (bool,)}
    if isinstance(hint, UnionType):
        return any(_fits(value, part) for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        parts = [part for part in get_args(hint) if part is not Ellipsis]
        is_variadic = get_args(hint)[-1] is Ellipsis
        if not isinstance(value, list | tuple) or (not is_variadic and len(value) != len(parts)):
            return False
        return all(_fits(entry, parts[0]) for entry in value)
    return hint not in kinds or type(value) in kinds[hint]


def _words(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if isinstance(hint, UnionType):
        parts = [part for part in get_args(hint) if part is not type(None)]
        return "a number" if set(parts) == {int, float} else " or ".join(map(_words, parts))
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(get_args(hint))
    if get_origin(hint) is tuple:
        return (
            "a list such as [" + ", ".join("…" if part is Ellipsis else part.__name__ for part in get_args(hint)) + "]"
        )
    return names.get(hint, str(hint))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    # Strings, numbers and booleans are written as in JSON, but TOML requires DEL to be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
