"""From the body of a request to inputs of a network: multipart, JSON with base64, or a bare picture."""

import base64
import binascii
import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from fastcaps.runtime.pictures import Invert, TakesImages, inverted, network_input
from fastcaps.serving.settings import RefusedError, Settings

# Formats that browsers read; decoders of other formats are not exposed to clients.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_MAX_NAME = 200
# Decoding takes longer per pixel where rows are short.
_MAX_SIDE = 16_384
# Maximum pixels of all pictures of a request, as a multiple of the maximum of one picture.
_TOGETHER = 4
# It warns about every damaged body, and clients may send any number of them.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


class Picture(NamedTuple):
    """A picture as it was sent, and its name in answers."""

    name: str
    content: bytes


class Prepared(NamedTuple):
    """An input of the network ``(c h w)``, and whether it was inverted."""

    pixels: NDArray[np.uint8]
    inverted: bool


def read_pictures(body: bytes, content_type: str, settings: Settings) -> list[Picture]:
    """Return the pictures of a request's body; raise `RefusedError` if there are none or too many."""
    kind, options = parse_options_header(content_type)
    if kind == b"multipart/form-data":
        pictures = _from_multipart(body, options.get(b"boundary", b""), settings)
    elif kind == b"application/json":
        pictures = _from_json(body)
    else:
        pictures = [Picture("body", body)] if body else []
    if not pictures:
        raise RefusedError(422, "the request has no picture: send one as the body, as multipart files, or as JSON")
    if len(pictures) > settings.max_images:
        raise _too_many(f"{len(pictures)}", settings)
    return pictures


def prepare(
    pictures: Sequence[Picture], image: TakesImages, background: float | None, invert: Invert, max_pixels: int
) -> list[Prepared | str]:
    """Return the input for each picture, or a sentence with the reason if it can't be read."""
    prepared: list[Prepared | str] = []
    left = _TOGETHER * max_pixels
    for picture in pictures:
        size = _pixels(picture.content, max_pixels)
        if isinstance(size, int) and size > left:
            size = f"the pictures have more than {_TOGETHER * max_pixels:,} pixels together: send them one by one"
        if isinstance(size, str):
            prepared.append(size)
            continue
        left -= size
        try:
            pixels = network_input(Path("the picture"), image, picture.content)
            prepared.append(Prepared(*inverted(pixels, background, invert)))
        except ValueError as error:
            prepared.append(str(error))
    return prepared


def _pixels(content: bytes, limit: int) -> int | str:
    """Return the number of pixels of a picture from its header, or a sentence with the reason if it is refused."""
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as header:
            width, height = header.size
    except Exception:  # noqa: BLE001  Pillow's decoders raise nearly anything on a damaged file
        return f"the picture is damaged or of an unknown format, expected one of {', '.join(_FORMATS)}"
    if width * height > limit:
        return f"the picture has {width * height:,} pixels, expected at most {limit:,}: make it smaller"
    if max(width, height) > _MAX_SIDE:
        return f"the picture has {width:,}×{height:,} pixels, expected at most {_MAX_SIDE:,} each way: make it smaller"
    return width * height


def _from_json(body: bytes) -> list[Picture]:
    expected = 'expected {"images": ["base64 of a picture", …]}'
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedError(422, f"the body is no JSON, {expected}") from None
    images = document.get("images") if isinstance(document, dict) else None
    if not isinstance(images, list) or not all(isinstance(text, str) for text in images):
        raise RefusedError(422, f"the JSON document has no list of strings under images, {expected}")
    return [Picture(f"images[{k}]", _from_base64(text, k)) for k, text in enumerate(images)]


def _from_base64(text: str, place: int) -> bytes:
    # As a canvas gives it: data:image/png;base64,…
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise RefusedError(422, f"images[{place}] is no base64: encode the picture's bytes with it") from None


def _from_multipart(body: bytes, boundary: bytes, settings: Settings) -> list[Picture]:
    """Return all parts of a form that are files, or that are named image or images."""
    pictures: list[Picture] = []
    headers: dict[bytes, bytes] = {}
    field, value, content = bytearray(), bytearray(), bytearray()

    def end_header() -> None:
        headers[bytes(field).lower()] = bytes(value)
        field.clear()
        value.clear()

    def end_part() -> None:
        _, options = parse_options_header(headers.get(b"content-disposition", b""))
        name = options.get(b"filename", options.get(b"name", b"")).decode(errors="replace")
        if len(pictures) == settings.max_images:
            raise _too_many(f"more than {settings.max_images}", settings)
        if b"filename" in options or name in ("image", "images"):
            pictures.append(Picture(name[:_MAX_NAME], bytes(content)))
        headers.clear()
        content.clear()

    callbacks: Any = {
        "on_header_field": lambda data, start, end: field.extend(data[start:end]),
        "on_header_value": lambda data, start, end: value.extend(data[start:end]),
        "on_header_end": end_header,
        "on_part_data": lambda data, start, end: content.extend(data[start:end]),
        "on_part_end": end_part,
    }
    try:
        parser = MultipartParser(boundary, callbacks)
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError):
        raise RefusedError(422, "the multipart body is damaged, or its boundary is missing") from None
    return pictures


def _too_many(count: str, settings: Settings) -> RefusedError:
    return RefusedError(413, f"the request has {count} pictures, expected at most {settings.max_images}: send several")
