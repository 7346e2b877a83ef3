"""The benchmark at its smallest: that every engine runs the same network, and that every number is there."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fastcaps import CapsNet, CapsNetConfig
from fastcaps.benchmark import engines, inference, measure
from fastcaps.benchmark.aims import aims_of
from fastcaps.benchmark.efficient import EfficientCapsNet
from fastcaps.benchmark.engines import ENGINES, LAYERS, Networks
from fastcaps.benchmark.plain import ConvolutionalBaseline, PlainCapsNet
from fastcaps.benchmark.results import Benchmark, Disturbance, EngineTime, RoutingTime
from fastcaps.benchmark.settings import Settings
from fastcaps.cli import app

pytestmark = pytest.mark.usefixtures("operators_read_once")
QUICK = Settings.quick()
INSTALLED = engines.installed_engines()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The numbers of a benchmark with too little memory for large routing layers, and what was printed."""
    folder = tmp_path_factory.mktemp("bench")
    arguments = ["bench", "--quick", "--no-memory", "--threads", "1", "--out", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "available_memory", lambda: 4 * 3 * (18 * 8 * 3 * 16 + 2 * 18 * 3 * 16))
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert (folder / "bench.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((folder / "bench.json").read_text()) | {"printed": result.stdout}


@pytest.mark.slow
def test_every_engine_at_every_batch(results):
    assert [(row["engine"], row["batch"]) for row in results["engines"]] == [(e, b) for b in (1, 2) for e in INSTALLED]
    for row in results["engines"]:
        assert row["images_per_second"] == pytest.approx(1e3 / row["ms_per_image"])
        assert row["quartiles"][0] <= row["ms_per_image"] <= row["quartiles"][1]
        assert row["size_mb"] > 0
        assert row["share_of_peak"] > 0
        assert row["peak_mb"] is None
        if row["shares"] is None:
            assert row["engine"].endswith(("CNN baseline", "Efficient-CapsNet")) or "OpenVINO" in row["engine"]
        else:
            assert list(row["shares"]) == list(LAYERS)
            assert sum(row["shares"].values()) == pytest.approx(1)
            assert min(row["shares"].values()) > 0
    plain = {row["batch"]: row["ms_per_image"] for row in results["engines"] if row["engine"] == engines.PLAIN}
    for row in results["engines"]:
        assert row["times_faster"] == pytest.approx(plain[row["batch"]] / row["ms_per_image"])
    assert results["machine"]["threads"] == 1
    assert {"fastcaps", "torch", "Python", "ONNX Runtime"} <= set(results["machine"]["versions"])


@pytest.mark.slow
def test_growth_and_disturbance(results):
    sizes = {axis: sorted({row["size"] for row in results["growth"] if row["axis"] == axis}) for axis in QUICK.growth}
    assert sizes == {axis: list(values) for axis, values in QUICK.growth.items()} | {
        "lower capsules": [18],
        "classes": [3],
    }
    assert results["aims"] == []  # they are about the paper's network
    plain = [row["ms_per_image"] for row in results["engines"] if row["engine"] == engines.PLAIN]
    assert [(row["engine"], row["batch"]) for row in results["disturbance"]] == [(engines.PLAIN, 1), (engines.PLAIN, 2)]
    assert [row["ms_per_image"] for row in results["disturbance"]] == plain
    assert all(row["alone_ms_per_image"] > 0 for row in results["disturbance"])


@pytest.mark.slow
def test_a_disturbed_measurement_is_told(results):
    result = Benchmark.from_dict(results)
    rows = [Disturbance(engine="plain dynamic", batch=8, alone_ms_per_image=2.0, ms_per_image=ms) for ms in (2.1, 3.0)]
    quiet, busy = (" ".join(dataclasses.replace(result, disturbance=(row,)).sentences()) for row in rows)
    assert "measure again" not in quiet
    assert "plain dynamic took 50% more time in turns than alone at batch 8: the machine was busy" in busy


def engine_time(name: str, batch: int, ms: float, size: float = 1.0) -> EngineTime:
    return EngineTime(
        engine=name, batch=batch, ms_per_image=ms, quartiles=(ms, ms), images_per_second=1e3 / ms, times_faster=10 / ms,
        peak_mb=None, size_mb=size, shares=None, share_of_peak=0.1,
    )  # fmt: skip


def test_aims():
    ms = dict.fromkeys(ENGINES, 1.0) | {engines.PLAIN: 10, engines.COMPRESSED: 0.8, engines.ONNX_COMPRESSED_INT8: 0.5}
    rows = [engine_time(name, 1, ms[name], 2.0) for name in ENGINES]
    aims = {aim.what: (aim.aim, aim.measured, aim.met) for aim in aims_of(rows, ())}
    assert aims == {
        "folded, batch 1, than plain": (2, 10.0, True),
        "ONNX folded, batch 1, than plain": (2, 10.0, True),
        "ONNX folded int8, batch 1, than plain": (4, 10.0, True),
        "ONNX compressed int8, batch 1, than plain": (15, 20.0, True),
        "ONNX compressed int8, batch 1, than ONNX Efficient-CapsNet": (1.5, 2.0, True),
        "ONNX compressed int8, batch 1, than Efficient-CapsNet": (1.5, 2.0, True),
        "ONNX compressed, batch 1, than ONNX Efficient-CapsNet": (1, 1.0, True),
        "compressed, batch 1, than Efficient-CapsNet": (1, 1.25, True),
        "file, compressed, int8": (1.5, 2.0, False),
    }
    growth = RoutingTime(
        axis="batch", size=128, routing="folded", ms_per_image=1, quartiles=(1, 1), times_faster=59.0, peak_mb=None
    )
    (layer,) = aims_of([], [growth])
    assert (layer.aim, layer.measured, layer.met) == (60, 59.0, False)


@pytest.mark.slow
def test_the_tables_and_what_needs_too_much_memory(results):
    printed = results["printed"]
    assert "lower capsules: 36 was not measured: it needs more than half of the free memory" in printed
    assert "lower capsules: 18 was" not in printed
    assert "Batch 2" in printed
    assert "The routing layer alone, batch 2 where" in printed
    for name in INSTALLED:
        assert f"│ {name} " in printed


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"normalization": "softmax"}, {"lower": -0.5, "upper": 2.0}])
@torch.no_grad()
def test_all_engines_are_the_same_network(changes):
    """Dynamic ones give the same lengths, folded ones too, and the two baselines the same scores."""
    config = dataclasses.replace(QUICK.config, **changes)
    images, networks = engines.some_images(config, 4), Networks(config, cnn_channels=QUICK.cnn_channels)
    answers = {}
    # Only what has the loop knows of normalizations.
    with_loop = [engines.PLAIN, engines.DYNAMIC, engines.ONNX_DYNAMIC]
    names = [name for name in INSTALLED if not changes or engines.OPENVINO_ENGINES.get(name, name) in with_loop]
    for name in names:
        out = engines.engine(name, networks, 1).run(images)
        if isinstance(out, list):
            # Lengths come first in graphs of our own, last in exported modules.
            answers[name] = out[-1] if "Efficient" in name else out[0]
        elif isinstance(out, torch.Tensor):
            answers[name] = (out.norm(dim=-1) if out.ndim == 3 else out).numpy()
        else:
            answers[name] = out.lengths.numpy()  # type: ignore[attr-defined]
    for first, others, tolerance in (
        (engines.PLAIN, [engines.DYNAMIC, engines.ONNX_DYNAMIC], 1e-5),
        (engines.FAST_VOTES, [engines.FOLDED, engines.WINOGRAD, engines.FOLDED_AUTO, engines.ONNX], 1e-5),
        (engines.FAST_VOTES, [engines.ONNX_INT8], 0.02),
        (engines.COMPRESSED, [engines.ONNX_COMPRESSED], 1e-5),
        (engines.COMPRESSED, [engines.ONNX_COMPRESSED_INT8], 0.02),
        (engines.EFFICIENT, [engines.ONNX_EFFICIENT], 1e-5),
        (engines.CNN, [engines.ONNX_CNN], 1e-5),
    ):
        for other in (*others, *(name for name, same in engines.OPENVINO_ENGINES.items() if same in others)):
            if other in names:
                np.testing.assert_allclose(answers[other], answers[first], atol=tolerance, err_msg=other)


