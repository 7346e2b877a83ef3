"""The figure of a benchmark: one headline, and texts that can be read at 1200 pixels."""

from matplotlib.text import Text

from fastcaps.benchmark.engines import CNN, DYNAMIC, FOLDED_AUTO, ONNX_INT8, PLAIN
from fastcaps.benchmark.figure import figure
from fastcaps.benchmark.results import Benchmark, BenchmarkMachine, EngineTime, RoutingTime
from fastcaps.benchmark.settings import Settings


def test_one_headline_and_readable_texts():
    engines = tuple(
        EngineTime(
            engine=name, batch=batch, ms_per_image=ms, quartiles=(0.9 * ms, 1.2 * ms), images_per_second=1e3 / ms,
            times_faster=9 / ms, peak_mb=None, size_mb=1.0, shares=None, share_of_peak=0.1,
        )
        for batch in (1, 64)
        for name, ms in {PLAIN: 9, DYNAMIC: 4, FOLDED_AUTO: 2.0, ONNX_INT8: 3 / batch, CNN: 0.01}.items()
    )  # fmt: skip
    growth = tuple(
        RoutingTime(
            axis=axis, size=size, routing="plain", ms_per_image=size, quartiles=(1, 2), times_faster=1, peak_mb=None
        )
        for axis in ("classes", "batch")
        for size in (10, 1000)
    )
    drawing = figure(
        Benchmark(
            machine=BenchmarkMachine(processor="A processor", cores=1, instructions="AVX2", threads=1, versions={}),
            settings=Settings.quick(), multiply_adds_per_second=1.0,
            engines=engines, disturbance=(), growth=growth, skipped=(), aims=(),
        )
    )  # fmt: skip
    # The fastest engine of the same network, not the small network beside it.
    assert drawing.get_suptitle() == "ONNX folded int8: 192.0 times as fast as plain dynamic routing (batch 64)"
    assert drawing.get_size_inches()[0] == 12
    sizes = [float(text.get_fontsize()) for text in drawing.findobj(Text) if text.get_text()]
    assert min(sizes) >= 10  # points: 14 pixels where the figure is 1200 pixels wide
    assert drawing.axes[0].get_title(loc="left") == "A processor, 1 thread"
