"""Search for the smallest network that loses no more accuracy than allowed: prune, train, measure, repeat."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from fastcaps._files import json_bytes, write_atomically
from fastcaps._json import read_json
from fastcaps._result import Record, flattened
from fastcaps.compression.pruning import Size, multiply_adds, prune
from fastcaps.compression.ranking import RANKINGS, Moments, Ranking, measure_moments, rank_maps, rank_types
from fastcaps.compression.refitting import Progress, RefitEpoch, RefitSettings, refit
from fastcaps.compression.teacher import Teacher
from fastcaps.data import Augmentation, DataSet, Split, batches
from fastcaps.master import MasterCoefficients, fold
from fastcaps.nn import CapsNet, CapsNetConfig, CapsuleNetwork, FastCapsNet
from fastcaps.nn.base import check_capsule_network
from fastcaps.nn.inference import count_correct
from fastcaps.nn.pretrained import weights_hash

# Fractions of the capsule types and stem maps that the sizes of a search keep, from large to small.
SIZE_FRACTIONS = (1 / 2, 3 / 8, 5 / 16, 1 / 4, 3 / 16, 1 / 8)
# More stem maps than this are rounded to a multiple of it, as processors compute this many at a time.
_MULTIPLE = 8
# Number of training images to rank by, and of held-out images to compare rankings on.
_RANKED, _COMPARED = 512, 2000
_RANDOM_ORDERS = 3
# Networks per size whose accuracy is compared: one per ranking, but several random orders.
_RANKED_NETWORKS = len(RANKINGS) - 1 + _RANDOM_ORDERS
# Number of training images that are held out by default, if there are enough.
_HELD_OUT = 5000


@dataclass(frozen=True, kw_only=True)
class CompressSettings:
    """Settings of the search.

    Attributes:
        max_drop: largest loss of accuracy on the held-out images, in percentage points.
        types: number of capsule types, to try one size only; in proportion to ``maps`` when None.
        maps: number of stem maps, to try one size only; in proportion to ``types`` when None.
        speedup: factor by which to reduce the multiply-adds, to try one size only.
        ranking: criterion by which types and maps are kept.
        held_out: fraction or number of the training images on which sizes are compared; None for 5,000, or for a fifth
            if there are fewer than 10,000 training images.
        batch_size: images per step.
        seed: seed of the held-out images, the order and the augmentation.
        views: number of epochs with new augmentations of the training images; later epochs repeat them.
        refit: settings of the training of each size.
    """

    max_drop: float = 0.1
    types: int | None = None
    maps: int | None = None
    speedup: float | None = None
    ranking: Ranking = "energy"
    held_out: float | int | None = None
    batch_size: int = 128
    seed: int = 0
    views: int = 3
    refit: RefitSettings = field(default_factory=RefitSettings)

    def __post_init__(self) -> None:
        """Raise ValueError if a value is not valid."""
        if not 0 <= self.max_drop <= 100:
            raise ValueError(f"max_drop is {self.max_drop!r}, expected points of accuracy from 0 to 100")
        if self.speedup is not None and not 1 < self.speedup < math.inf:
            raise ValueError(f"speedup is {self.speedup!r}, expected a number above 1")
        if self.speedup is not None and (self.types is not None or self.maps is not None):
            raise ValueError("speedup decides the numbers of types and maps: give one or the other")
        for name in ("types", "maps", "batch_size", "views"):
            value = getattr(self, name)
            optional = name in ("types", "maps") and value is None
            if not optional and (type(value) is not int or value < 1):
                raise ValueError(f"{name} is {value!r}, expected a whole number, at least 1")
        if type(self.seed) is not int or self.seed < 0:
            raise ValueError(f"seed is {self.seed!r}, expected a whole number, at least 0")
        if self.ranking not in RANKINGS:
            raise ValueError(f"ranking is {self.ranking!r}, expected one of {', '.join(RANKINGS)}")

    def held_out_of(self, images: int) -> float | int:
        """Return the fraction or the number of images to hold out, given the number of training images."""
        if self.held_out is not None:
            return self.held_out
        return 0.2 if images < 2 * _HELD_OUT else _HELD_OUT

    def sizes(self, config: CapsNetConfig) -> tuple[Size, ...]:
        """Return the sizes to try for a network, from large to small; all are smaller than the network itself."""
        whole = Size.of(config)
        if self.types is not None or self.maps is not None:
            for name, value, most in (("types", self.types, whole.types), ("maps", self.maps, whole.maps)):
                if value is not None and value > most:
                    raise ValueError(f"{name} is {value}, expected at most {most}, as many as the network has")
            near = _scaled(whole, (self.types or 0) / whole.types or (self.maps or 0) / whole.maps)
            size = Size(self.types or near.types, self.maps or near.maps)
            if size == whole:
                raise ValueError(f"the size is {size}, that of the network itself: give a smaller types= or maps=")
            return (size,)
        if self.speedup is not None:
            return (_with_speedup(config, self.speedup),)
        return tuple(dict.fromkeys(size for part in SIZE_FRACTIONS if (size := _scaled(whole, part)) != whole))


@dataclass(frozen=True)
class Ranked:
    """Accuracy on held-out images after pruning by a ranking, before any training."""

    size: Size
    ranking: Ranking
    accuracy: float


@dataclass(frozen=True)
class Step:
    """Measurements of one size.

    Attributes:
        size: size of the network.
        parameters: number of parameters, without those of the decoder.
        multiply_adds: multiply-adds per image.
        pruned_accuracy: accuracy on the held-out images before training.
        accuracy: accuracy on the held-out images after training.
        history: one entry per epoch.
    """

    size: Size
    parameters: int
    multiply_adds: int
    pruned_accuracy: float
    accuracy: float
    history: list[RefitEpoch]


@dataclass(frozen=True, eq=False)
class Compressed:
    """Result of a search.

    Attributes:
        network: the smallest folded network that loses no more than allowed; the largest one that was tried if it loses
            more.
        step: its measurements.
        reference: accuracy that losses are counted from.
        steps: all sizes that were tried, from large to small.
        rankings: accuracy after pruning by each ranking, before training.
    """

    network: FastCapsNet
    step: Step
    reference: float
    steps: tuple[Step, ...]
    rankings: tuple[Ranked, ...]

    @property
    def drop(self) -> float:
        """Points of accuracy lost on the held-out images."""
        return 100 * (self.reference - self.step.accuracy)


@dataclass(frozen=True, kw_only=True)
class Observer:
    """Callbacks for the progress of a search.

    Attributes:
        ranked: called after each pruned network that the comparison of rankings measures, with the number of all.
        begin: called before the training of a size, with the size, the accuracy after pruning, and the number of images
            that both networks will see.
        teacher: called with the number of images that the teacher has just answered.
        progress: called after each step of the training.
        epoch: called with the accuracy on the held-out images after each epoch.
    """

    ranked: Callable[[int], None] = lambda networks: None
    begin: Callable[[Size, float, int], None] = lambda size, accuracy, images: None
    teacher: Callable[[int], None] = lambda images: None
    progress: Callable[[Progress], None] = lambda progress: None
    epoch: Callable[[float], None] = lambda accuracy: None


def compress(
    model: CapsNet | FastCapsNet,
    data: DataSet,
    master: MasterCoefficients | Tensor | Literal["uniform"] = "uniform",
    settings: CompressSettings | None = None,
    *,
    split: tuple[Split, Split] | None = None,
    reference: float | None = None,
    folder: str | Path | None = None,
    observer: Observer | None = None,
) -> Compressed:
    """Return the smallest folded network that loses no more accuracy than allowed.

    Capsule types and stem maps are removed, and what is left is trained with the coefficients folded in: on the labels
    and on the lengths of the original network, with augmented training images. Each size starts from the one before.
    The search ends with the first size that loses too much.

    Args:
        model: a trained network, the teacher; not modified. A folded network teaches as it is, any other with dynamic
            routing.
        data: the data set that it was trained with. Its test images are not used.
        master: the coefficients to fold, as for `fastcaps.fold`; not used for a folded network.
        settings: settings of the search.
        split: training and held-out images, if the model was trained without the latter; otherwise some of the
            training images are held out.
        reference: accuracy that losses are counted from; when None, that of the model on the held-out images. Pass it
            if the model was trained on those images.
        folder: folder for the state of the search, to resume from with the same arguments; nothing is written when
            None.
        observer: callbacks for the progress.
    """
    check_capsule_network(model, "compress")
    settings, observer = settings or CompressSettings(), observer or Observer()
    whole = model if isinstance(model, FastCapsNet) else fold(model, master)
    sizes = settings.sizes(model.config)
    search = _Search(model, data, settings, split, None if folder is None else Path(folder), observer)
    search.claim_folder(whole)
    if reference is None:
        reference = search.accuracy(model)
    rankings = search.rankings(whole, sizes)
    network, steps = whole, []
    chosen: tuple[FastCapsNet, Step] | None = None
    for size in sizes:
        network, step = search.step(network, size)
        steps.append(step)
        passes = 100 * (reference - step.accuracy) <= settings.max_drop + 1e-9
        if passes or chosen is None:
            chosen = network, step
        if not passes:
            break
    assert chosen is not None  # there is at least one size
    return Compressed(*chosen, reference, tuple(steps), rankings)


@dataclass(frozen=True)
class _Identity(Record):
    """What must be the same to resume a search: networks and images by their hashes, and the settings."""

    model: str
    folded: str
    images: str
    augmentation: Augmentation
    held_out: int
    settings: CompressSettings


class _Search:
    """The parts that all sizes share: images, teacher, files."""

    def __init__(
        self,
        model: CapsuleNetwork,
        data: DataSet,
        settings: CompressSettings,
        split: tuple[Split, Split] | None,
        folder: Path | None,
        observer: Observer,
    ) -> None:
        self.settings, self.folder, self.observer = settings, folder, observer
        self.model, self.data = model, data
        train, self.held_out = split or data.validation_split(settings.held_out_of(len(data.train)), settings.seed)
        self.view = data.augmentation.test_view
        self.teacher = Teacher(
            model,
            train,
            data.augmentation,
            batch_size=settings.batch_size,
            seed=settings.seed,
            views=settings.views,
            folder=None if folder is None else folder / "teacher",
            observe=observer.teacher,
        )
        self.ranking_images = list(batches(train.first(_RANKED), 64, view=self.view))

    def claim_folder(self, whole: FastCapsNet) -> None:
        """Store in the folder what is searched; raise ValueError if it holds another search."""
        if self.folder is None:
            return
        # Another max_drop only changes where the search ends.
        own = _Identity(
            weights_hash(self.model),
            weights_hash(whole),
            self.data.fingerprint,
            self.data.augmentation,
            len(self.held_out),
            replace(self.settings, max_drop=0.0),
        )
        file = self.folder / "identity.json"
        if not file.is_file():
            write_atomically({file: json_bytes(own.to_dict())})
            return
        stored, now = flattened(_Identity.load(file).to_dict()), flattened(own.to_dict())
        different = [name for name in now if stored.get(name) != now[name]]
        if different:
            words = "; ".join(f"{name} was {stored.get(name)}, now {now[name]}" for name in different)
            raise ValueError(f"{self.folder} is of another search ({words}): pass the same, or choose another folder")

    def accuracy(self, network: CapsuleNetwork, limit: int | None = None) -> float:
        """Return the accuracy on the held-out images."""
        correct, images = count_correct(network, batches(self.held_out.first(limit), 128, view=self.view))
        return correct / images

    def rankings(self, whole: FastCapsNet, sizes: tuple[Size, ...]) -> tuple[Ranked, ...]:
        """Return the accuracy after pruning by each ranking to each size; that of random orders is a mean."""

        def compute() -> Iterator[Ranked]:
            moments = measure_moments(whole, self.ranking_images)
            for size in sizes:
                for by in RANKINGS:
                    seeds = range(_RANDOM_ORDERS if by == "random" else 1)
                    small = (pruned(whole, size, by, moments, seed) for seed in seeds)
                    accuracies = []
                    for network in small:
                        accuracies.append(self.accuracy(network, _COMPARED))
                        self.observer.ranked(len(sizes) * _RANKED_NETWORKS)
                    yield Ranked(size, by, sum(accuracies) / len(accuracies))

        file = None if self.folder is None else self.folder / "rankings.json"
        if file is not None and file.is_file():
            return read_json(file, tuple[Ranked, ...])
        rows = tuple(compute())
        if file is not None:
            write_atomically({file: json_bytes([asdict(row) for row in rows])})
        return rows

    def step(self, network: FastCapsNet, size: Size) -> tuple[FastCapsNet, Step]:
        """Prune a network to a size and train it, or load the result of an earlier search."""
        folder = None if self.folder is None else self.folder / f"{size.types}-types-{size.maps}-maps"
        if folder is not None and (folder / "step.json").is_file():
            return FastCapsNet.from_pretrained(folder), read_json(folder / "step.json", Step)
        by = self.settings.ranking
        moments = measure_moments(network, self.ranking_images) if by == "energy" else None
        small = pruned(network, size, by, moments, self.settings.seed)
        pruned_accuracy = self.accuracy(small)
        self.observer.begin(size, pruned_accuracy, self.teacher.images_left(self.settings.refit.epochs))
        history = refit(
            small,
            self.teacher,
            self.settings.refit,
            checkpoint=None if folder is None else folder / "checkpoint.safetensors",
            evaluate=self._evaluate,
            accuracy=pruned_accuracy,
            observe=self.observer.progress,
        )
        accuracy = max(pruned_accuracy, history[-1].held_out_accuracy or 0.0)
        step = replace(measured_step(small, accuracy), pruned_accuracy=pruned_accuracy, history=history)
        if folder is not None:
            files: dict[Path, bytes | None] = {**small.pretrained_files(folder)}
            files |= {folder / "step.json": json_bytes(asdict(step)), folder / "checkpoint.safetensors": None}
            write_atomically(files)
        return small, step

    def _evaluate(self, network: FastCapsNet) -> float:
        accuracy = self.accuracy(network)
        self.observer.epoch(accuracy)
        return accuracy


def pruned(network: FastCapsNet, size: Size, by: Ranking, moments: Moments | None = None, seed: int = 0) -> FastCapsNet:
    """Return a copy of a network with only its most important capsule types and stem maps."""
    energy = moments if by == "energy" else None
    types = rank_types(network, by, energy, seed).topk(size.types).indices
    maps = rank_maps(network, by, types, energy, seed + 1).topk(size.maps).indices
    return prune(network, types, maps)


def measured_step(network: FastCapsNet, accuracy: float) -> Step:
    """Return the entry of a network with its accuracy, before and without any training."""
    count = sum(p.numel() for name, p in network.named_parameters() if not name.startswith("decoder."))
    return Step(Size.of(network.config), count, multiply_adds(network.config), accuracy, accuracy, [])


def _scaled(whole: Size, part: float) -> Size:
    maps = max(1, round(part * whole.maps))
    if maps > _MULTIPLE:
        maps = round(maps / _MULTIPLE) * _MULTIPLE
    return Size(max(1, min(whole.types, round(part * whole.types))), min(whole.maps, maps))


def _with_speedup(config: CapsNetConfig, speedup: float) -> Size:
    """Return the largest size with ``speedup`` times fewer multiply-adds; types and maps are in proportion."""
    whole, reached = Size.of(config), 1.0
    for types in range(whole.types, 0, -1):
        size = replace(_scaled(whole, types / whole.types), types=types)
        reached = multiply_adds(config) / multiply_adds(size.config(config))
        if reached >= speedup:
            return size
    raise ValueError(f"speedup is {speedup:g}, expected at most {math.floor(reached)} for this network")
