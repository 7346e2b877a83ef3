"""The paper's Table 1: mean and standard deviation of the maximum test accuracies of five trainings, in per cent."""

from fastcaps.data.registry import SETS

# Data sets in the order of its columns.
TITLES = {name: SETS[name].title for name in ("mnist", "background_mnist", "fashion_mnist", "rotated_mnist", "cifar10")}
NORMALIZATIONS = {"max_min": "Max-Min", "softmax": "softmax"}
ROUTINGS = ("dynamic", "fast")

_ROWS = {
    ("dynamic", "max_min"): ((99.55, 0.02), (93.09, 0.04), (92.07, 0.12), (95.42, 0.03), (75.92, 0.27)),
    ("fast", "max_min"): ((99.43, 0.08), (92.93, 0.10), (91.52, 0.20), (95.04, 0.04), (70.33, 0.36)),
    ("dynamic", "softmax"): ((99.28, 0.07), (89.08, 0.21), (90.52, 0.16), (93.72, 0.09), (73.65, 0.10)),
    ("fast", "softmax"): ((98.92, 0.30), (84.34, 4.37), (80.16, 7.35), (84.13, 4.28), (47.11, 8.70)),
}

# (data, normalization, routing) → (mean, standard deviation)
PAPER = {
    (data, normalization, routing): numbers
    for (routing, normalization), row in _ROWS.items()
    for data, numbers in zip(TITLES, row, strict=True)
}
