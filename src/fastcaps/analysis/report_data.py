"""From what was collected to numbers and figures: the paper's sections on dynamic and on master coefficients.

`collect_report_data` puts the other modules together. Its numbers are plain values for JSON, rounded to six places. The
report and ``analysis.json`` hold the same numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fastcaps.analysis import figures as draw
from fastcaps.analysis.capsules import Lengths, disagreements, output_lengths, tuning_curves, varied_reconstructions
from fastcaps.analysis.coefficients import CoefficientHistogram, by_position, normalized_containers
from fastcaps.analysis.correlations import mean_within_and_between, neighbours, pairwise_correlations
from fastcaps.analysis.results import Evaluation
from fastcaps.analysis.training_pass import TrainingPass
from fastcaps.functional import get_normalization
from fastcaps.master import MasterCoefficients, fold
from fastcaps.nn import CapsNet
from fastcaps.nn.config import CapsNetConfig

# What is added to a number of a class capsule, as in Sabour et al. (2017).
OFFSETS = tuple(round(-0.25 + 0.05 * k, 2) for k in range(11))
# Images that change class and are drawn, and those whose lengths are written down.
_DRAWN, _LISTED = 16, 1000


@dataclass(frozen=True, eq=False)
class ReportData:
    """What was found.

    Attributes:
        numbers: plain values for JSON.
        figures: by name, in the order of the report.
    """

    numbers: dict[str, Any]
    figures: dict[str, Figure]


@torch.no_grad()
def collect_report_data(
    model: CapsNet,
    master: MasterCoefficients,
    training: TrainingPass,
    lengths: Lengths,
    test_images: Callable[[Tensor], Tensor],
    evaluation: Evaluation,
    *,
    examples: Sequence[int] = (0, 1, 2, 3, 4),
    sort_by_class: bool = False,
    compared: tuple[str, TrainingPass, CapsNetConfig] | None = None,
) -> ReportData:
    """All analyses of a trained network and its master coefficients.

    Args:
        model: the trained network.
        master: its master coefficients.
        training: what a pass over the training images found.
        lengths: of the test images.
        test_images: from numbers of test images ``(b)`` to what the network sees ``(b c h w)``.
        evaluation: of the test images.
        examples: numbers of the test images whose lengths are drawn.
        sort_by_class: the heatmap of the first training images by class instead of by their order in the set.
        compared: another run's name, pass and configuration, for its histogram beside this one's.
    """
    config, names = model.config, model.config.class_names
    outside = [number for number in examples if not 0 <= number < len(lengths.labels)]
    if outside or not examples:
        given = ", ".join(map(str, examples)) or "none"
        raise ValueError(f"examples are {given}, expected numbers of test images from 0 to {len(lengths.labels) - 1}")
    numbers: dict[str, Any] = {
        "network": _network(config),
        "training": {"images": int(training.counts.sum()), "counts": training.counts.tolist()},
        "evaluation": evaluation.to_dict(),
    }
    found: dict[str, Figure] = {"architecture": draw.architecture_figure(config)}
    _correlations(numbers, found, training, master, names, sort_by_class)
    _coefficients(numbers, found, training, config, compared)
    _master_matrix(numbers, found, training, master, config)
    _outputs(numbers, found, model, master, lengths, test_images, examples)
    confusions = {"dynamic": evaluation.dynamic.confusion, "fast": evaluation.fast.confusion}
    found["confusion"] = draw.confusion_figure(confusions, names)
    _disagreements(numbers, found, lengths, test_images, names)
    _dimensions(numbers, found, model, lengths, test_images, int(lengths.labels[examples[0]]))
    return ReportData(numbers, found)


def _network(config: CapsNetConfig) -> dict[str, Any]:
    return {
        **config.to_dict(),
        "grid": list(config.grid),
        "stem_size": list(config.stem_size),
        "lower_capsules": config.lower_capsules,
        "normalization_title": get_normalization(config.normalization).title,
    }


def _correlations(
    numbers: dict[str, Any],
    found: dict[str, Figure],
    training: TrainingPass,
    master: MasterCoefficients,
    names: tuple[str, ...],
    sort_by_class: bool,
) -> None:
    """Of single images, of classes, and of master columns with classes (analyses 1 to 3)."""
    labels = training.first_labels
    order = np.argsort(labels, kind="stable") if sort_by_class else np.arange(len(labels))
    single = pairwise_correlations(training.first_columns[order])  # (n, n)
    labels = labels[order]
    pairs = np.tril(np.isfinite(single), -1)
    same = labels[:, None] == labels[None]
    numbers["first_images"] = {
        "images": len(labels),
        "sorted_by_class": sort_by_class,
        "order": order.tolist(),
        "labels": labels.tolist(),
        "within": _mean(single[pairs & same]),
        "between": _mean(single[pairs & ~same]),
        "lowest": _plain(single[pairs].min()) if pairs.any() else None,
        "correlations": [_plain(row[: k + 1]) for k, row in enumerate(single)],
    }
    found["image_correlations"] = draw.image_correlations_figure(single, labels, names)
    between = training.correlations.between_classes()
    numbers["class_correlations"] = {
        **_summary(between, names),
        "constant_columns": training.correlations.constant.tolist(),
    }
    found["class_correlations"] = draw.class_correlations_figure(between, names, symmetric=True)
    with_master = training.correlations.with_columns(master.values.numpy())
    numbers["master_correlations"] = _summary(with_master, names)
    found["master_correlations"] = draw.class_correlations_figure(
        with_master, names, symmetric=False, labels=("master column", "images of class")
    )


def _summary(correlations: NDArray[np.float64], names: tuple[str, ...]) -> dict[str, Any]:
    """What a matrix of correlations says of its classes, with each class's nearest others in words."""
    within, between = mean_within_and_between(correlations)
    own = correlations.diagonal()
    nearest: list[dict[str, Any]] = []
    for k, name in enumerate(names):
        others = neighbours(correlations, k)[:2]
        row: dict[str, Any] = {"class": name, "own": _plain(own[k]), "others": []}
        row["others"] = [{"class": names[other.label], "correlation": _plain(other.correlation)} for other in others]
        row["own_is_highest"] = bool(np.isfinite(own[k]) and (not others or own[k] > others[0].correlation))
        nearest.append(row)
    ranked = sorted((row for row in nearest if row["own"] is not None), key=lambda row: cast(float, row["own"]))
    closest = max(
        (row for row in nearest if row["others"]), key=lambda row: row["others"][0]["correlation"], default=None
    )
    return {
        "within": _plain(within),
        "between": _plain(between),
        "own_is_highest": sum(row["own_is_highest"] for row in nearest),
        "least_alike": {"class": ranked[0]["class"], "correlation": ranked[0]["own"]} if ranked else None,
        "most_alike": {"class": ranked[-1]["class"], "correlation": ranked[-1]["own"]} if ranked else None,
        "closest_pair": closest
        and {
            "classes": [closest["class"], closest["others"][0]["class"]],
            "correlation": closest["others"][0]["correlation"],
        },
        "in_words": ", ".join(f"{row['class']} with {row['others'][0]['class']}" for row in nearest if row["others"])
        or "none",
        "nearest": nearest,
        "correlations": _plain(correlations),
    }


