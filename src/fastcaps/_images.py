"""Find, inspect and decode image files of the user safely."""

import hashlib
import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".pbm"})
_GRAY = frozenset({"1", "L", "LA", "I;16", "I;16L", "I;16B"})
# Exif orientations that turn an image on its side.
_SIDEWAYS = frozenset({5, 6, 7, 8})
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Header:
    """Properties of an image file that need no decoding: upright size, whether it is gray, SHA-256."""

    height: int
    width: int
    gray: bool
    sha256: str


def image_files(folder: Path) -> list[Path]:
    """Return all image files in a folder and its subfolders, sorted; hidden files are left out."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in _SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def header(path: Path) -> Header:
    """Read an image file without decoding its pixels."""
    content = path.read_bytes()
    with _opened(path, content) as image:
        w, h = image.size
        # A PNG file may have its Exif data after the pixels, which Pillow would have to decode first.
        known = image.format != "PNG" or "exif" in image.info
        if known and image.getexif().get(_ORIENTATION) in _SIDEWAYS:
            w, h = h, w
        return Header(h, w, image.mode in _GRAY, hashlib.sha256(content).hexdigest())


def decode(path: Path, size: tuple[int, int] | None, channels: int, content: bytes | None = None) -> NDArray[np.uint8]:
    """Return an image file as bytes ``(c h w)``: upright, on white where transparent, resized.

    Args:
        path: path of the file; also its name in error messages.
        size: height and width to resize to; None keeps those of the file.
        channels: 1 for gray, 3 for color.
        content: content of the file, which then need not exist; read from ``path`` when None.
    """
    with _opened(path, path.read_bytes() if content is None else content) as image:
        return to_bytes(ImageOps.exif_transpose(image), channels, size)


def to_bytes(image: Image.Image, channels: int | None = None, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Return a Pillow image as bytes ``(c h w)``, as for `decode`; gray or color is kept when ``channels`` is None."""
    if channels is None:
        channels = 1 if image.mode in _GRAY else 3
    if image.mode.startswith("I;16"):
        # Pillow would clip 16 bits at 255 instead of scaling them.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"it has 32-bit pixels (mode {image.mode}), expected 8 or 16 bits: convert it first")
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
    opaque = image.convert("L" if channels == 1 else "RGB")
    if size is not None and opaque.size != size[::-1]:
        opaque = opaque.resize(size[::-1], Image.Resampling.BILINEAR)
    pixels = np.asarray(opaque)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def gray_photograph(path: Path) -> NDArray[np.uint8]:
    """Return a photograph ``(h w)`` in gray at its own size."""
    with no_bombs():
        pixels: NDArray[np.uint8] = decode(path, None, 1)[0]
        return pixels


@contextmanager
def no_bombs() -> Iterator[None]:
    """Turn Pillow's warning about decompression bombs into an error, in all threads.

    Warning filters belong to the whole process, so enter this once around all threads, and not in the background.
    Without it such an image is refused as well, after Pillow's warning.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


@contextmanager
def _opened(path: Path, content: bytes) -> Iterator[Image.Image]:
    """Open an image; every failure, also while it is decoded, becomes one ValueError that names the file."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > (Image.MAX_IMAGE_PIXELS or math.inf):
                raise Image.DecompressionBombError
            yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError(
            f"{path} has more than {Image.MAX_IMAGE_PIXELS or 0:,} pixels and may be a decompression bomb: "
            "make it smaller or remove it"
        ) from None
    except Exception as error:
        # Pillow's decoders raise nearly anything on a damaged file.
        raise ValueError(
            f"{path} can't be decoded as an image ({_words(error, path)}): replace or remove it"
        ) from error


def _words(error: Exception, path: Path) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"{path.suffix} but no known image format" if path.suffix else "no known image format"
    return str(error) or type(error).__name__
