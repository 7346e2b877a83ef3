"""Targets of the benchmark, beside the measurements of the same run."""

from collections.abc import Iterable, Iterator

from fastcaps.benchmark.engines import (
    COMPRESSED,
    EFFICIENT,
    FOLDED_AUTO,
    ONNX,
    ONNX_COMPRESSED,
    ONNX_COMPRESSED_INT8,
    ONNX_EFFICIENT,
    ONNX_INT8,
    OPENVINO_COMPRESSED,
    OPENVINO_COMPRESSED_INT8,
    OPENVINO_EFFICIENT,
    PLAIN,
)
from fastcaps.benchmark.results import Aim, EngineTime, RoutingTime

_OWN = (COMPRESSED, ONNX_COMPRESSED, ONNX_COMPRESSED_INT8, OPENVINO_COMPRESSED, OPENVINO_COMPRESSED_INT8)
_OTHERS = (ONNX_EFFICIENT, EFFICIENT, OPENVINO_EFFICIENT)
# Pairs of a compressed network and Efficient-CapsNet in the same engine, both in float32.
_ALIKE = ((ONNX_COMPRESSED, ONNX_EFFICIENT), (COMPRESSED, EFFICIENT), (OPENVINO_COMPRESSED, OPENVINO_EFFICIENT))
# By batch size: target speedup of the best engine of the compressed network over plain dynamic routing.
_THAN_PLAIN = {1: 15, 8: 15, 32: 25, 128: 30}
_THAN_EFFICIENT = 1.5
_LARGEST_MB = 1.5


def aims_of(rows: Iterable[EngineTime], growth: Iterable[RoutingTime]) -> tuple[Aim, ...]:
    """Return all aims about engines and sizes that were measured."""
    by_engine = {(row.engine, row.batch): row for row in rows}
    layer = {row.size: row.times_faster for row in growth if (row.axis, row.routing) == ("batch", "folded")}
    aims = [_ratio("routing layer, folded, batch 128", 60, layer[128])] if 128 in layer else []
    for engine, batch, aim in (
        (FOLDED_AUTO, 128, 4.5),
        (FOLDED_AUTO, 32, 4.5),
        (FOLDED_AUTO, 1, 2),
        (ONNX, 1, 2),
        (ONNX_INT8, 1, 4),
    ):
        if (engine, batch) in by_engine:
            aims.append(_ratio(f"{engine}, batch {batch}, than plain", aim, by_engine[engine, batch].times_faster))
    return (*aims, *_compressed(by_engine))


def _compressed(rows: dict[tuple[str, int], EngineTime]) -> Iterator[Aim]:
    """Yield targets of the compressed network: speedups over other networks, and the size of its int8 file."""
    for batch, aim in _THAN_PLAIN.items():
        ms = {name: row.ms_per_image for (name, size), row in rows.items() if size == batch}
        own = [name for name in _OWN if name in ms]
        if not own or PLAIN not in ms:
            continue
        best = min(own, key=ms.__getitem__)
        yield _ratio(f"{best}, batch {batch}, than plain", aim, ms[PLAIN] / ms[best])
        for other in (name for name in _OTHERS if name in ms):
            yield _ratio(f"{best}, batch {batch}, than {other}", _THAN_EFFICIENT, ms[other] / ms[best])
        for one, other in _ALIKE:
            if one in ms and other in ms:
                yield _ratio(f"{one}, batch {batch}, than {other}", 1, ms[other] / ms[one])
    sizes = {row.size_mb for (name, _), row in rows.items() if name == ONNX_COMPRESSED_INT8}
    for size in sizes:
        yield Aim(what="file, compressed, int8", aim=_LARGEST_MB, measured=size, met=size <= _LARGEST_MB, unit=" MB")


def _ratio(what: str, aim: float, measured: float) -> Aim:
    return Aim(what=what, aim=aim, measured=measured, met=measured >= aim)