def _coefficients(
    numbers: dict[str, Any],
    found: dict[str, Figure],
    training: TrainingPass,
    config: CapsNetConfig,
    compared: tuple[str, TrainingPass, CapsNetConfig] | None,
) -> None:
    """How they are spread after each iteration, beside another run's (analysis 6)."""
    numbers["coefficients"] = _spread(training.histogram, config)
    histograms = {f"this run, {get_normalization(config.normalization).title}": training.histogram}
    if compared is not None:
        name, other, other_config = compared
        numbers["compared"] = {
            "run": name,
            "images": int(other.counts.sum()),
            **_spread(other.histogram, other_config),
        }
        histograms[f"{name}, {get_normalization(other_config.normalization).title}"] = other.histogram
    found["coefficients"] = draw.histogram_figure(
        {title: (histogram.edges, histogram.shares) for title, histogram in histograms.items()}
    )


def _spread(histogram: CoefficientHistogram, config: CapsNetConfig) -> dict[str, Any]:
    """What a histogram says; mean and deviation are of its bins' middles."""
    start = get_normalization(config.normalization).start(config.classes)
    middles = (histogram.edges[:-1] + histogram.edges[1:]) / 2
    means = histogram.shares @ middles  # (r)
    deviations = np.sqrt(np.maximum(histogram.shares @ middles**2 - means**2, 0))
    return {
        "normalization": config.normalization,
        "normalization_title": get_normalization(config.normalization).title,
        "start": _plain(start),
        "edges": _plain(histogram.edges),
        "counts": histogram.counts.tolist(),
        "mean": _plain(means),
        "deviation": _plain(deviations),
        "near_start": _plain(histogram.share_around(start, 0.05)),
        "near_0": _plain(histogram.share_around(0.0, 0.05)),
        "near_1": _plain(histogram.share_around(1.0, 0.05)),
    }


