"""Old spellings that work for one release: ``lower`` and ``upper`` beside a name, ``normalize``, ``max_min``."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from torch import Tensor

from fastcaps.functional.normalizations import MaxMin, Normalization, get_normalization

P = ParamSpec("P")
R = TypeVar("R")


def accept_bounds(position: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take ``lower`` and ``upper`` after ``normalization``, as it did before Max-Min was an object.

    Args:
        position: index of ``normalization`` among the arguments.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> R:
            old = {**dict(zip(("lower", "upper"), args[position + 1 : position + 3], strict=False))}
            old |= {name: kwargs.pop(name) for name in ("lower", "upper") if name in kwargs}
            if not old or len(args) > position + 3:
                return function(*args, **kwargs)  # with too many arguments, Python's own error
            warn("lower and upper", "normalization=MaxMin(lower, upper)")
            name = args[position] if len(args) > position else kwargs.pop("normalization", "max_min")
            kwargs |= dict(zip(_names(function)[: len(args)], args[:position], strict=False))
            return function(**{**kwargs, "normalization": get_normalization(name, **old)})  # type: ignore[call-arg]

        return cast(Callable[P, R], wrapper)

    return decorate


def normalize(
    logits: Tensor,
    normalization: str | Normalization = "max_min",
    lower: float = 0.0,
    upper: float = 1.0,
    dim: int = -1,
) -> Tensor:
    """Use a normalization object instead: ``MaxMin(lower, upper)(logits)``."""
    warn("fastcaps.functional.normalize", "MaxMin(lower, upper)(logits)")
    return get_normalization(normalization, lower=lower, upper=upper)(logits.movedim(dim, -1)).movedim(-1, dim)


def max_min(logits: Tensor, lower: float = 0.0, upper: float = 1.0) -> Tensor:
    """Use ``MaxMin(lower, upper)(logits)`` instead."""
    warn("fastcaps.functional.max_min", "MaxMin(lower, upper)(logits)")
    return MaxMin(lower, upper)(logits)


def warn(old: str, new: str) -> None:
    """Warn, and name the replacement."""
    warnings.warn(
        f"{old}: use {new}; the old spelling will be removed in the next release", DeprecationWarning, stacklevel=3
    )


def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    return function.__code__.co_varnames
