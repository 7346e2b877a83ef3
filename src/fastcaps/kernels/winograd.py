"""The convolution of PrimaryCaps with several times fewer multiplications, and its gradient.

A convolution with stride s is a sum of s² convolutions with stride 1: of the maps' phases (for s = 2, even and odd
rows × even and odd columns), each with the entries of the kernel that meet this phase. The paper's 9×9 kernel
becomes four, of 5×5, 5×4, 4×5 and 4×4 entries: at most r = ⌈k/s⌉ per side.

Each of these is done by Toom–Cook's method, known for convolutions as Winograd's. To get m neighboring outputs in one
dimension, n = m + r − 1 inputs and r kernel entries are treated as coefficients of polynomials and evaluated at n
points (one of them is ∞); products at the points are added up and interpolated, transposed, to the m outputs:
``y = Aᵀ[(G g) ⊙ (B d)]``. Two dimensions take each matrix twice. At each of the n² points the products of all phases
and all channels are summed before interpolation, so the sums at one point are a matrix product: images × (s²·c) by
(s²·c) × o. For MNIST, where m = 6 covers the whole 6×6 grid of capsules, these are 100 products in place of
36 · 81 / 4 = 729.

The price is rounding, which grows with n. In float32, for the convolution of the paper's MNIST network with 32 random
images, relative to the standard deviation of what float64 gives (root mean square / largest):

==============  =================  =================  =================
kind            result             gradient on maps   on weights
==============  =================  =================  =================
ordinary        4.6e-7 / 3.2e-6    3.0e-7 / 2.7e-6    4.3e-7 / 6.8e-6
m = 3, n = 7    3.2e-6 / 2.5e-5    3.9e-6 / 5.7e-5    2.3e-6 / 4.2e-5
m = 4, n = 8    4.4e-6 / 4.3e-5    5.3e-6 / 8.1e-5    3.3e-6 / 7.0e-5
m = 6, n = 10   2.3e-5 / 3.3e-4    2.7e-5 / 7.5e-4    9.8e-6 / 2.0e-4
==============  =================  =================  =================

Memory order decides the speed. Maps are taken as ``(h w b c)``: then every evaluation is one matrix product with a
small matrix on the left, and every point's operand is a contiguous ``(b c)`` matrix. Points are worked through some
rows of n at a time, so that what belongs to them (evaluated maps, kernel, gradients) stays in the cache, in buffers
that are used again for the next rows; kernels, which are large, are read once whatever the batch.

Letters: ``b`` images (or tiles of images), ``h w`` their height and width, ``c`` channels of the maps, ``o`` channels
of the result, ``k`` side of the kernel, ``s`` stride, ``m`` side of a tile of outputs, ``r`` side of the kernel
of a phase, ``n`` points, ``p q`` phase of rows and of columns.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastcaps._products import large_products

# Tiles that `choose_tile` picks from.
TILES = (6, 4, 3)

# Up to so many images without gradient, what is not done by Winograd's method is done as a product with all patches,
# in half the time of ordinary convolution; with more images the advantage goes.
FEW = 8

# Finite points by their number; ∞ comes on top. Found by search for the least rounding error with 5×5 kernels; they
# come in pairs x and −1/x because that balances the powers of large and small ones.
_POINTS = {
    1: "0",
    2: "0 -1",
    3: "0 1 -1",
    4: "0 1 -1 2",
    5: "0 1 -1 2 -1/2",
    6: "0 1 -1 -1/2 2/3 -3",
    7: "0 1 -1 2 -2 1/2 -1/2",
    8: "0 1 -1 2 -2 1/2 -1/2 4/3",
    9: "0 6/5 -5/6 5/2 -5/2 2/5 -2/5 5/7 -7/5",
}

# The cost model of `choose_tile`, in multiplications inside a matrix product. Fitted to times of the paper's networks
# with 48 to 256 channels at batches from 1 to 128, on two cores with AVX-512.
# Evaluating the maps at a point, and interpolating, costs as much as 256 more output channels.
_EVALUATION = 256
# Loading the kernel of a point costs as much as using it for 45 images; computing it anew, as training does, 140.
_KERNEL = {False: 45, True: 140}
# The cost of the calls themselves, without and with gradients.
_CALLS = {False: 1.2e8, True: 5e8}
# Ordinary convolution takes three times as long per multiplication.
_ORDINARY = 3
# Few images without gradients become a product with patches: 1.5 times as long per multiplication, and copying the
# patches costs as much as 240 output channels.
_PATCHES, _COPYING = 1.5, 240
# Several tiles per map have to be copied into windows.
_SEVERAL = 1.5

# Winograd's method must be this much faster, to be worth its memory and its rounding.
_MARGIN = 1.25

# Input channels of the kernel that are transformed at a time.
_CHANNELS = 32

# Values of maps and kernel, at some rows of points, that are worked with at a time.
GROUP_BYTES = 64 * 2**20

# Evaluated maps held at a time: a larger batch is worked through in pieces.
CHUNK_BYTES = 64 * 2**20


class Transforms(NamedTuple):
    """The three matrices for m outputs of r kernel entries, in float64: Aᵀ ``(m n)``, G ``(n r)``, B ``(n n)``."""

    outputs: Tensor
    kernel: Tensor
    maps: Tensor


class _Plan(NamedTuple):
    """How one convolution is divided into tiles."""

    size: int  # k
    stride: int  # s
    tile: int  # m
    points: int  # n
    height: int  # of the result
    width: int

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles over the height and the width of the result."""
        return -(-self.height // self.tile), -(-self.width // self.tile)

    @property
    def window(self) -> int:
        """Side of the part of the maps that one tile of outputs sees."""
        return self.stride * self.points

    @property
    def transforms(self) -> "Transforms":
        """The matrices, in float64."""
        return transforms(self.tile, self.taps)

    @property
    def taps(self) -> int:
        """Side of the kernel of a phase, r."""
        return self.points - self.tile + 1

    @property
    def step(self) -> int:
        """Distance from one window to the next."""
        return self.stride * self.tile


class Workspace:
    """Buffers by name, allocated once and reused: fresh memory costs more time than much arithmetic."""

    def __init__(self, like: Tensor) -> None:
        self._dtype, self._device = like.dtype, like.device
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Return a contiguous tensor of a shape, uninitialized, valid until the next call with this name."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            self._buffers.pop(name, None)  # frees a smaller one before the larger is allocated
            # A tensor from inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                buffer = self._buffers[name] = torch.empty(size, dtype=self._dtype, device=self._device)
        return buffer[:size].view(shape)

    def fits(self, like: Tensor) -> bool:
        """Return whether its buffers have the type and device of a tensor."""
        return self._dtype == like.dtype and self._device == like.device


class WorkspacePool:
    """Reuses one workspace from call to call. Concurrent threads get one each; one of them is kept."""

    def __init__(self) -> None:
        self._spare: list[Workspace] = []

    @contextmanager
    def workspace(self, like: Tensor) -> Iterator[Workspace]:
        """Provide a workspace for one call."""
        try:
            workspace = self._spare.pop()
        except IndexError:
            workspace = Workspace(like)
        if not workspace.fits(like):
            workspace = Workspace(like)
        yield workspace
        self._spare[:] = [workspace]


def transforms(tile: int, taps: int) -> Transforms:
    """Return the matrices of Toom–Cook's method, computed in fractions.

    The rows of a point in the three matrices may be scaled freely as long as the product of the scales is one; here
    by the powers of two that bring their norms closest together, which rounds nothing.

    Args:
        tile: outputs, m.
        taps: kernel entries, r.
    """
    _check_points(tile, taps)
    return Transforms(*(torch.tensor(matrix, dtype=torch.float64) for matrix in _toom_cook(tile, taps)))


def winograd_conv2d(
    maps: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    tile: int,
    pool: WorkspacePool | None = None,
) -> Tensor:
    """Return ``torch.nn.functional.conv2d(maps, weight, bias, stride)``, by Winograd's method.

    The gradient, on maps, weight and bias, is exact but for rounding and can be taken once. Only the arguments are
    saved for it. On one machine, with the same number of threads, results and gradients repeat bit for bit.

    Args:
        maps: ``(b c h w)`` in any memory order; ``(h w b c)`` saves a copy.
        weight: ``(o c k k)``.
        bias: ``(o)``.
        stride: s.
        tile: side m of the tiles the result is made of; ``m + ⌈k/s⌉`` is at most 11.
        pool: where buffers come from and go back to, for use by the next call; new ones when None.

    Returns:
        ``(b o h' w')``, in memory ``(b h' w' o)``.
    """
    plan = _plan(maps, weight.shape, bias, stride, tile)
    if maps.dtype != weight.dtype or not maps.is_floating_point():
        raise ValueError(f"maps are {maps.dtype}, weights {weight.dtype}: expected one floating-point type")
    by_position: Tensor = _Winograd.apply(  # type: ignore[no-untyped-call]
        maps, weight, bias, plan, pool or WorkspacePool()
    )  # (b, h', w', o)
    return by_position.permute(0, 3, 1, 2)  # (b, o, h', w')


def order_for_training(weight: Tensor) -> Tensor:
    """Return weights ``(o c k k)`` in the memory order ``(k k o c)``, in which `winograd_conv2d` takes them fastest.

    Weights in another order are copied in every forward and every backward pass, and so is their gradient.
    """
    return weight.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)  # (o, c, k, k)


