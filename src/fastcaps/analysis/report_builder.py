"""Compute the numbers and figures of a report: the paper's sections on dynamic and on master coefficients."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps._figure import Figure
from fastcaps.analysis import figures as draw
from fastcaps.analysis.capsules import Lengths, disagreements, output_lengths, tuning_curves, varied_reconstructions
from fastcaps.analysis.coefficients import CoefficientHistogram, by_position, normalized_containers
from fastcaps.analysis.correlations import mean_within_and_between, neighbors, pairwise_correlations
from fastcaps.analysis.report_data import (
    ClassCorrelation,
    ClassDimensions,
    Correlations,
    Dimensions,
    Disagreements,
    Examples,
    Finding,
    FirstImages,
    HighestOther,
    HighestPosition,
    ImageLengths,
    MasterMatrix,
    Nearest,
    Pair,
    PositionRange,
    Positions,
    Reconstructions,
    ReportData,
    ShownDimensions,
    Spread,
    TrainingImages,
    Tuning,
    TuningCurves,
    rounded,
    rounded_number,
)
from fastcaps.analysis.results import Evaluation
from fastcaps.analysis.training_pass import TrainingPass
from fastcaps.data.registry import SETS
from fastcaps.functional import get_normalization
from fastcaps.master import MasterCoefficients, fold
from fastcaps.nn import CapsNet
from fastcaps.nn.config import CapsNetConfig

# Values that are added to an entry of a class capsule, as in Sabour et al. (2017).
OFFSETS = tuple(round(-0.25 + 0.05 * k, 2) for k in range(11))
# Maximum number of images that change class to draw, and to list with their lengths.
_DRAWN, _LISTED = 16, 1000
# Thresholds below which a figure shows nothing: the standard deviation of coefficients, the range of a map relative to
# the highest coefficient, and differences of reconstructions between classes and along a row, relative to the images.
_FLAT, _EVEN, _ALIKE, _UNSEEN = 0.005, 0.05, 0.25, 0.2


@dataclass(frozen=True)
class Measurements:
    """Results of the passes over the images.

    Attributes:
        training: pass over the training images.
        lengths: lengths of the test images.
        evaluation: evaluation on the test images.
        test_images: returns the inputs ``(b c h w)`` of the network, given indices of test images ``(b)``.
    """

    training: TrainingPass
    lengths: Lengths
    evaluation: Evaluation
    test_images: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ComparedRun:
    """Another run, whose histogram is drawn beside this one's: its name, its pass and its network."""

    name: str
    training: TrainingPass
    config: CapsNetConfig


@torch.no_grad()
def build_report(
    model: CapsNet,
    master: MasterCoefficients,
    measured: Measurements,
    *,
    examples: Sequence[int] = (0, 1, 2, 3, 4),
    sort_by_class: bool = False,
    compared: ComparedRun | None = None,
) -> ReportData:
    """Compute all numbers and figures of a trained network and its master coefficients.

    Args:
        model: the trained network.
        master: its master coefficients.
        measured: results of the passes over the images.
        examples: indices of the test images whose lengths are drawn.
        sort_by_class: whether the heatmap of the first training images is sorted by class.
        compared: another run, for its histogram beside this one's.
    """
    config, names = model.config, model.config.class_names
    training, lengths, evaluation = measured.training, measured.lengths, measured.evaluation
    outside = [number for number in examples if not 0 <= number < len(lengths.labels)]
    if outside or not examples:
        numbers = ", ".join(map(str, examples)) or "none"
        raise ValueError(f"examples={numbers}: expected numbers of test images from 0 to {len(lengths.labels) - 1}")
    figures: dict[str, Figure] = {"architecture": draw.architecture_figure(config)}
    with_master = training.correlations.with_columns(master.values.numpy())
    drawn = _DrawnImages.of(model, measured)
    reconstructions = drawn.differences()
    report = ReportData(
        finding=_finding(evaluation, config),
        network=_network(config),
        training=TrainingImages(int(training.counts.sum()), training.counts),
        evaluation=evaluation,
        first_images=_first_images(training, names, sort_by_class, figures),
        class_correlations=_class_correlations(training, names, figures),
        master_correlations=_correlations(with_master, names),
        coefficients=_spread(training.histogram, config),
        compared=None if compared is None else _compared_spread(compared),
        master=_master_matrix(master, config, figures),
        positions=_positions(master, training, config, figures),
        examples=_examples(model, master, measured, examples, figures, with_drawn=reconstructions.differ),
        tuning=_tuning(lengths, names, figures),
        disagreements=_disagreements(measured, names, figures),
        reconstructions=reconstructions,
        dimensions=_dimensions(drawn, reconstructions, int(lengths.labels[examples[0]]), figures),
        figures=figures,
    )
    if np.isfinite(with_master).any():
        figures["master_correlations"] = draw.class_correlations_figure(
            with_master, names, symmetric=False, labels=("master column", "images of class")
        )
    if np.count_nonzero(training.histogram.counts[-1]) > 1 or compared is not None:
        figures["coefficients"] = _histograms(training, config, compared)
    if evaluation.dynamic.errors or evaluation.fast.errors:
        confusions = {"dynamic": evaluation.dynamic.confusion, "fast": evaluation.fast.confusion}
        figures["confusion"] = draw.confusion_figure(confusions, names)
    return report


