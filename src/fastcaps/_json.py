"""Read JSON that may be damaged or hostile: with limits, and directly into a type."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec
import numpy as np

T = TypeVar("T")

_LIMIT = 64 * 2**20


def read_json(path: Path, kind: type[T], *, limit: int = _LIMIT) -> T:
    """Read a JSON file as a dataclass, or another type that msgspec knows.

    Args:
        path: path of the file.
        kind: type of its value; unknown fields are ignored.
        limit: maximum bytes of the file.
    """
    with path.open("rb") as file:
        content = file.read(limit + 1)
    return parse_json(content, kind, str(path), limit=limit)


def parse_json(content: bytes | str, kind: type[T], source: str, *, limit: int = _LIMIT) -> T:
    """Return JSON as a value of a type.

    Args:
        content: the document.
        kind: type of its value; unknown fields are ignored.
        source: its name in error messages, such as a file name.
        limit: maximum bytes of the document.
    """
    if len(content) > limit:
        raise ValueError(f"{source} has more than {limit:,} bytes, expected fewer: is it the right file?")
    with _one_sentence(source):
        return msgspec.json.decode(content, type=kind, dec_hook=_decode)


def convert_json(values: Any, kind: type[T], source: str) -> T:
    """Convert plain values of a JSON document to a type, as `parse_json` does."""
    with _one_sentence(source):
        return msgspec.convert(values, kind, dec_hook=_decode)


@contextmanager
def _one_sentence(source: str) -> Iterator[None]:
    """Turn errors about a document into one sentence."""
    try:
        yield
    except msgspec.ValidationError as error:
        raise ValueError(f"{source} is damaged: {_words(error)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{source} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{source} is damaged: its values are nested too deeply") from None
    except (TypeError, ValueError, OverflowError) as error:  # from __post_init__ of a dataclass
        raise ValueError(f"{source}: {error}") from None


def _decode(kind: Any, value: Any) -> Any:
    """Return a list of numbers as an array; None becomes NaN."""
    if get_origin(kind) is not np.ndarray:
        raise TypeError(f"{kind} can't be read from JSON")
    number = get_args(get_args(kind)[1])[0]
    try:
        array = np.array(value, np.float64)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if not array.ndim or (np.issubdtype(number, np.integer) and np.isnan(array).any()):
        raise ValueError("expected lists of numbers of one shape")
    return array.astype(number)


def _words(error: msgspec.ValidationError) -> str:
    """Return an error of msgspec with the field in front: ``settings.epochs: expected int, got str``."""
    words, _, place = str(error).replace("`", "").partition(" - at ")
    place = re.sub(r"^\$\.?", "", place)
    words = words[:1].lower() + words[1:]
    return f"{place}: {words}" if place else words