def transform_kernel(weight: Tensor, stride: int, tile: int) -> Tensor:
    """Return the values of a kernel at all points, computed in float64, for `winograd_conv2d_transformed`.

    Args:
        weight: ``(o c k k)``.
        stride: s.
        tile: m.

    Returns:
        ``(s s n n c o)`` in the weight's type: phase of rows and of columns, point of rows and of columns.
    """
    o, c, size, _ = _checked_weight(weight.shape, stride)
    taps = -(-size // stride)
    _check_points(tile, taps)
    points = tile + taps - 1
    result = weight.new_empty(stride, stride, points, points, c, o)
    plan = _Plan(size, stride, tile, points, 0, 0)
    with torch.no_grad():
        exact = weight.new_empty(0, dtype=torch.float64)
        workspace = Workspace(exact)
        # A few channels at a time: in float64 all of them would take several times the memory of the result.
        for channels, part in zip(torch.split(weight, _CHANNELS, 1), torch.split(result, _CHANNELS, 4), strict=True):
            kernel = _Kernel(channels.transpose(0, 1).to(exact), plan, workspace)
            part.copy_(kernel.rows(slice(0, points)))
    return result


def winograd_conv2d_transformed(
    maps: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    size: int,
    tile: int,
    pool: WorkspacePool | None = None,
) -> Tensor:
    """Compute `winograd_conv2d` with a kernel that was transformed before; without gradient.

    Args:
        maps: ``(b c h w)`` in any memory order; ``(h w b c)`` saves a copy.
        kernel: ``(s s n n c o)``, from `transform_kernel`.
        bias: ``(o)``.
        size: k, side of the kernel before it was transformed.
        tile: m, as for `transform_kernel`.
        pool: as for `winograd_conv2d`.

    Returns:
        ``(b o h' w')``, in memory ``(b h' w' o)``.
    """
    stride = kernel.shape[0] if kernel.ndim == 6 else 1
    points = tile - 1 - (-size // stride)
    if kernel.ndim != 6 or kernel.shape[:4] != (stride, stride, points, points):
        raise ValueError(
            f"the transformed kernel has shape {tuple(kernel.shape)}, expected ({stride}, {stride}, {points}, "
            f"{points}, c, o) for a kernel of {size}×{size} and tiles of {tile}×{tile}"
        )
    c, o = kernel.shape[4:]
    plan = _plan(maps, torch.Size((o, c, size, size)), bias, stride, tile)
    if maps.dtype != kernel.dtype or not maps.is_floating_point():
        raise ValueError(f"maps are {maps.dtype}, the kernel {kernel.dtype}: expected one floating-point type")
    with torch.no_grad(), (pool or WorkspacePool()).workspace(maps) as workspace:
        result = _convolve(maps, kernel, bias, o, plan, workspace)  # (b, h', w', o)
    return result.permute(0, 3, 1, 2)  # (b, o, h', w')


def choose_tile(
    size: int,
    stride: int,
    maps: tuple[int, int],
    channels: int,
    out_channels: int,
    batch: int,
    device: torch.device | str,
    training: bool,
) -> int | None:
    """Return the tile for `winograd_conv2d`, or None where ordinary convolution is faster.

    The tile is that of `best_tile` for any batch. The batch only decides whether to use it, because for few images it
    costs more to transform the kernel than it saves. So all batches share one transformed kernel, and the results of an
    image alone and in a batch differ by rounding only.

    Args:
        size: k, side of the kernel.
        stride: s.
        maps: h and w.
        channels: c.
        out_channels: o.
        batch: number of images.
        device: None is returned for any but a CPU.
        training: whether gradients will be computed.
    """
    tile = best_tile(size, stride, maps)
    if torch.device(device).type != "cpu" or tile is None:
        return None
    height, width = ((side - size) // stride + 1 for side in maps)
    pairs = stride**2 * channels
    using = _products(tile, size, stride, maps) * pairs * (out_channels + _EVALUATION) * batch
    points = tile - 1 - (-size // stride)
    getting = points**2 * pairs * out_channels * _KERNEL[training] + _CALLS[training]
    few = batch <= FEW and not training
    per_input = _PATCHES * out_channels + _COPYING if few else _ORDINARY * out_channels
    ordinary = per_input * size**2 * height * width * channels * batch
    return tile if _MARGIN * (using + getting) < ordinary else None


def best_tile(size: int, stride: int, maps: tuple[int, int]) -> int | None:
    """Return the tile of `TILES` with the least work for maps of this h and w; of two, the smaller, which rounds less.

    None where the kernel is too large for all of them, or for the maps.
    """
    taps = -(-size // stride)
    possible = [tile for tile in sorted(TILES) if tile + taps - 2 in _POINTS]
    if min(maps) < size or not possible:
        return None
    return min(possible, key=lambda tile: _products(tile, size, stride, maps))


def _products(tile: int, size: int, stride: int, maps: tuple[int, int]) -> float:
    """Return the number of products per image, for each channel of each phase and each output channel."""
    height, width = ((side - size) // stride + 1 for side in maps)
    tiles = -(-height // tile) * -(-width // tile)
    points = tile - 1 - (-size // stride)
    return points**2 * tiles * (_SEVERAL if tiles > 1 else 1)


@cache
def _toom_cook(tile: int, taps: int) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Return Aᵀ, G and B as tuples: cached tensors would mix those made with and without gradient mode."""
    finite = [Fraction(point) for point in _POINTS[tile + taps - 2].split()]
    # Outputs and kernel are evaluated as polynomials: row (1, x, x², …); ∞ takes the highest coefficient.
    outputs = [[x**y for y in range(tile)] for x in finite] + [[Fraction(y == tile - 1) for y in range(tile)]]
    kernel = [[x**y for y in range(taps)] for x in finite] + [[Fraction(y == taps - 1) for y in range(taps)]]
    # Maps by the transpose of interpolation: Lagrange's polynomials; for ∞ the one that vanishes at all points.
    maps = []
    for x in finite:
        others = [z for z in finite if z != x]
        value = Fraction(1)
        for z in others:
            value *= x - z
        maps.append([entry / value for entry in _with_roots(others)] + [Fraction(0)])
    maps.append(_with_roots(finite))
    for rows in zip(outputs, kernel, maps, strict=True):
        norms = [sum(float(entry) ** 2 for entry in row) ** 0.5 for row in rows]
        mean = (norms[0] * norms[1] * norms[2]) ** (1 / 3)
        scales = [_power_of_two(mean / norm) for norm in norms[:2]]
        for row, scale in zip(rows, [*scales, 1 / (scales[0] * scales[1])], strict=True):
            row[:] = [entry * scale for entry in row]
    columns = list(zip(*outputs, strict=True))
    return tuple(tuple(tuple(map(float, row)) for row in matrix) for matrix in (columns, kernel, maps))


def _with_roots(roots: list[Fraction]) -> list[Fraction]:
    """Return the coefficients, lowest first, of the product of ``x − root``."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        coefficients = [a - root * b for a, b in zip(shifted, [*coefficients, Fraction(0)], strict=True)]
    return coefficients


def _power_of_two(value: float) -> Fraction:
    return Fraction(2) ** round(math.log2(value))


def _checked_weight(shape: torch.Size, stride: int) -> torch.Size:
    if len(shape) != 4 or shape[2] != shape[3] or 0 in shape:
        raise ValueError(f"weights have shape {tuple(shape)}, expected (o, c, k, k), none of them 0")
    if stride < 1:
        raise ValueError(f"stride is {stride}, expected at least 1")
    return shape


def _check_points(tile: int, taps: int) -> None:
    if tile < 1:
        raise ValueError(f"tile is {tile}, expected at least 1")
    if tile + taps - 2 not in _POINTS:
        raise ValueError(
            f"a tile of {tile} and phases of {taps}×{taps} kernel entries take {tile + taps - 1} points, expected 2 to "
            f"{len(_POINTS) + 1}: choose another tile, or ordinary convolution"
        )


def _plan(maps: Tensor, weight: torch.Size, bias: Tensor | None, stride: int, tile: int) -> _Plan:
    o, c, size, _ = _checked_weight(weight, stride)
    taps = -(-size // stride)
    _check_points(tile, taps)
    if maps.ndim != 4 or maps.shape[1] != c or min(maps.shape[2:]) < size:
        raise ValueError(f"maps have shape {tuple(maps.shape)}, expected (b, {c}, h, w) with h and w at least {size}")
    if bias is not None and bias.shape != (o,):
        raise ValueError(f"the bias has shape {tuple(bias.shape)}, expected ({o},)")
    height, width = ((side - size) // stride + 1 for side in maps.shape[2:])
    return _Plan(size, stride, tile, tile + taps - 1, height, width)


def _phases(stride: int) -> Iterator[tuple[int, int]]:
    return ((p, q) for p in range(stride) for q in range(stride))


def _pieces(maps: Tensor, plan: _Plan) -> Iterator[slice]:
    """Yield parts of the batch whose evaluated maps fit into `CHUNK_BYTES`."""
    rows, columns = plan.tiles
    image = rows * columns * plan.window**2 * maps.shape[1] * maps.element_size()
    size = max(1, CHUNK_BYTES // image)
    for start in range(0, len(maps), size):
        yield slice(start, min(start + size, len(maps)))


def _parts(plan: _Plan, h: int, w: int) -> Iterator[tuple[int, int, slice, slice]]:
    """Yield row and column of each tile, and the part of the maps in its window, which is smaller at the edge."""
    rows, columns = plan.tiles
    for y in range(rows):
        for x in range(columns):
            top, left = y * plan.step, x * plan.step
            yield y, x, slice(top, min(top + plan.window, h)), slice(left, min(left + plan.window, w))


def _windows(maps: Tensor, plan: _Plan, workspace: Workspace) -> Tensor:
    """Return the window of each tile in maps ``(b c h w)``: ``(s·n s·n tiles·b c)``, zero beyond the edge.

    Maps that are stored as ``(h w b c)`` and have the size of one window are not copied.
    """
    b, c, h, w = maps.shape
    side = plan.window
    ordered = maps.permute(2, 3, 0, 1)  # (h, w, b, c)
    if plan.tiles == (1, 1) and h >= side and w >= side:
        return ordered[:side, :side].contiguous()  # (s·n, s·n, b, c)
    windows = workspace("windows", side, side, *plan.tiles, b, c)
    for y, x, rows, columns in _parts(plan, h, w):
        part = ordered[rows, columns]
        if part.shape[:2] != (side, side):
            windows[:, :, y, x] = 0
        windows[: part.shape[0], : part.shape[1], y, x] = part
    return windows.view(side, side, -1, c)


def _add_windows(windows: Tensor, plan: _Plan, out: Tensor) -> None:
    """Add gradients ``(s·n s·n tiles·b c)`` on the result of `_windows` to ``out (h w b c)``."""
    h, w, b, c = out.shape
    by_tile = windows.view(plan.window, plan.window, *plan.tiles, b, c)
    for y, x, rows, columns in _parts(plan, h, w):
        part = out[rows, columns]
        part += by_tile[: part.shape[0], : part.shape[1], y, x]


def _join(outputs: Tensor, bias: Tensor | None, plan: _Plan, out: Tensor) -> None:
    """Put tiles ``(m m tiles·b o)`` together to ``out (b h' w' o)``, and add the bias."""
    b, _, _, o = out.shape
    rows, columns = plan.tiles
    by_tile = outputs.view(plan.tile, plan.tile, rows, columns, b, o)
    ordered = by_tile.permute(4, 2, 0, 3, 1, 5)  # (b, rows, m, columns, m, o)
    # For one tile, which is the common case, this is a view.
    joined = ordered.reshape(b, rows * plan.tile, columns * plan.tile, o)
    fitting = joined[:, : plan.height, : plan.width]  # (b, h', w', o)
    if bias is None:
        out.copy_(fitting)
    else:
        torch.add(fitting, bias, out=out)


def _split(result: Tensor, plan: _Plan) -> Tensor:
    """Reverse `_join`: ``(b h' w' o)`` to tiles ``(m m tiles·b o)``, zero beyond the edge."""
    b, _, _, o = result.shape
    rows, columns = plan.tiles
    missing = (rows * plan.tile - plan.height, columns * plan.tile - plan.width)
    if any(missing):
        result = torch.nn.functional.pad(result, (0, 0, 0, missing[1], 0, missing[0]))
    by_tile = result.reshape(b, rows, plan.tile, columns, plan.tile, o)
    ordered = by_tile.permute(2, 4, 1, 3, 0, 5).contiguous()  # (m, m, rows, columns, b, o)
    return ordered.view(plan.tile, plan.tile, -1, o)


class _Kernel:
    """The values of a kernel ``(x y k k)``, evaluated some rows of points at a time."""

    def __init__(self, weight: Tensor, plan: _Plan, workspace: Workspace) -> None:
        self._plan, self._workspace, self._channels = plan, workspace, weight.shape[:2]
        n, s, k = plan.points, plan.stride, plan.size
        self._matrix = plan.transforms.kernel.to(weight)  # (n, r)
        self._rows = workspace("rows of kernel", s, n, k, self._channels.numel())
        # A view of weights in the order of `order_for_training`, a copy of others.
        by_row = weight.permute(2, 3, 0, 1).reshape(k, -1)  # (k, k·x·y)
        for p in range(s):
            of_phase = by_row[p::s]  # (≤ r, k·x·y)
            torch.mm(self._matrix[:, : len(of_phase)], of_phase, out=self._rows[p].view(n, -1))

    def rows(self, rows: slice) -> Tensor:
        """Return rows of points ``(s s rows n x y)``, valid until the next call."""
        n, s = self._plan.points, self._plan.stride
        count = rows.stop - rows.start
        values = self._workspace("kernel", s, s, count, n, *self._channels)
        for p, q in _phases(s):
            of_phase = self._rows[p, rows, q::s]  # (rows, ≤ r, x·y)
            taps = of_phase.shape[1]
            by_pair = values[p, q].view(count, n, -1)
            torch.bmm(self._matrix[:, :taps].expand(count, n, taps), of_phase, out=by_pair)
        return values


def _groups(plan: _Plan, row_bytes: int) -> list[slice]:
    """Return groups of rows of points, each as large as the cache allows, because every call has its cost."""
    size = max(1, GROUP_BYTES // row_bytes)
    return [slice(start, min(start + size, plan.points)) for start in range(0, plan.points, size)]


def _evaluate_rows(windows: Tensor, matrix: Tensor, plan: _Plan, out: Tensor) -> None:
    """Evaluate windows ``(s·n s·n b c)`` over their rows: ``(n s n s b c)`` (n points, s phases, then columns)."""
    with large_products():
        torch.mm(matrix, windows.view(plan.points, -1), out=out.view(plan.points, -1))


def _evaluate_columns(rows: Tensor, matrix: Tensor, plan: _Plan, out: Tensor) -> None:
    """Evaluate rows of points ``(rows s n s b c)`` over their columns: ``(s rows n s b c)``, n now points."""
    count, n = len(rows), plan.points
    for p in range(plan.stride):
        torch.bmm(matrix.expand(count, n, n), rows[:, p].flatten(2), out=out[p].view(count, n, -1))


def _convolve(
    maps: Tensor, kernel: "Tensor | _Kernel", bias: Tensor | None, o: int, plan: _Plan, workspace: Workspace
) -> Tensor:
    """Return the result ``(b h' w' o)`` for maps ``(b c h w)`` and a kernel ``(s s n n c o)``."""
    n, s, m = plan.points, plan.stride, plan.tile
    c = maps.shape[1]
    at_maps, at_outputs = plan.transforms.maps.to(maps), plan.transforms.outputs.to(maps)
    result = maps.new_empty(len(maps), plan.height, plan.width, o)
    for piece in _pieces(maps, plan):
        windows = _windows(maps[piece], plan, workspace)  # (s·n, s·n, b, c)
        b = windows.shape[2]
        rows = workspace("rows of maps", n, s, n, s, b, c)
        _evaluate_rows(windows, at_maps, plan, out=rows)
        half = workspace("half", n, m, b, o)
        from_weights = o if isinstance(kernel, _Kernel) else 0
        for group in _groups(plan, s * s * n * c * (b + from_weights) * maps.element_size()):
            count = group.stop - group.start
            values = workspace("values", s, count, n, s, b, c)
            _evaluate_columns(rows[group], at_maps, plan, out=values)
            # (s, s, rows, n, c, o)
            of_kernel = kernel[:, :, group] if isinstance(kernel, Tensor) else kernel.rows(group).transpose(4, 5)
            sums = workspace("sums", count * n, b, o)
            for p, q in _phases(s):
                factors = values[p, :, :, q].flatten(0, 1), of_kernel[p, q].flatten(0, 1)
                with large_products():
                    if p == q == 0:
                        torch.bmm(*factors, out=sums)  # (rows·n, b, o)
                    else:
                        sums.baddbmm_(*factors)
            by_row = sums.view(count, n, -1)
            torch.bmm(at_outputs.expand(count, m, n), by_row, out=half[group].view(count, m, -1))
        outputs = workspace("outputs", m, m, b, o)
        with large_products():
            torch.mm(at_outputs, half.view(n, -1), out=outputs.view(m, -1))
        _join(outputs, bias, plan, out=result[piece])
    return result


class _Winograd(torch.autograd.Function):
    """Maps ``(b c h w)``, weights ``(o c k k)`` and bias ``(o)`` to ``(b h' w' o)``."""

    @staticmethod
    def forward(
        ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor | None, plan: _Plan, pool: WorkspacePool
    ) -> Tensor:
        ctx.plan, ctx.pool = plan, pool
        ctx.save_for_backward(maps, weight)
        with pool.workspace(maps) as workspace:
            return _convolve(maps, _Kernel(weight, plan, workspace), bias, len(weight), plan, workspace)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_result: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight = ctx.saved_tensors
        for_maps, for_weight, for_bias = ctx.needs_input_grad[:3]
        on_maps = on_weight = None
        if for_maps or for_weight:
            with ctx.pool.workspace(maps) as workspace:
                on_maps, on_weight = _gradients(maps, weight, on_result, ctx.plan, for_maps, for_weight, workspace)
        on_bias = on_result.sum((0, 1, 2)) if for_bias else None
        return on_maps, on_weight, on_bias, None, None


def _gradients(
    maps: Tensor,
    weight: Tensor,
    on_result: Tensor,
    plan: _Plan,
    for_maps: bool,
    for_weight: bool,
    workspace: Workspace,
) -> tuple[Tensor | None, Tensor | None]:
    """Return gradients on maps ``(b c h w)`` and weights ``(o c k k)`` from that on the result ``(b h' w' o)``.

    Every step of `_convolve` is linear: its transpose is applied, in the reverse order. The gradient on a row of maps
    overwrites the row.
    """
    n, s, m, k = plan.points, plan.stride, plan.tile, plan.size
    o, c = weight.shape[:2]
    at_outputs, at_kernel, at_maps = (matrix.to(maps) for matrix in plan.transforms)
    kernel = _Kernel(weight, plan, workspace) if for_maps else None
    # Where the windows are the maps themselves, one product writes the gradient in place.
    pieces = list(_pieces(maps, plan))
    at_once = plan.tiles == (1, 1) and maps.shape[2:] == (plan.window, plan.window) and len(pieces) == 1
    on_ordered = on_rows_of_kernel = None
    if for_maps:
        shape = (*maps.shape[2:], *maps.shape[:2])  # (h, w, b, c)
        on_ordered = maps.new_empty(shape) if at_once else maps.new_zeros(shape)
    if for_weight:
        on_rows_of_kernel = workspace("on rows of kernel", s, n, k, o * c)
        if not pieces:
            on_rows_of_kernel.zero_()
    for number, piece in enumerate(pieces):
        b = (piece.stop - piece.start) * plan.tiles[0] * plan.tiles[1]
        rows = workspace("rows of maps", n, s, n, s, b, c)
        if for_weight:
            _evaluate_rows(_windows(maps[piece], plan, workspace), at_maps, plan, out=rows)
        half = workspace("half", n, m, b, o)
        with large_products():
            torch.mm(at_outputs.t(), _split(on_result[piece], plan).view(m, -1), out=half.view(n, -1))
        for group in _groups(plan, s * s * n * c * (b + o) * maps.element_size()):
            count = group.stop - group.start
            on_sums = workspace("sums", count * n, b, o)
            by_row = half[group].view(count, m, -1)
            torch.bmm(at_outputs.t().expand(count, n, m), by_row, out=on_sums.view(count, n, -1))
            if on_rows_of_kernel is not None:
                values = workspace("values", s, count, n, s, b, c)
                _evaluate_columns(rows[group], at_maps, plan, out=values)
                buffer = workspace("on kernel", count * n, o, c)
                # The first piece overwrites what the buffer held, the others add to it.
                _add_to_kernel(on_rows_of_kernel[:, group], on_sums, values, at_kernel, buffer, 1 if number else 0)
            if kernel is not None:
                buffer = workspace("on values", count * n, b, c)
                _write_to_rows(rows[group], on_sums, kernel.rows(group), at_maps, buffer)
        if on_ordered is not None:
            on_windows = on_ordered if at_once else workspace("windows", plan.window, plan.window, b, c)
            with large_products():
                torch.mm(at_maps.t(), rows.view(n, -1), out=on_windows.view(n, -1))
            if not at_once:
                _add_windows(on_windows, plan, out=on_ordered[:, :, piece])
    on_weight = None if on_rows_of_kernel is None else _from_rows(on_rows_of_kernel, at_kernel, weight.shape)
    return None if on_ordered is None else on_ordered.permute(2, 3, 0, 1), on_weight


def _from_rows(on_rows: Tensor, at_kernel: Tensor, shape: torch.Size) -> Tensor:
    """Return the gradient on a kernel ``(o c k k)``, in memory ``(k k o c)``, from that on its rows ``(s n k o·c)``."""
    s, n, k, _ = on_rows.shape
    by_row = on_rows.new_empty(k, k * on_rows.shape[3])
    for p in range(s):
        of_phase = by_row[p::s]  # (≤ r, k·o·c)
        torch.mm(at_kernel[:, : len(of_phase)].t(), on_rows[p].view(n, -1), out=of_phase)
    return by_row.view(k, k, *shape[:2]).permute(2, 3, 0, 1)


def _add_to_kernel(
    on_rows: Tensor, on_sums: Tensor, values: Tensor, at_kernel: Tensor, buffer: Tensor, beta: int
) -> None:
    """Add the gradient of some rows of points to that of the kernel ``(s rows k o·c)``; ``beta`` 0 overwrites it."""
    s, count, n = values.shape[:3]
    for p, q in _phases(s):
        with large_products():
            torch.bmm(on_sums.transpose(1, 2), values[p, :, :, q].flatten(0, 1), out=buffer)
        of_phase = on_rows[p, :, q::s]  # (rows, ≤ r, o·c)
        taps = of_phase.shape[1]
        of_phase.baddbmm_(at_kernel[:, :taps].t().expand(count, taps, n), buffer.view(count, n, -1), beta=beta)


def _write_to_rows(rows: Tensor, on_sums: Tensor, kernel: Tensor, at_maps: Tensor, buffer: Tensor) -> None:
    """Overwrite rows of maps ``(rows s n s b c)`` with their gradient, for a kernel ``(s s rows n o c)``."""
    for p, q in _phases(len(kernel)):
        with large_products():
            torch.bmm(on_sums, kernel[p, q].flatten(0, 1), out=buffer)
            for row, on_row in zip(rows, buffer.view(len(rows), at_maps.shape[0], -1), strict=True):
                torch.mm(at_maps.t(), on_row, out=row[p, :, q].flatten(1))  # (n, b·c)