def _finding(evaluation: Evaluation, config: CapsNetConfig) -> Finding:
    data = evaluation.data or "a data set"
    title = SETS[data].title if data in SETS else data
    speeds = [variant.images_per_second for variant in (evaluation.fast, evaluation.dynamic)]
    speedup = speeds[0] / speeds[1] if speeds[0] and speeds[1] else None
    return Finding(
        title=f"{title}: a capsule network with {get_normalization(config.normalization).title} routing",
        speedup=None if speedup is None else rounded_number(speedup),
    )


def _network(config: CapsNetConfig) -> dict[str, Any]:
    return {
        **config.to_dict(),
        "grid": list(config.grid),
        "stem_size": list(config.stem_size),
        "lower_capsules": config.lower_capsules,
        "normalization_title": get_normalization(config.normalization).title,
    }


def _first_images(
    training: TrainingPass, names: tuple[str, ...], sort_by_class: bool, figures: dict[str, Figure]
) -> FirstImages:
    """Correlate single images (analysis 1)."""
    labels = training.first_labels
    order = np.argsort(labels, kind="stable") if sort_by_class else np.arange(len(labels))
    correlations = pairwise_correlations(training.first_columns[order])  # (n, n)
    labels = labels[order]
    pairs = np.tril(np.isfinite(correlations), -1)
    same = labels[:, None] == labels[None]
    if np.isfinite(correlations[pairs]).any():
        figures["image_correlations"] = draw.image_correlations_figure(correlations, labels, names)
    return FirstImages(
        images=len(labels),
        sorted_by_class=sort_by_class,
        order=order,
        labels=labels,
        within=_mean(correlations[pairs & same]),
        between=_mean(correlations[pairs & ~same]),
        lowest=rounded_number(correlations[pairs].min()) if pairs.any() else None,
        correlations=tuple(rounded(row[: k + 1]) for k, row in enumerate(correlations)),
    )


def _class_correlations(training: TrainingPass, names: tuple[str, ...], figures: dict[str, Figure]) -> Correlations:
    """Correlate classes (analysis 2)."""
    correlations = training.correlations.between_classes()
    if np.isfinite(correlations).any():
        figures["class_correlations"] = draw.class_correlations_figure(correlations, names, symmetric=True)
    return _correlations(correlations, names, training.correlations.constant)


def _correlations(
    correlations: NDArray[np.float64], names: tuple[str, ...], constant: NDArray[np.int64] | None = None
) -> Correlations:
    """Summarize a matrix of correlations, with the nearest other classes of each class."""
    within, between = mean_within_and_between(correlations)
    nearest = [_nearest(correlations, names, label) for label in range(len(names))]
    ranked = sorted((ClassCorrelation(row.name, row.own) for row in nearest if row.own is not None), key=_correlation)
    pairs = [(row.name, row.others[0]) for row in nearest if row.others]
    closest = max(pairs, key=lambda pair: _correlation(pair[1]), default=None)
    return Correlations(
        within=rounded_number(within),
        between=rounded_number(between),
        own_is_highest=sum(row.own_is_highest for row in nearest),
        least_alike=ranked[0] if ranked else None,
        most_alike=ranked[-1] if ranked else None,
        closest_pair=None if closest is None else Pair((closest[0], closest[1].name), closest[1].correlation),
        in_words=", ".join(f"{name} with {other.name}" for name, other in pairs) or "none",
        nearest=tuple(nearest),
        correlations=rounded(correlations),
        constant_columns=constant,
    )


