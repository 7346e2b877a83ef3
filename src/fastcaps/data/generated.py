"""Generated sets: generated once, cached, and read from the cache only when complete.

A set is two files: images and labels (safetensors), and a JSON document that is written last, with the recipe and the
SHA-256 of the first file. Without the document the set counts as missing.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as parse
from safetensors.numpy import save as serialize

from fastcaps._download import cache_dir
from fastcaps._files import json_bytes, write_atomically
from fastcaps._result import Record, json_field
from fastcaps.data.idx import Arrays


@dataclass(frozen=True, kw_only=True)
class Recipe(Record):
    """Everything that a generated set depends on.

    Attributes:
        recipe: name of the set.
        version: version of the recipe.
        seed: seed of all random choices.
        train: number of training images.
        test: number of test images.
        sources: hashes of the files that it is made from, by name.
        details: further parameters of this set, as plain values.
    """

    recipe: str
    version: int = 1
    seed: int
    train: int
    test: int
    sources: Mapping[str, str | None]
    details: Mapping[str, Any] = json_field(default_factory=dict, flat=True)


@dataclass(frozen=True)
class Document(Record):
    """The document beside the images of a set: `Recipe.to_dict`, and the SHA-256 of their file."""

    recipe: Mapping[str, Any]
    sha256: str


def paths(recipe: Recipe) -> tuple[Path, Path]:
    """Return the paths at which the images and the document of a recipe are cached."""
    key = hashlib.sha256(json.dumps(recipe.to_dict(), sort_keys=True).encode()).hexdigest()[:16]
    stem = cache_dir() / "generated" / f"{recipe.recipe}-{key}"
    return stem.with_suffix(".safetensors"), stem.with_suffix(".json")


def cached(recipe: Recipe, make: Callable[[], tuple[Arrays, Arrays]]) -> tuple[Arrays, Arrays, Document]:
    """Return the training part, the test part and the document of a set, from the cache or generated now.

    Args:
        recipe: everything that the result depends on.
        make: generates the two parts.
    """
    images_path, document_path = paths(recipe)
    if document_path.exists():
        try:
            document = Document.load(document_path)
            content = images_path.read_bytes()
            if document != Document(recipe.to_dict(), hashlib.sha256(content).hexdigest()):
                raise ValueError("its content is not what was written")
            return *_parts(content), document
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            warnings.warn(f"{images_path} is damaged ({error}) and is generated again", stacklevel=2)
    train, test = make()
    content = serialize(
        {
            "train_images": np.ascontiguousarray(train[0]),
            "train_labels": train[1],
            "test_images": np.ascontiguousarray(test[0]),
            "test_labels": test[1],
        }
    )
    document = Document(recipe.to_dict(), hashlib.sha256(content).hexdigest())
    write_atomically({images_path: content, document_path: json_bytes(document.to_dict())})
    return train, test, document


def _parts(content: bytes) -> tuple[Arrays, Arrays]:
    arrays = parse(content)
    return (
        (arrays["train_images"], arrays["train_labels"]),
        (arrays["test_images"], arrays["test_labels"]),
    )
