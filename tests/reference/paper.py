"""Equations 1 and 2, the Max-Min Routing Procedure, the Fast Routing Procedure, and section 5.

One image at a time, one capsule at a time. Arrays are float64: votes ``(i j e)``, coefficients ``(i j)``.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def squash(s: Array) -> Array:
    """Equation 1, right: v = ‖s‖² / (1 + ‖s‖²) · s / ‖s‖."""
    squared = 0.0
    for number in s:
        squared += float(number) ** 2
    length = math.sqrt(squared)
    if length == 0.0:
        return np.zeros_like(s)
    return squared / (1.0 + squared) * (s / length)


def max_min(row: Array, p: float = 0.0, q: float = 1.0) -> Array:
    """Equation 2, for one lower capsule's logits; a row whose entries are all equal gives q."""
    least, greatest = min(row), max(row)
    result = np.empty_like(row)
    for j in range(len(row)):
        if greatest == least:
            result[j] = q
        else:
            result[j] = p + (row[j] - least) / (greatest - least) * (q - p)
    return result


def softmax(row: Array) -> Array:
    """Sabour et al.: exponentials that sum to one over the classes."""
    shifted = [math.exp(float(number) - float(max(row))) for number in row]
    return np.array([number / sum(shifted) for number in shifted])


def leaky_softmax(row: Array) -> Array:
    """Sabour's code: softmax over the classes and one more logit, 0, whose share is dropped."""
    return softmax(np.array([0.0, *row]))[1:]


def sparsemax(row: Array) -> Array:
    """Martins and Astudillo (2016): the nearest point of the simplex."""
    ordered = sorted(map(float, row), reverse=True)
    total, threshold = 0.0, 0.0
    for k, number in enumerate(ordered, 1):
        total += number
        if 1 + k * number > total:
            threshold = (total - 1) / k
    return np.array([max(0.0, float(number) - threshold) for number in row])


def normalize(row: Array, normalization: str, p: float, q: float) -> Array:
    if normalization == "max_min":
        return max_min(row, p, q)
    return {"softmax": softmax, "leaky_softmax": leaky_softmax, "sparsemax": sparsemax}[normalization](row)


def start(normalization: str, classes: int) -> float:
    """The coefficient of the first iteration."""
    if normalization == "max_min":
        return 1.0
    return 1.0 / (classes + 1) if normalization == "leaky_softmax" else 1.0 / classes


def prediction_vectors(u: Array, weight: Array) -> Array:
    """Equation 1, left: û_j|i = W_ij u_i, for u (i d) and weights (i d j e)."""
    i_count, d_count, j_count, e_count = weight.shape
    votes = np.zeros((i_count, j_count, e_count))
    for i in range(i_count):
        for j in range(j_count):
            for e in range(e_count):
                for d in range(d_count):
                    votes[i, j, e] += weight[i, d, j, e] * u[i, d]
    return votes


def routing_procedure(
    votes: Array,
    r: int = 3,
    normalization: str = "max_min",
    p: float = 0.0,
    q: float = 1.0,
    bias: Array | None = None,
) -> tuple[Array, Array]:
    """The Max-Min Routing Procedure for one image; a bias (j e) is added to the sums, as in Sabour's code.

    Returns:
        The capsules v (j e), and the coefficients (r i j) that line 4 used in each iteration.
    """
    i_count, j_count, e_count = votes.shape
    b = np.zeros((i_count, j_count))
    c = np.zeros((i_count, j_count))
    for i in range(i_count):  # line 2
        for j in range(j_count):
            c[i, j] = start(normalization, j_count)
    v = np.zeros((j_count, e_count))
    used = []
    for _ in range(r):  # line 3
        used.append(c.copy())
        s = np.zeros((j_count, e_count))
        for j in range(j_count):  # line 4
            for i in range(i_count):
                s[j] += c[i, j] * votes[i, j]
            if bias is not None:
                s[j] += bias[j]
        for j in range(j_count):  # line 5
            v[j] = squash(s[j])
        for i in range(i_count):  # line 6
            for j in range(j_count):
                b[i, j] = b[i, j] + float(np.dot(votes[i, j], v[j]))
        for i in range(i_count):  # line 7
            c[i] = normalize(b[i], normalization, p, q)
    return v, np.stack(used)


def fast_routing(coefficients: Array, votes: Array, bias: Array | None = None) -> Array:
    """The Fast Routing Procedure for Inference, for one image: capsules (j e)."""
    i_count, j_count, e_count = votes.shape
    v = np.zeros((j_count, e_count))
    for j in range(j_count):
        s = np.zeros(e_count)
        for i in range(i_count):  # line 2
            s += coefficients[i, j] * votes[i, j]
        if bias is not None:
            s += bias[j]
        v[j] = squash(s)  # line 3
    return v


def master_coefficients(
    coefficients: Sequence[Array],
    labels: Sequence[int],
    normalization: str = "max_min",
    p: float = 0.0,
    q: float = 1.0,
) -> Array:
    """Section 5: one matrix (i j) from the individual coefficient matrices of the training images."""
    i_count, j_count = coefficients[0].shape
    # "we initialize N matrices as containers"
    containers = [np.zeros((i_count, j_count)) for _ in range(j_count)]
    frequencies = [0] * j_count
    # "its individual routing coefficient matrix is summed in the appropriate container matrix for its class"
    for matrix, label in zip(coefficients, labels, strict=True):
        containers[label] += matrix
        frequencies[label] += 1
    # "normalized by their respective class frequency, followed by a row-wise Max-Min normalization"
    for k in range(j_count):
        containers[k] /= frequencies[k]
        for i in range(i_count):
            containers[k][i] = normalize(containers[k][i], normalization, p, q)
    # "transferring only the GT column from each of the N container matrices"
    master = np.zeros((i_count, j_count))
    for k in range(j_count):
        for i in range(i_count):
            master[i, k] = containers[k][i, k]
    return master


def columns_master(
    coefficients: Sequence[Array],
    labels: Sequence[int],
    normalization: str = "max_min",
    p: float = 0.0,
    q: float = 1.0,
) -> Array:
    """Appendix, step 4, the variant that performs poorly: only the GT columns, in a single container."""
    i_count, j_count = coefficients[0].shape
    container = np.zeros((i_count, j_count))
    frequencies = [0] * j_count
    # "accumulate just the GT columns from the individual routing coefficient matrices into a single container matrix"
    for matrix, label in zip(coefficients, labels, strict=True):
        for i in range(i_count):
            container[i, label] += matrix[i, label]
        frequencies[label] += 1
    # "then normalize column-wise by class frequency"
    for k in range(j_count):
        for i in range(i_count):
            container[i, k] /= frequencies[k]
    # "and row-wise by Max-Min"
    for i in range(i_count):
        container[i] = normalize(container[i], normalization, p, q)
    return container


def mean_master(coefficients: Sequence[Array]) -> Array:
    """A hidden layer: the mean of all matrices (i j)."""
    total = np.zeros_like(coefficients[0])
    for matrix in coefficients:
        total += matrix
    return total / len(coefficients)


def pooled_master(
    coefficients: Sequence[Array],
    labels: Sequence[int],
    normalization: str = "max_min",
    p: float = 0.0,
    q: float = 1.0,
) -> Array:
    """The baseline that doesn't look at labels: the mean of all matrices, then row by row as in section 5."""
    i_count, j_count = coefficients[0].shape
    mean = np.zeros((i_count, j_count))
    for matrix in coefficients:
        mean += matrix
    mean /= len(labels)
    for i in range(i_count):
        mean[i] = normalize(mean[i], normalization, p, q)
    return mean