def _nearest(correlations: NDArray[np.float64], names: tuple[str, ...], label: int) -> Nearest:
    others, own = neighbors(correlations, label)[:2], correlations[label, label]
    return Nearest(
        name=names[label],
        own=rounded_number(own),
        others=tuple(ClassCorrelation(names[one.label], rounded_number(one.correlation)) for one in others),
        own_is_highest=bool(np.isfinite(own) and (not others or own > others[0].correlation)),
    )


def _correlation(entry: ClassCorrelation) -> float:
    return -np.inf if entry.correlation is None else entry.correlation


def _compared_spread(compared: ComparedRun) -> Spread:
    images = int(compared.training.counts.sum())
    return _spread(compared.training.histogram, compared.config, compared.name, images)


def _spread(
    histogram: CoefficientHistogram, config: CapsNetConfig, run: str | None = None, images: int | None = None
) -> Spread:
    """Summarize a histogram (analysis 6)."""
    normalization = get_normalization(config.normalization)
    start = normalization.start(config.classes)
    middles = (histogram.edges[:-1] + histogram.edges[1:]) / 2
    means = histogram.shares @ middles  # (r)
    return Spread(
        normalization=config.normalization,
        normalization_title=normalization.title,
        start=rounded_number(start),
        edges=rounded(histogram.edges),
        counts=histogram.counts,
        mean=rounded(means),
        deviation=rounded(np.sqrt(np.maximum(histogram.shares @ middles**2 - means**2, 0))),
        near_start=rounded(histogram.share_around(start, 0.05)),
        near_0=rounded(histogram.share_around(0.0, 0.05)),
        near_1=rounded(histogram.share_around(1.0, 0.05)),
        run=run,
        images=images,
    )


def _histograms(training: TrainingPass, config: CapsNetConfig, compared: ComparedRun | None) -> Figure:
    histograms = {f"this run, {get_normalization(config.normalization).title}": training.histogram}
    if compared is not None:
        title = f"{compared.name}, {get_normalization(compared.config.normalization).title}"
        histograms[title] = compared.training.histogram
    return draw.histogram_figure({title: (one.edges, one.shares) for title, one in histograms.items()})


def _master_matrix(master: MasterCoefficients, config: CapsNetConfig, figures: dict[str, Figure]) -> MasterMatrix:
    """Describe the matrix, and draw how it is made (analysis 6)."""
    names, values = config.class_names, master.values.numpy()
    is_reduction = master.method == "per_class"
    if master.containers is not None:
        normalized = normalized_containers(master.containers, master)  # (j, i, j)
        reduced = normalized.diagonal(axis1=0, axis2=2)  # (i, j)
        is_reduction = bool(np.allclose(values, reduced, atol=1e-6))
        if values.std() > _FLAT:
            figures["procedure"] = draw.procedure_figure(
                master.containers.numpy(), normalized, values, master.counts.numpy(), names
            )
    if values.std() > _FLAT:
        figures["master_matrix"] = draw.master_matrix_figure(values, names)
    # Near the bounds if coefficients start at the upper bound; otherwise half and twice the start.
    start = get_normalization(config.normalization).start(config.classes)
    low, high = (0.1, 0.9) if start == 1 else (0.5 * start, 2 * start)
    return MasterMatrix(
        summary=master.summary(),
        mean=rounded_number(values.mean()),
        deviation=rounded_number(values.std()),
        low=rounded_number(low),
        high=rounded_number(high),
        below_low=rounded_number((values < low).mean()),
        above_high=rounded_number((values > high).mean()),
        is_reduction=is_reduction,
        values=rounded(values),
    )


def _positions(
    master: MasterCoefficients, training: TrainingPass, config: CapsNetConfig, figures: dict[str, Figure]
) -> Positions:
    """Find where the parts of a class are (analysis 7)."""
    names = config.class_names
    maps = by_position(master.values.numpy(), config)  # (j, types, height, width)
    means = maps.mean(1)  # (j, height, width)
    places = [np.unravel_index(int(one.argmax()), one.shape) for one in means]
    ranges = means.max((1, 2)) - means.min((1, 2))
    flattest, steepest = int(ranges.argmin()), int(ranges.argmax())
    bound = _EVEN * float(maps.max())
    if ranges[steepest] > bound:
        figures["positions"] = draw.position_figure(maps, training.mean_images, names)
    if maps.std() > _FLAT:
        figures["types"] = draw.types_figure(maps, names)
    return Positions(
        bound=rounded_number(bound),
        means=rounded(means),
        highest=tuple(
            HighestPosition(name, int(row) + 1, int(column) + 1, rounded_number(one.max()))
            for name, (row, column), one in zip(names, places, means, strict=True)
        ),
        least_varied=PositionRange(names[flattest], rounded_number(ranges[flattest])),
        most_varied=PositionRange(names[steepest], rounded_number(ranges[steepest])),
    )


