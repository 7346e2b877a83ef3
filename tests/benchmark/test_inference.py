"""The benchmark at its smallest: that every engine runs the same network, and that every number is there."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fastcaps import CapsNet, CapsNetConfig
from fastcaps.benchmark import engines, inference, measure
from fastcaps.benchmark.engines import ENGINES, LAYERS
from fastcaps.benchmark.plain import ConvolutionalBaseline, PlainCapsNet
from fastcaps.cli import app

QUICK = inference.Settings.quick()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    arguments = ["bench", "--quick", "--no-memory", "--threads", "1", "--out", str(folder), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert json.loads((folder / "bench.json").read_text()) == values
    assert (folder / "bench.png").read_bytes().startswith(b"\x89PNG")
    return values


def test_every_engine_at_every_batch(found):
    assert [(row["engine"], row["batch"]) for row in found["engines"]] == [(e, b) for b in (1, 2) for e in ENGINES]
    for row in found["engines"]:
        assert row["images_per_second"] == pytest.approx(1e3 / row["ms_per_image"])
        assert row["quartiles"][0] <= row["ms_per_image"] <= row["quartiles"][1]
        assert row["size_mb"] > 0
        assert row["share_of_peak"] > 0
        assert row["peak_mb"] is None
        if row["shares"] is None:
            assert row["engine"].endswith("CNN baseline")
        else:
            assert list(row["shares"]) == list(LAYERS)
            assert sum(row["shares"].values()) == pytest.approx(1)
            assert min(row["shares"].values()) > 0
    plain = {row["batch"]: row["ms_per_image"] for row in found["engines"] if row["engine"] == engines.PLAIN}
    for row in found["engines"]:
        assert row["times_faster"] == pytest.approx(plain[row["batch"]] / row["ms_per_image"])
    assert found["machine"]["threads"] == 1
    assert {"fastcaps", "torch", "Python", "ONNX Runtime"} == set(found["machine"]["versions"])


def test_growth_and_aims(found):
    sizes = {axis: sorted({row["size"] for row in found["growth"] if row["axis"] == axis}) for axis in QUICK.growth}
    assert sizes == {axis: list(values) for axis, values in QUICK.growth.items()}
    assert found["aims"] == []  # they are about the real network
    what = [aim["what"] for aim in inference._aims(found["engines"], found["growth"])]
    assert what == [f"network, {name}, batch 1" for name in ("folded", "ONNX folded", "ONNX folded int8")]
    rows = [{"engine": engines.FOLDED_AUTO, "batch": 128, "times_faster": 5.0}]
    growth = [{"axis": "batch", "routing": "folded", "size": 128, "times_faster": 59.0}]
    assert [(aim["aim"], aim["measured"], aim["met"]) for aim in inference._aims(rows, growth)] == [
        (60, 59.0, False),
        (4.5, 5.0, True),
    ]


def test_what_needs_too_much_memory_is_skipped_and_said(monkeypatch):
    monkeypatch.setattr(inference, "memory_at_hand", lambda: 4 * 3 * (18 * 8 * 3 * 16 + 2 * 18 * 3 * 16))
    result = CliRunner().invoke(app, ["bench", "--quick", "--no-memory", "--threads", "1", "--batch", "1"])
    assert result.exit_code == 0, result.output
    assert "lower capsules: 36 was not measured: it needs more than half of the free memory" in result.stdout
    assert "lower capsules: 18 was" not in result.stdout


def test_the_tables():
    result = CliRunner().invoke(app, ["bench", "--quick", "--no-memory", "--threads", "1", "--batch", "3"])
    assert result.exit_code == 0, result.output
    assert "Batch 3" in result.stdout
    assert "The routing layer alone, batch 2 where" in result.stdout
    for name in ENGINES:
        assert f"│ {name} " in result.stdout


@pytest.mark.parametrize("changes", [{}, {"normalization": "softmax"}, {"lower": -0.5, "upper": 2.0}])
@torch.no_grad()
def test_all_engines_are_the_same_network(changes):
    """Dynamic ones give the same lengths, folded ones too, and the two baselines the same scores."""
    config = dataclasses.replace(QUICK.config, **changes)
    images = engines.some_images(config, 4)
    answers = {}
    for name in ENGINES:
        out = engines.engine(name, config, 1, QUICK.cnn_channels).run(images)
        if isinstance(out, list):
            answers[name] = out[0]
        elif isinstance(out, torch.Tensor):
            answers[name] = (out.norm(dim=-1) if out.ndim == 3 else out).numpy()
        else:
            answers[name] = out.lengths.numpy()  # type: ignore[attr-defined]
    for first, others, tolerance in (
        (engines.PLAIN, [engines.DYNAMIC, engines.ONNX_DYNAMIC], 1e-5),
        (engines.FAST_VOTES, [engines.FOLDED, engines.WINOGRAD, engines.FOLDED_AUTO, engines.ONNX], 1e-5),
        (engines.FAST_VOTES, [engines.ONNX_INT8], 0.02),
        (engines.CNN, [engines.ONNX_CNN], 1e-5),
    ):
        for other in others:
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


def test_multiply_adds():
    config = CapsNetConfig.mnist()
    folded = 20 * 20 * 256 * 81 + 36 * 256 * 256 * 81 + 9216 * 160
    assert engines.multiplications(config, "fast") == folded
    assert engines.multiplications(config, "dynamic") == folded + 5 * 1152 * 160


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
    found = measure.measured({"a": lambda: None, "b": lambda: None}, 5, observe=turns.append)
    assert found["a"] == measure.Measured(1.0, 1.0, 1.0)
    assert len(turns) == 14
    assert measure._summary([1.0, 2.0, 3.0, 4.0, 50.0]) == measure.Measured(3.0, 2.0, 4.0)


SMALL = dict.fromkeys("bidjer", 2)


@pytest.mark.slow
@pytest.mark.skipif(not measure.can_measure_memory(), reason="the system doesn't tell a process its peak")
def test_memory_in_a_process_of_its_own():
    sizes = {"b": 4, "i": 1152, "d": 8, "j": 10, "e": 16, "r": 3}
    # All votes of four images are 2.9 MB.
    assert (measure.peak_memory(inference.routing, "plain dynamic", sizes, 1) or 0) > 2.5
    # With something small first, what is made counts, too: 5.9 MB of weights.
    assert (measure.peak_memory(inference.routing, "folded", sizes, 1, small=("folded", SMALL, 1)) or 0) > 5
    for name in (engines.FOLDED_AUTO, engines.ONNX_INT8):
        arguments = (name, QUICK.config.to_dict(), 1, 2, QUICK.cnn_channels)
        peak = measure.peak_memory(engines.once, *arguments, small=arguments)
        assert peak is not None
        assert peak >= 0
    assert measure.peak_memory(inference.routing, "nothing", {}, 1) is None