def _master_matrix(
    numbers: dict[str, Any],
    found: dict[str, Figure],
    training: TrainingPass,
    master: MasterCoefficients,
    config: CapsNetConfig,
) -> None:
    """How it is made, the matrix, and where a class's parts are (analyses 6 and 7)."""
    names, values = config.class_names, master.values.numpy()
    is_reduction = master.method == "containers"
    if master.containers is not None:
        normalized = normalized_containers(master.containers, master)  # (j, i, j)
        reduced = normalized.diagonal(axis1=0, axis2=2)  # (i, j)
        is_reduction = bool(np.allclose(values, reduced, atol=1e-6))
        found["procedure"] = draw.procedure_figure(
            master.containers.numpy(), normalized, values, master.counts.numpy(), names
        )
    found["master_matrix"] = draw.master_matrix_figure(values, names)
    maps = by_position(values, config)  # (j, types, height, width)
    means = maps.mean(1)  # (j, height, width)
    found["positions"] = draw.position_figure(maps, training.mean_images, names)
    found["types"] = draw.types_figure(maps, names)
    places = [np.unravel_index(int(m.argmax()), m.shape) for m in means]
    ranges = means.max((1, 2)) - means.min((1, 2))
    # Near the bounds, where coefficients start at the upper one; otherwise half and twice the start.
    start = get_normalization(config.normalization).start(config.classes)
    low, high = (0.1, 0.9) if start == 1 else (0.5 * start, 2 * start)
    numbers["master"] = {
        **master.summary(),
        "mean": _plain(values.mean()),
        "deviation": _plain(values.std()),
        "low": _plain(low),
        "high": _plain(high),
        "below_low": _plain((values < low).mean()),
        "above_high": _plain((values > high).mean()),
        "is_reduction": is_reduction,
        "values": _plain(values),
    }
    numbers["positions"] = {
        "means": _plain(means),
        "highest": [
            {"class": name, "row": int(place[0]) + 1, "column": int(place[1]) + 1, "mean": _plain(means[k].max())}
            for k, (name, place) in enumerate(zip(names, places, strict=True))
        ],
        "least_varied": {"class": names[int(ranges.argmin())], "range": _plain(ranges.min())},
        "most_varied": {"class": names[int(ranges.argmax())], "range": _plain(ranges.max())},
    }


def _outputs(
    numbers: dict[str, Any],
    found: dict[str, Figure],
    model: CapsNet,
    master: MasterCoefficients,
    lengths: Lengths,
    test_images: Callable[[Tensor], Tensor],
    examples: Sequence[int],
) -> None:
    """Lengths of single images, and averaged over each class (analyses 4 and 5)."""
    names = model.config.class_names
    images = test_images(torch.tensor(list(examples))).to(model.routing.weight.device)
    fast = fold(model, master)
    drawn = [network.reconstruct(network(images).capsules) for network in (model, fast)]
    # Measured here and not taken from all, so that lengths and pictures belong together also when few are at hand.
    labels = torch.from_numpy(lengths.labels[list(examples)])
    own = output_lengths(model, fast, [(images, labels)])
    numbers["examples"] = {
        "images": _described(own, list(examples), names),
        "right_dynamic": int((own.dynamic.argmax(1) == own.labels).sum()),
        "right_fast": int((own.fast.argmax(1) == own.labels).sum()),
        "largest_difference": _plain(np.abs(own.dynamic - own.fast).max()),
    }
    found["examples"] = draw.examples_figure(
        images.cpu().numpy(), torch.stack(drawn, 1).float().cpu().numpy(), own, names
    )
    curves = {way: tuning_curves(getattr(lengths, way), lengths.labels) for way in ("dynamic", "fast")}
    numbers["tuning"] = {way: {**_peaks(curve, names), "lengths": _plain(curve)} for way, curve in curves.items()}
    found["tuning"] = draw.tuning_figure(curves["dynamic"], curves["fast"], names)


def _peaks(curves: NDArray[np.float64], names: tuple[str, ...]) -> dict[str, Any]:
    """Where tuning curves ``(j j)`` are highest, and the highest they are elsewhere."""
    present = np.flatnonzero(np.isfinite(curves).all(1))
    others = np.where(np.eye(len(curves), dtype=bool), -np.inf, np.nan_to_num(curves, nan=-np.inf))
    row, column = np.unravel_index(int(others.argmax()), others.shape)
    own, rest = mean_within_and_between(curves)
    return {
        "classes": len(present),
        "peaked_at_own": int((curves[present].argmax(1) == present).sum()),
        "own": _plain(own),
        "others": _plain(rest),
        "highest_other": {"images": names[row], "capsule": names[column], "length": _plain(curves[row, column])},
    }