def _examples(
    model: CapsNet,
    master: MasterCoefficients,
    measured: Measurements,
    examples: Sequence[int],
    figures: dict[str, Figure],
    *,
    with_drawn: bool,
) -> Examples:
    """Show the lengths of single images, and their reconstructions if these differ (analysis 4)."""
    names, numbers = model.config.class_names, list(examples)
    images = measured.test_images(torch.tensor(numbers)).to(model.routing.weight.device)
    fast = fold(model, master)
    networks = (model, fast) if with_drawn else ()
    reconstructions = [network.reconstruct(network(images).capsules).float().cpu().numpy() for network in networks]
    # Recomputed for these images, so that lengths and pictures belong together.
    lengths = output_lengths(model, fast, [(images, torch.from_numpy(measured.lengths.labels[numbers]))])
    figures["examples"] = draw.examples_figure(
        images.cpu().numpy(), np.stack(reconstructions, 1) if reconstructions else None, lengths, names
    )
    return Examples(
        images=_image_lengths(lengths, numbers, names),
        right_dynamic=int((lengths.dynamic.argmax(1) == lengths.labels).sum()),
        right_fast=int((lengths.fast.argmax(1) == lengths.labels).sum()),
        largest_difference=rounded_number(np.abs(lengths.dynamic - lengths.fast).max()),
    )


def _tuning(lengths: Lengths, names: tuple[str, ...], figures: dict[str, Figure]) -> Tuning:
    """Average lengths per class (analysis 5)."""
    dynamic, fast = (tuning_curves(one, lengths.labels) for one in (lengths.dynamic, lengths.fast))
    figures["tuning"] = draw.tuning_figure(dynamic, fast, names)
    return Tuning(_peaks(dynamic, names), _peaks(fast, names))


def _peaks(curves: NDArray[np.float64], names: tuple[str, ...]) -> TuningCurves:
    """Summarize tuning curves ``(j j)``: where they peak, and the largest mean length of another class."""
    present = np.flatnonzero(np.isfinite(curves).all(1))
    elsewhere = np.where(np.eye(len(curves), dtype=bool), -np.inf, np.nan_to_num(curves, nan=-np.inf))
    row, column = np.unravel_index(int(elsewhere.argmax()), elsewhere.shape)
    own, others = mean_within_and_between(curves)
    return TuningCurves(
        classes=len(present),
        peaked_at_own=int((curves[present].argmax(1) == present).sum()),
        own=rounded_number(own),
        others=rounded_number(others),
        highest_other=HighestOther(names[row], names[column], rounded_number(curves[row, column])),
        lengths=rounded(curves),
    )


def _disagreements(measured: Measurements, names: tuple[str, ...], figures: dict[str, Figure]) -> Disagreements:
    """List the test images that change class (analysis 9)."""
    lengths = measured.lengths
    changed = disagreements(lengths)
    listed, drawn = changed[:_LISTED], changed[:_DRAWN]
    before, after = lengths.dynamic.argmax(1)[changed], lengths.fast.argmax(1)[changed]
    labels = lengths.labels[changed]
    if len(drawn) > 1:
        images = measured.test_images(torch.from_numpy(drawn)).cpu().numpy()
        figures["disagreements"] = draw.disagreement_figure(images, lengths.subset(drawn), names)
    return Disagreements(
        test_images=len(lengths.labels),
        changed=len(changed),
        gained=int((after == labels).sum()),
        lost=int((before == labels).sum()),
        wrong_in_both=int(((before != labels) & (after != labels)).sum()),
        drawn=len(drawn) if "disagreements" in figures else 0,
        listed=len(listed),
        images=_image_lengths(lengths.subset(listed), listed.tolist(), names),
    )