def test_the_routing_layers_are_the_same():
    sizes = {"b": 2, "i": 6, "d": 3, "j": 4, "e": 5, "r": 2}
    plain, ours = (inference.routing(name, sizes, 1)() for name in ("plain dynamic", "dynamic"))
    torch.testing.assert_close(plain, ours.capsules)  # type: ignore[attr-defined]
    assert inference.routing("folded", sizes, 1)().shape == (2, 4, 5)  # type: ignore[attr-defined]
    torch.set_grad_enabled(True)


def test_the_baseline_has_the_parameters_that_its_authors_name():
    with torch.device("meta"):
        baseline = ConvolutionalBaseline(CapsNetConfig.mnist())
    assert round(sum(p.numel() for p in baseline.parameters()) / 1e6, 1) == 35.4


def test_efficient_capsnet_has_the_parameters_that_its_authors_name():
    network = EfficientCapsNet(CapsNetConfig.mnist())
    assert round(sum(p.numel() for p in network.parameters()) / 1e3) in (161, 162)
    assert network(torch.rand(2, 1, 28, 28)).shape == (2, 10, 16)


def test_efficient_capsnet_follows_its_paper():
    """Self-attention with all pairs of votes, in loops."""
    torch.manual_seed(0)
    routing = EfficientCapsNet(CapsNetConfig.mnist(classes=3)).double().routing
    torch.nn.init.normal_(routing.bias)
    lower = torch.randn(2, 16, 8, dtype=torch.float64)
    weight = routing.weight.detach().numpy().reshape(16, 8, 3, 16)
    votes = np.einsum("bid,idje->bije", lower.numpy(), weight)
    expected = np.zeros((2, 3, 16))
    for b in range(2):
        scores = np.array(
            [[sum(votes[b, i, j] @ votes[b, k, j] for k in range(16)) for j in range(3)] for i in range(16)]
        )
        shares = np.exp(scores / 4)
        coefficients = shares / shares.sum(1, keepdims=True) + routing.bias.detach().numpy()[:, :, 0]
        for j in range(3):
            s = (coefficients[:, j, None] * votes[b, :, j]).sum(0)
            length = np.linalg.norm(s)
            expected[b, j] = (1 - np.exp(-length)) * s / length
    np.testing.assert_allclose(routing(lower).detach().numpy(), expected, rtol=1e-5)


