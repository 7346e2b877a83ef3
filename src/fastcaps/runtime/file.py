"""The exported file: ONNX with everything in it, and at its end a checksum that reveals any change.

An ONNX file is a protobuf message, and two concatenated messages are one message with the entries of both. So the last
bytes are a metadata entry with the SHA-256 of all bytes before them; any ONNX tool reads the file as usual. Weights
may not be in other files: such a file could name any path on the reader's disk. All of this is checked before ONNX
Runtime opens the file, with a small parser of protobuf.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

# Keys of the metadata: a JSON document about the network, and the checksum (the seal).
ABOUT = "fastcaps"
_SEAL = b"fastcaps.sha256"
PRODUCER = "fastcaps"

# Where tensors are in ONNX messages: for each kind of message, the fields that are messages, and of which kind.
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "sparse": {1: "tensor", 2: "tensor"},
    "training": {1: "graph", 2: "graph"},
}
_PRODUCER_NAME, _EXTERNAL_DATA = 2, 13


def sealed(content: bytes) -> bytes:
    """Return a serialized model with its seal."""
    return content + _seal(content)


def checked(content: bytes, path: Path | str) -> bytes:
    """Return the content of a file; raise ValueError unless it is complete, from `export`, and needs no other file."""
    try:
        producers = [value for field, value in fields(memoryview(content)) if field == _PRODUCER_NAME]
        is_ours = _is(producers[0] if producers else 0, PRODUCER.encode())
        elsewhere = list(_locations(memoryview(content), "model")) if is_ours else []
    except (ValueError, RecursionError):  # RecursionError: graphs that are nested too deeply
        raise ValueError(
            f"{path} is not an ONNX file, or damaged: it can't be read to its end ({len(content):,} bytes): "
            "copy or export it again"
        ) from None
    if not is_ours:
        raise ValueError(
            f"{path} was not written by fastcaps.export, so its classes and its input are not known: export it with "
            "fastcaps"
        )
    if elsewhere:
        raise ValueError(
            f"{path} has weights in another file ({elsewhere[0]}), expected all in one file: export it again"
        )
    seal = _seal(content[: -len(_seal(b""))])
    if not content.endswith(seal):
        raise ValueError(
            f"{path} is damaged, or was changed after its export: its content doesn't match its SHA-256: "
            "copy or export it again"
        )
    return content


def _seal(content: bytes) -> bytes:
    """Return field 14 of a model, an entry of its metadata: key and value."""
    value = hashlib.sha256(content).hexdigest().encode()
    entry = b"\x0a" + bytes([len(_SEAL)]) + _SEAL + b"\x12" + bytes([len(value)]) + value
    return b"\x72" + bytes([len(entry)]) + entry


def _locations(message: memoryview, kind: str) -> Iterator[str]:
    """Yield the names of other files that hold tensors of a message."""
    for field, value in fields(message):
        if kind == "tensor":
            if field == _EXTERNAL_DATA and isinstance(value, memoryview):
                entry = dict(fields(value))
                if _is(entry.get(1, 0), b"location"):
                    yield bytes(entry.get(2, b"")).decode(errors="replace")
        elif field in _INSIDE[kind] and isinstance(value, memoryview):
            yield from _locations(value, _INSIDE[kind][field])


def _is(value: memoryview | int, expected: bytes) -> bool:
    return isinstance(value, memoryview) and bytes(value) == expected


def fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield number and content of each field of a protobuf message; numbers of a fixed size as bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        # Protobuf parsers use 32 bits of the key: with more, they could see another field than this parser.
        if not 8 <= key < 2**32:
            raise ValueError(f"no protobuf: field number {key >> 3} at {place}")
        if kind == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(message, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"no protobuf: a field of kind {kind}")
        if place + size > len(message):
            raise ValueError(f"no protobuf: a field of {size} bytes at {place} of {len(message)}")
        yield key >> 3, message[place : place + size]
        place += size


def integers(value: memoryview | int) -> list[int]:
    """Return the signed numbers of a field with one value, or with several packed values."""
    numbers, place = [value] if isinstance(value, int) else [], 0
    while isinstance(value, memoryview) and place < len(value):
        number, place = _varint(value, place)
        numbers.append(number)
    return [number - 2**64 if number >= 2**63 else number for number in numbers]


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            break
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError(f"no protobuf: a number without end at {place} of {len(message)}")
