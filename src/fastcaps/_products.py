"""Large float32 matrix products with AVX-512 where PyTorch leaves it unused.

PyTorch multiplies float32 matrices with MKL, which uses AVX-512 on processors from Intel only. oneDNN, which is part of
PyTorch, uses it on all: on an EPYC, the products of Winograd's method and of the stem take half the time. PyTorch
hands a float32 product to oneDNN only where bfloat16 is allowed, but oneDNN has such kernels only for processors with
AMX. On the others it computes in float32, which `is_float32` verifies before the first product.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from fastcaps._machine import instruction_sets, processor_vendor

# The largest relative error of a product of float32 numbers; bfloat16 has an error of about 1/256.
_TOLERANCE = 1e-5


class _Permission:
    """The permission for oneDNN. It lasts while at least one thread computes large products."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users, self._before = 0, "none"

    def acquire(self) -> None:
        """Allow oneDNN; remember the setting of the program."""
        with self._lock:
            if not self._users:
                self._before = _setting().fp32_precision
                _setting().fp32_precision = "bf16"
            self._users += 1

    def release(self) -> None:
        """Restore the setting when the last thread is done."""
        with self._lock:
            self._users -= 1
            if not self._users:
                # The setting is either inherited ("none") or explicit; both read the same.
                _setting().fp32_precision = "none"
                if _setting().fp32_precision != self._before:
                    _setting().fp32_precision = self._before


_permission = _Permission()


@contextmanager
def large_products() -> Iterator[None]:
    """Let oneDNN compute the matrix products inside, if that is faster on this processor; in float32 in any case.

    The setting belongs to the process. While it lasts, products of other threads may be rounded as oneDNN rounds them,
    and `torch.get_float32_matmul_precision` raises an error there.
    """
    if not uses_onednn():
        yield
        return
    _permission.acquire()
    try:
        yield
    finally:
        _permission.release()


@cache
def uses_onednn() -> bool:
    """Return whether oneDNN computes the large products on this machine: AVX-512, no AMX, not from Intel."""
    return (
        processor_vendor() not in ("", "GenuineIntel")
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and not any(name.startswith("amx") for name in instruction_sets())
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and _setting() is not None
        and is_float32()
    )


def is_float32() -> bool:
    """Return whether products are computed in float32 where bfloat16 is allowed."""
    generator = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float32, "device": "cpu"}
    left, right = torch.rand(2, 128, 256, **options), torch.rand(2, 256, 128, **options)
    exact = left.double() @ right.double()
    _permission.acquire()
    try:
        with torch.autocast("cpu", enabled=False):
            products = torch.bmm(left, right), torch.stack([torch.mm(*pair) for pair in zip(left, right, strict=True)])
    finally:
        _permission.release()
    return all(bool(((product - exact).abs() <= _TOLERANCE * exact).all()) for product in products)


def _setting() -> Any:
    """Return the precision of float32 products in oneDNN; None before PyTorch 2.9, which has no such setting."""
    return getattr(torch.backends.mkldnn, "matmul", None)