def _disagreements(
    numbers: dict[str, Any],
    found: dict[str, Figure],
    lengths: Lengths,
    test_images: Callable[[Tensor], Tensor],
    names: tuple[str, ...],
) -> None:
    """The test images that change class (analysis 9)."""
    changed = disagreements(lengths)
    listed = changed[:_LISTED]
    before, after = lengths.dynamic.argmax(1)[changed], lengths.fast.argmax(1)[changed]
    truth = lengths.labels[changed]
    numbers["disagreements"] = {
        "test_images": len(lengths.labels),
        "changed": len(changed),
        "gained": int((after == truth).sum()),
        "lost": int((before == truth).sum()),
        "wrong_in_both": int(((before != truth) & (after != truth)).sum()),
        "drawn": min(len(changed), _DRAWN),
        "listed": len(listed),
        "images": _described(_chosen(lengths, listed), listed.tolist(), names),
    }
    if len(changed):
        shown = changed[:_DRAWN]
        pictures = test_images(torch.from_numpy(shown)).cpu().numpy()
        found["disagreements"] = draw.disagreement_figure(pictures, _chosen(lengths, shown), names)


def _dimensions(
    numbers: dict[str, Any],
    found: dict[str, Figure],
    model: CapsNet,
    lengths: Lengths,
    test_images: Callable[[Tensor], Tensor],
    wanted: int,
) -> None:
    """What each number of a class capsule means (analysis 8): of each class its first image that is got right."""
    names = model.config.class_names
    right = lengths.dynamic.argmax(1) == lengths.labels
    chosen = [
        int(np.flatnonzero(right & (lengths.labels == k))[0]) for k in sorted(set(lengths.labels[right].tolist()))
    ]
    if not chosen:
        numbers["dimensions"] = {"offsets": list(OFFSETS), "classes": []}
        return
    labels = torch.from_numpy(lengths.labels[chosen])
    device = model.routing.weight.device
    capsules = model(test_images(torch.tensor(chosen)).to(device)).capsules
    pictures = varied_reconstructions(model, capsules, labels.to(device), OFFSETS)  # (b, e, s, c, h, w)
    change = pictures[:, :, -1] - pictures[:, :, 0]  # (b, e, c, h, w)
    effects = np.sqrt(np.square(change).mean((2, 3, 4)))  # (b, e)
    strongest = effects.argmax(1)
    classes = [
        {
            "class": names[int(label)],
            "test_image": number,
            "strongest": int(strongest[k]) + 1,
            "effects": _plain(effects[k]),
        }
        for k, (label, number) in enumerate(zip(labels, chosen, strict=True))
    ]
    shown = labels.tolist().index(wanted) if wanted in labels.tolist() else 0
    numbers["dimensions"] = {
        "offsets": list(OFFSETS),
        "shown": {
            "class": classes[shown]["class"],
            "test_image": chosen[shown],
            "strongest": classes[shown]["strongest"],
            "largest_effect": _plain(effects[shown].max()),
            "weakest": int(effects[shown].argmin()) + 1,
            "smallest_effect": _plain(effects[shown].min()),
        },
        "classes": classes,
    }
    found["dimensions"] = draw.variation_figure(
        pictures[shown], [str(k + 1) for k in range(pictures.shape[1])], OFFSETS, "number of the capsule"
    )
    found["strongest_dimensions"] = draw.variation_figure(
        pictures[np.arange(len(chosen)), strongest],
        [f"{row['class']}, number {row['strongest']}" for row in classes],
        OFFSETS,
        "class",
    )


def _described(lengths: Lengths, test_images: Sequence[int], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Single images with both answers and both sets of lengths."""
    return [
        {
            "test_image": number,
            "is": names[int(lengths.labels[k])],
            "dynamic": names[int(lengths.dynamic[k].argmax())],
            "fast": names[int(lengths.fast[k].argmax())],
            "lengths_dynamic": _plain(lengths.dynamic[k]),
            "lengths_fast": _plain(lengths.fast[k]),
        }
        for k, number in enumerate(test_images)
    ]


def _chosen(lengths: Lengths, numbers: NDArray[np.int64]) -> Lengths:
    return Lengths(lengths.labels[numbers], lengths.dynamic[numbers], lengths.fast[numbers])


def _mean(values: NDArray[np.float64]) -> Any:
    return _plain(values.mean()) if values.size else None


def _plain(values: Any) -> Any:
    """Numbers for JSON: rounded to six places, None for what is undefined."""
    array = np.asarray(values, np.float64)
    if array.ndim:
        return [_plain(part) for part in array]
    return round(float(array), 6) if np.isfinite(array) else None
