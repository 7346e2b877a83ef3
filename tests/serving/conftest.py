"""A server with the bundled digits network, test images of MNIST, and a client of a few lines."""

import http.client
import io
import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from fastcaps.data.files import EMBEDDED
from fastcaps.data.idx import decode
from fastcaps.serving import ServedModel, Settings, background, open_model

PREDICT = "/v1/models/mnist/predict"


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


def request(address: str, method: str, path: str, body: bytes = b"", **headers: str) -> Response:
    """Send one request; ``content_type`` is the header Content-Type."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        response = connection.getresponse()
        return Response(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="session")
def digits() -> list[bytes]:
    """The first test images of MNIST as PNG files: 7, 2, 1, 0, 4, 1, 4, 9, …"""
    path = EMBEDDED / "mnist" / "t10k-images-idx3-ubyte.gz"
    return [png(image) for image in decode(path.read_bytes(), path.name, 3)[:40]]


@pytest.fixture(scope="session")
def mnist() -> ServedModel:
    """The bundled int8 file alone, as where PyTorch is not installed."""
    return open_model("mnist", threads=1, pytorch=False)


@pytest.fixture(scope="session")
def serial(mnist: ServedModel, digits: list[bytes]) -> list[list[float]]:
    """The lengths of each digit, computed one by one without a server."""
    images = [np.asarray(Image.open(io.BytesIO(content)))[None, None] for content in digits]
    return [mnist.lengths("fast")(image)[0].tolist() for image in images]


@pytest.fixture(scope="session")
def address(mnist: ServedModel) -> Iterator[str]:
    with background({"mnist": mnist}, Settings(max_pixels=1_000_000, max_body=2**20, max_images=8)) as address:
        yield address
