"""Hostile requests: mutated pictures, bodies, headers and lines, bombs, slow senders."""

import asyncio
import base64
import io
import json
import random
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from PIL import Image

from benchmarks.http_load import read_response

# Seconds after which the sender ends a request that may be incomplete, and after which a server counts as hanging.
_PATIENCE, _HANGS = 1.0, 60.0
_BOUNDARY = b"limit"


@dataclass(frozen=True)
class Hostile:
    """One request: its bytes, and whether it is sent in pieces, slowly."""

    content: bytes
    slow: bool = False


def hostile_requests(pictures: Sequence[bytes], path: str, count: int, seed: int) -> list[Hostile]:
    """Return ``count`` requests, the same for the same seed.

    Args:
        pictures: valid PNG files to start from.
        path: path that accepts pictures.
        count: number of requests.
        seed: seed of the random choices.
    """
    generator = random.Random(seed)
    bombs = _bombs()
    return [_request(generator, generator.choice(pictures), bombs, path) for _ in range(count)]


async def attack(address: str, requests: Sequence[Hostile], at_once: int = 32) -> Counter[str]:
    """Return how often each status came back, ``"closed"`` for none, ``"hangs"`` for a server that hangs."""
    host, port = urlsplit(address).hostname, urlsplit(address).port
    outcomes: Counter[str] = Counter()
    places = asyncio.Semaphore(at_once)

    async def one(request: Hostile) -> None:
        async with places:
            reader, writer = await asyncio.open_connection(host, port)
            try:
                outcomes[await _outcome(reader, writer, request)] += 1
            finally:
                writer.close()

    await asyncio.gather(*(one(request) for request in requests))
    return outcomes


async def _outcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Hostile) -> str:
    try:
        pieces = max(1, len(request.content) // 4) if request.slow else len(request.content) or 1
        for start in range(0, len(request.content), pieces):
            writer.write(request.content[start : start + pieces])
            if request.slow:
                await asyncio.sleep(0.05)
        response = asyncio.ensure_future(read_response(reader))
        done, _ = await asyncio.wait([response], timeout=_PATIENCE)
        if not done:
            writer.write_eof()
            done, _ = await asyncio.wait([response], timeout=_HANGS)
        if not done:
            response.cancel()
            return "hangs"
        return str(response.result()[0])
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        return "closed"


def _request(generator: random.Random, picture: bytes, bombs: Sequence[bytes], path: str) -> Hostile:
    kind = generator.randrange(8)
    if kind == 0:
        picture = generator.choice(bombs)
    elif kind <= 4:
        picture = _mutated(generator, picture)
    body, content_type = _body(generator, picture)
    if generator.random() < 0.3:
        body = _mutated(generator, body)
    if generator.random() < 0.2:
        path += generator.choice(
            ["?routing=both", "?invert=%00", "?routing=" + "x" * 3000, "/../..", "%2e%2e", "?a=1&a=2"]
        )
    method = generator.choice(["POST"] * 12 + ["GET", "PUT", "TRACE", "HEAD", "BREW"])
    length = generator.choice([len(body)] * 9 + [len(body) + 5, len(body) // 2, -1, 10**12, 10**30])
    headers = [b"Content-Type: " + content_type, b"Content-Length: %d" % length]
    if generator.random() < 0.15:
        headers[1] = b"Transfer-Encoding: chunked"
        sizes = generator.choice([b"%x" % len(body), b"%x" % (len(body) + 3), b"zz", b"-1", b"f" * 20])
        body = sizes + b"\r\n" + body + b"\r\n0\r\n\r\n"
    headers += generator.sample(_ODD_HEADERS, generator.choice([0, 0, 0, 1, 2]))
    head = f"{method} {path} HTTP/1.1".encode() + b"\r\nHost: localhost\r\n" + b"\r\n".join(headers) + b"\r\n\r\n"
    content = head + body
    if generator.random() < 0.15:
        content = _mutated(generator, content)
    return Hostile(content, slow=generator.random() < 0.05)


_ODD_HEADERS = [
    b"Expect: 100-continue",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13",
    b"Content-Encoding: gzip",
    b"Content-Length: 3",
    b"X-Long: " + b"x" * 70_000,
    b"X-Bytes: \xff\xfe\x80",
    b"Authorization: Bearer \xe9",
    b"Range: bytes=0-99999999999999999999",
    b"Cookie: " + b"a=b;" * 500,
    b"Host: elsewhere",
]


def _body(generator: random.Random, picture: bytes) -> tuple[bytes, bytes]:
    kind, many = generator.randrange(4), 100 if len(picture) < 2000 else 3
    if kind == 0:
        return picture, generator.choice([b"image/png", b"", b"text/html; charset=\xff", b"multipart/form-data"])
    if kind == 1:
        text = base64.b64encode(picture).decode()
        document = generator.choice(
            [
                {"images": [text]},
                {"images": [text[:-3]]},
                {"images": text},
                {"images": [text] * many},
                {"images": [None, 1, {}]},
                [[[]]],
                {"images": ["data:,"]},
            ]
        )
        encoded = json.dumps(document).encode() if generator.random() < 0.9 else b"[" * 50_000
        return encoded, b"application/json"
    name = generator.choice([b"a.png", b"<script>alert(1)</script>", b"../../etc/passwd", b"\x00\xff", b"n" * 5000])
    part = b'--%s\r\nContent-Disposition: form-data; name="images"; filename="%s"\r\n\r\n%s\r\n' % (
        _BOUNDARY,
        name,
        picture,
    )
    body = part * generator.choice([1, 1, 1, 2, many]) + b"--%s--\r\n" % _BOUNDARY
    boundary = generator.choice([_BOUNDARY] * 6 + [b"", b"x" * 300, b'"', b"limit; boundary=other"])
    return body, b"multipart/form-data; boundary=" + boundary


def _mutated(generator: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    changes: list[Callable[[], None]] = [
        lambda: changed.__setitem__(place, generator.randrange(256)),
        lambda: changed.__delitem__(slice(place, place + generator.randrange(1, 40))),
        lambda: changed.__setitem__(slice(place, place), generator.randbytes(generator.randrange(1, 40))),
        lambda: changed.__setitem__(slice(place, place), changed[place : place + 200]),
        lambda: changed.__delitem__(slice(place, None)),
    ]
    for _ in range(generator.choice([1, 1, 2, 8])):
        place = generator.randrange(len(changed) + 1) if changed else 0
        if place < len(changed):
            generator.choice(changes)()
    return bytes(changed)


def _bombs() -> list[bytes]:
    """Return small files with many pixels, or with much text."""
    bombs = []
    for format_, size in (("PNG", (4000, 4000)), ("GIF", (5000, 5000)), ("WEBP", (6000, 6000)), ("JPEG", (3000, 3000))):
        file = io.BytesIO()
        Image.new("L", size).save(file, format_)
        bombs.append(file.getvalue())
    for width, height in ((2**31 - 1, 2**31 - 1), (100_000, 100_000), (1, 20_000_000)):
        header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
        bombs.append(_png([(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 10**6)), (b"IEND", b"")]))
    header = struct.pack(">IIBBBBB", 28, 28, 8, 0, 0, 0, 0)
    text = b"comment\0\0" + zlib.compress(b"x" * 20 * 10**6)
    return [
        *bombs,
        _png([(b"IHDR", header), (b"zTXt", text), (b"IDAT", zlib.compress(b"\0" * 29 * 28)), (b"IEND", b"")]),
    ]


def _png(chunks: Sequence[tuple[bytes, bytes]]) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, data) for name, data in chunks)
