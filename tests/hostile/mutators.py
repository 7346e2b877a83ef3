"""Seeded changes of the bytes of a file: blind ones, and ones that know JSON, safetensors and gzip."""

import functools
import gzip
import json
import random
import struct
from collections.abc import Callable
from typing import Any

Mutator = Callable[[bytes, random.Random], bytes]

_TEXTS = ["", "\0", "../../etc/passwd", "$x^{", "<script>", "é" * 50, "1e999", "-0", "NaN", "‮"]
_NUMBERS = [0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 0.5, 1e308, 1e-320]


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def insert(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    filling = rng.choice([rng.randbytes(rng.choice([1, 8, 300])), b"\0" * 64, b"\xff" * 9])
    return content[:place] + filling + content[place:]


def remove(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + content[start + rng.choice([1, 4, 100]) :]


def splice(content: bytes, rng: random.Random) -> bytes:
    """Copy a part of the file over another."""
    if not content:
        return content
    size = rng.randrange(1, min(len(content), 400) + 1)
    source, target = (rng.randrange(len(content) - size + 1) for _ in range(2))
    return content[:target] + content[source : source + size] + content[target + size :]


def replace_all(content: bytes, rng: random.Random) -> bytes:
    return rng.choice([b"", b"\0", b"{}", b"[]", b"null", b"PK\x03\x04", b"\x1f\x8b", rng.randbytes(200), content * 2])


def overwrite_number(content: bytes, rng: random.Random) -> bytes:
    """Write an extreme little- or big-endian number somewhere near the start, where headers are."""
    form = rng.choice(["<Q", ">I", "<I", "<H"])
    size = struct.calcsize(form)
    place = rng.randrange(max(1, min(len(content), 600) - size))
    value = rng.choice([0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), rng.randrange(2 ** (8 * size))])
    return content[:place] + struct.pack(form, value) + content[place + size :]


BLIND: list[Mutator] = [flip_bits, truncate, insert, remove, splice, replace_all, overwrite_number]


def mutate_json(content: bytes, rng: random.Random) -> bytes:
    """Change values, types, keys and nesting of a JSON document; it stays JSON."""
    try:
        value = json.loads(content)
    except ValueError:
        return flip_bits(content, rng)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        value = _changed(value, rng)
    text = json.dumps(value)
    if rng.random() < 0.03:
        text = text.replace("null", "[" * 20_000 + "]" * 20_000, 1)
    return text.encode(errors="surrogatepass")


def _changed(value: Any, rng: random.Random) -> Any:
    """Change one place somewhere below a value."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        kind = rng.random()
        if kind < 0.12:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.18:
            return {(rng.choice(_TEXTS) if k == key else k): v for k, v in value.items()}
        return {**value, key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        kind = rng.random()
        if kind < 0.15:
            return value[:place] + value[place + 1 :]
        if kind < 0.3:
            return [*value, value[place]]
        return [*value[:place], _changed(value[place], rng), *value[place + 1 :]]
    return rng.choice(
        [None, True, False, [], {}, [value], {"x": value}, *rng.sample(_TEXTS, 2), *rng.sample(_NUMBERS, 3)]
    )


def mutate_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Change the header of a safetensors file, also the JSON texts in its metadata; lengths stay right."""
    if len(content) < 8:
        return content
    size = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + size])
    except ValueError:
        return flip_bits(content, rng)
    texts = [key for key, text in header.get("__metadata__", {}).items() if text[:1] in "{["]
    if texts and rng.random() < 0.6:
        key = rng.choice(texts)
        changed = mutate_json(header["__metadata__"][key].encode(), rng)
        header["__metadata__"][key] = changed.decode(errors="replace")
    elif rng.random() < 0.3:
        tensors = [key for key in header if key != "__metadata__"]
        if tensors:
            header[rng.choice(tensors)]["dtype"] = rng.choice(
                ["F64", "F16", "BF16", "I8", "BOOL", "F8_E4M3", "X9", "U64"]
            )
    else:
        header = _changed(header, rng)
    text = json.dumps(header).encode(errors="replace")
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def inside_gzip(mutator: Mutator) -> Mutator:
    """Return a mutator of what a gzip file holds."""

    def mutate(content: bytes, rng: random.Random) -> bytes:
        try:
            return gzip.compress(mutator(gzip.decompress(content), rng), compresslevel=1)
        except (OSError, EOFError, ValueError):
            return mutator(content, rng)

    return mutate


def bomb(content: bytes, rng: random.Random) -> bytes:
    """Return a small gzip file that unpacks to a great deal: zeros, or lines of text."""
    return _bomb(rng.choice([b"\0", b"1.0 ", b"0 1\n"]))


@functools.cache
def _bomb(unit: bytes) -> bytes:
    return gzip.compress(unit * (2**25 // len(unit)), compresslevel=1)


def mutate_toml(content: bytes, rng: random.Random) -> bytes:
    """Change values and lines of a TOML file."""
    lines = content.decode().splitlines()
    for _ in range(rng.choice([1, 1, 2, 5])):
        place = rng.randrange(len(lines))
        name = lines[place].partition("=")[0]
        values = [
            *map(json.dumps, _TEXTS),
            *map(str, _NUMBERS),
            "[]",
            "{}",
            "[1, [2]]",
            "true",
            "1979-05-27",
            "nan",
            "",
        ]
        lines[place : place + 1] = rng.choice([[], [lines[place]] * 2, [f"{name}= {rng.choice(values)}"], ["[x.y]"]])
        lines = lines or [""]
    return "\n".join(lines).encode(errors="replace")