@dataclass(frozen=True)
class _DrawnImages:
    """The first correctly classified test image of each class, and the reconstructions of its capsule.

    Attributes:
        names: names of the classes that have such an image ``(b)``.
        labels: labels of these classes ``(b)``.
        numbers: indices of the test images ``(b)``.
        images: ``(b c h w)``.
        varied: reconstructions with one entry of the capsule changed by each of `OFFSETS` ``(b e s c h w)``.
    """

    names: tuple[str, ...]
    labels: list[int]
    numbers: list[int]
    images: NDArray[np.float64]
    varied: NDArray[np.float64]

    @classmethod
    def of(cls, model: CapsNet, measured: Measurements) -> Self:
        lengths, device = measured.lengths, model.routing.weight.device
        right = lengths.dynamic.argmax(1) == lengths.labels
        labels = np.unique(lengths.labels[right])
        names = tuple(model.config.class_names[label] for label in labels)
        numbers = [int(np.flatnonzero(right & (lengths.labels == label))[0]) for label in labels]
        if not numbers:
            return cls(names, [], numbers, np.empty(0), np.empty(0))
        images = measured.test_images(torch.tensor(numbers)).to(device)
        varied = varied_reconstructions(model, model(images).capsules, torch.from_numpy(labels).to(device), OFFSETS)
        return cls(names, labels.tolist(), numbers, images.double().cpu().numpy(), varied)

    def differences(self) -> Reconstructions:
        """Return the differences between classes, of images and of reconstructions."""
        classes = len(self.numbers)
        if classes < 2:
            return Reconstructions(classes, None, None, None, differ=False)
        images, drawn = (_mean_difference(one) for one in (self.images, self.varied[:, 0, OFFSETS.index(0)]))
        return Reconstructions(
            classes=classes,
            images=rounded_number(images),
            drawn=rounded_number(drawn),
            bound=rounded_number(_ALIKE * images),
            differ=drawn > _ALIKE * images,
        )


def _mean_difference(images: NDArray[np.float64]) -> float:
    """Return the root mean square difference of two images, averaged over all pairs of images ``(b c h w)``."""
    pairs = itertools.combinations(images, 2)
    return float(np.mean([np.sqrt(np.square(one - other).mean()) for one, other in pairs]))


def _dimensions(
    drawn: _DrawnImages, reconstructions: Reconstructions, wanted: int, figures: dict[str, Figure]
) -> Dimensions:
    """Vary each entry of a class capsule (analysis 8), for the first correctly classified image of each class."""
    if reconstructions.images is None:
        return Dimensions(OFFSETS, None, ())
    bound = _UNSEEN * reconstructions.images
    images = drawn.varied  # (b, e, s, c, h, w)
    effects = np.sqrt(np.square(images[:, :, -1] - images[:, :, 0]).mean((2, 3, 4)))  # (b, e)
    strongest = effects.argmax(1)
    classes = tuple(
        ClassDimensions(name, drawn.numbers[k], int(strongest[k]) + 1, rounded(effects[k]))
        for k, name in enumerate(drawn.names)
    )
    shown = drawn.labels.index(wanted) if wanted in drawn.labels else 0
    if effects[shown].max() > bound:
        figures["dimensions"] = draw.variation_figure(
            images[shown], [str(k + 1) for k in range(images.shape[1])], OFFSETS, "number of the capsule"
        )
    if effects.max() > bound:
        figures["strongest_dimensions"] = draw.variation_figure(
            images[np.arange(len(classes)), strongest],
            [f"{one.name}, number {one.strongest}" for one in classes],
            OFFSETS,
            "class",
        )
    return Dimensions(OFFSETS, rounded_number(bound), classes, _shown_dimensions(classes[shown], effects[shown], bound))


def _shown_dimensions(shown: ClassDimensions, effects: NDArray[np.float64], bound: float) -> ShownDimensions:
    return ShownDimensions(
        name=shown.name,
        test_image=shown.test_image,
        strongest=shown.strongest,
        largest_effect=rounded_number(effects.max()),
        weakest=int(effects.argmin()) + 1,
        smallest_effect=rounded_number(effects.min()),
        visible=int((effects > bound).sum()),
    )


def _image_lengths(lengths: Lengths, numbers: Sequence[int], names: tuple[str, ...]) -> tuple[ImageLengths, ...]:
    """Describe single images with both predictions and both sets of lengths."""
    return tuple(
        ImageLengths(
            test_image=number,
            label=names[lengths.labels[k]],
            dynamic=names[lengths.dynamic[k].argmax()],
            fast=names[lengths.fast[k].argmax()],
            lengths_dynamic=rounded(lengths.dynamic[k]),
            lengths_fast=rounded(lengths.fast[k]),
        )
        for k, number in enumerate(numbers)
    )


def _mean(values: NDArray[np.float64]) -> float | None:
    return rounded_number(values.mean()) if values.size else None