def test_an_unknown_engine_and_too_small_images_are_refused():
    with pytest.raises(ValueError, match="there is no engine 'abacus', expected one of plain dynamic"):
        engines.engine("abacus", QUICK.networks, 1)
    small = dataclasses.replace(QUICK.config, height=10, width=10, stem_kernel=3, primary_kernel=3)
    with pytest.raises(ValueError, match="images of 10×10 are too small for Efficient-CapsNet"):
        EfficientCapsNet(small)


def test_multiply_adds():
    config = CapsNetConfig.mnist()
    folded = 20 * 20 * 256 * 81 + 36 * 256 * 256 * 81 + 9216 * 160
    assert engines.engine(engines.FOLDED, Networks(config), 1).multiply_adds == folded
    assert engines.dynamic_multiply_adds(config) == folded + 5 * 1152 * 160


def test_plain_networks_train_the_weights_they_were_given():
    model = CapsNet(QUICK.config)
    plain = PlainCapsNet(model)
    plain(torch.rand(2, 1, 14, 14)).sum().backward()
    assert model.routing.weight.grad is not None
    assert model.stem.conv.weight.grad is not None


def test_medians_and_quartiles(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    turns: list[int] = []
    seconds = measure.measured({"a": lambda: None, "b": lambda: None}, 5, observe=turns.append)
    assert seconds["a"] == measure.Measured(1.0, 1.0, 1.0)
    assert len(turns) == 12
    assert measure.Measured.of([1.0, 2.0, 3.0, 4.0, 50.0]) == measure.Measured(3.0, 2.0, 4.0)


def test_a_slow_variant_takes_fewer_turns(monkeypatch):
    now = 0.0
    calls = {"slow": 0, "fast": 0}

    def call(name: str, seconds: float) -> None:
        nonlocal now
        now += seconds
        calls[name] += 1

    monkeypatch.setattr("time.perf_counter", lambda: now)
    variants = {"slow": lambda: call("slow", 2.0), "fast": lambda: call("fast", 0.25)}
    seconds = measure.measured(variants, 9, 0.5, budget=3.0)
    assert seconds["slow"].median == 2.0
    assert seconds["fast"].median == 0.25
    # Two calls per turn: of the turn that warms up and of three that count.
    assert calls["slow"] == 8
    assert calls["fast"] > 10


SMALL = dict.fromkeys("bidjer", 2)


def layer_or_engine(kind: str, *arguments: Any) -> Callable[[], object]:
    function: Callable[..., Callable[[], object]] = getattr(inference, kind)
    return function(*arguments)


@pytest.mark.slow
@pytest.mark.skipif(not measure.can_measure_memory(), reason="the system doesn't tell a process its peak")
def test_memory_in_a_process_of_its_own():
    sizes = {"b": 4, "i": 1152, "d": 8, "j": 10, "e": 16, "r": 3}
    # All votes of four images are 2.9 MB. A process that dies has no peak.
    votes, nothing = measure.peak_memories(inference.routing, [("plain dynamic", sizes, 1), ("nothing", {}, 1)])
    assert (votes or 0) > 2.5
    assert nothing is None
    # With something small first, what is made counts, too: 5.9 MB of weights.
    engine = ("run_twice", engines.ONNX_INT8, QUICK.networks, 1, 2)
    arguments = [("routing", "folded", sizes, 1), engine, engine]
    weights, *peaks = measure.peak_memories(layer_or_engine, arguments, small=("routing", "folded", SMALL, 1))
    assert (weights or 0) > 5
    assert len(peaks) == 2
    assert all(peak is not None and peak >= 0 for peak in peaks)
