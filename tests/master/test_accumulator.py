"""Accumulation against section 5 in loops; sums that may come in any pieces and any order."""

import re
import weakref
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import reference

from fastcaps import CapsNet, CapsNetConfig, MasterCoefficients, accumulate, bundled, fold
from fastcaps import functional as F
from fastcaps.functional.normalizations import REGISTRY as NORMALIZATIONS
from fastcaps.master import FilterReport, MasterAccumulator, Selection, uniform_coefficients
from fastcaps.master.accumulator import checked_iteration, combined
from fastcaps.nn import DynamicRouting, Normalization
from fastcaps.nn.pretrained import weights_hash
from fastcaps.workflows.compression import as_capsnet


@st.composite
def coefficients_and_labels(draw):
    j, i = draw(st.integers(2, 5)), draw(st.integers(1, 6))
    labels = list(range(j)) + draw(st.lists(st.integers(0, j - 1), max_size=12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    coefficients = torch.rand(len(labels), i, j, generator=generator, dtype=torch.float64)
    return coefficients, torch.tensor(labels)


@given(
    coefficients_and_labels(),
    st.sampled_from(["max_min", "softmax"]),
    st.sampled_from([(0.0, 1.0), (0.2, 0.9)]),
    st.sampled_from(["per_class", "columns", "pooled"]),
)
def test_it_is_section_5_and_its_variants(drawn, normalization, bounds, method):
    coefficients, labels = drawn
    _, i, j = coefficients.shape
    sums = MasterAccumulator(i, j, F.get_normalization(normalization, lower=bounds[0], upper=bounds[1])).update(
        coefficients, labels
    )
    master = sums.compute(method=method)
    assert master.method == method
    in_loops = {
        "per_class": reference.master_coefficients,
        "columns": reference.columns_master,
        "pooled": reference.pooled_master,
    }[method]
    expected = in_loops(list(coefficients.numpy()), labels.tolist(), normalization, *bounds)
    np.testing.assert_allclose(master.values, expected, rtol=1e-9, atol=1e-12)
    assert master.counts.tolist() == torch.bincount(labels, minlength=j).tolist()


@given(coefficients_and_labels(), st.randoms(use_true_random=False))
def test_pieces_in_any_order_give_the_same(drawn, random):
    coefficients, labels = drawn
    n, i, j = coefficients.shape
    whole = MasterAccumulator(i, j).update(coefficients, labels).compute()
    order = list(range(n))
    random.shuffle(order)
    cut = random.randrange(n + 1)
    parts = []
    for part in (order[:cut], order[cut:]):
        sums = MasterAccumulator(i, j)
        for k in part:
            sums.update(coefficients[k : k + 1], labels[k : k + 1])
        parts.append(sums)
    merged = parts[0].merge(parts[1])
    assert merged is parts[0]
    torch.testing.assert_close(merged.compute().values, whole.values, rtol=0, atol=1e-12)
    assert (merged.counts == whole.counts).all()


def test_sums_come_back_from_files_and_are_merged(tmp_path):
    coefficients, labels = torch.rand(9, 4, 3), torch.arange(9) % 3
    whole = MasterAccumulator(4, 3).update(coefficients, labels).compute()
    for name, part in (("a", slice(0, 4)), ("b", slice(4, 9))):
        sums = MasterAccumulator(4, 3).update(coefficients[part], labels[part])
        sums.iteration, sums.model_hash = 3, "f" * 64
        sums.compute().save(tmp_path / name)
    first, second = (MasterAccumulator.from_coefficients(MasterCoefficients.load(tmp_path / name)) for name in "ab")
    merged = first.merge(second).compute({"note": 1})
    torch.testing.assert_close(merged.values, whole.values, rtol=0, atol=1e-12)
    assert (merged.counts.tolist(), merged.iteration, merged.provenance) == ([3, 3, 3], 3, {"note": 1})
    second.iteration = 2
    with pytest.raises(
        ValueError, match="can't merge sums of 4×3 .*, iteration 2, weights f{12} into sums of 4×3 .*, iteration 3, we"
    ):
        first.merge(second)


def test_a_pass_over_images_takes_the_last_iterations_coefficients(model):
    images, labels = torch.rand(9, 1, 10, 10), torch.arange(9) % 3
    master = accumulate(model, [(images[:4], labels[:4]), (images[4:], labels[4:])])
    coefficients = model(images, with_coefficients=True).coefficients
    expected = reference.master_coefficients(list(coefficients.double().numpy()), labels.tolist())
    np.testing.assert_allclose(master.values, expected, atol=1e-5)
    assert (master.iteration, master.normalization) == (3, F.MaxMin())
    assert master.model_hash == weights_hash(model)


def test_an_earlier_iteration_may_be_taken_and_the_first_is_uniform(model):
    images, labels = torch.rand(9, 1, 10, 10), torch.arange(9) % 3
    assert (accumulate(model, [(images, labels)], iteration=1).values == 1).all()
    votes = F.prediction_vectors(model.lower_capsules(images), model.routing.weight)
    second = F.routing_trace(votes)[:, 1]
    expected = MasterAccumulator(model.config.lower_capsules, 3).update(second, labels).compute()
    master = accumulate(model, [(images, labels)], iteration=2)
    torch.testing.assert_close(master.values, expected.values, atol=1e-5, rtol=0)


def test_after_takes_the_update_that_follows_the_last(model):
    images, labels = torch.rand(9, 1, 10, 10), torch.arange(9) % 3
    votes = F.prediction_vectors(model.lower_capsules(images), model.routing.weight).detach().double().numpy()
    fourth = [reference.routing_procedure(vote, 4)[1][3] for vote in votes]
    master = accumulate(model, [(images, labels)], iteration="final")
    assert master.iteration == 4
    np.testing.assert_allclose(master.values, reference.master_coefficients(fourth, labels.tolist()), atol=1e-4)


def test_only_the_images_to_keep_are_accumulated(model):
    images, labels = torch.rand(12, 1, 10, 10), torch.arange(12) % 3
    keep = np.array([1, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1], bool)
    report = (FilterReport("some", {}, "", (4, 4, 4), (3, 2, 1)),)
    done: list[int] = []
    batches = list(zip(images.split(3), labels.split(3), strict=True))
    master = accumulate(model, batches, selection=Selection(keep, report), method="pooled", observe=done.append)
    expected = accumulate(model, [(images[keep], labels[keep])], method="pooled")
    torch.testing.assert_close(master.values, expected.values, rtol=0, atol=1e-6)
    assert (master.counts.tolist(), master.filters, done) == ([3, 2, 1], report, [3, 3, 3, 3])


def test_sums_of_different_filters_are_not_merged():
    coefficients, labels = torch.rand(6, 4, 3), torch.arange(6) % 3
    report = FilterReport("correct", {"confidence": 0.5}, "", (3, 3, 4), (2, 2, 2))
    sums, others = (MasterAccumulator(4, 3).update(coefficients, labels) for _ in range(2))
    sums.filters, others.filters = (report,), (replace(report, seen=(2, 2, 2)),)
    merged = MasterAccumulator.from_coefficients(sums.compute()).merge(others).compute()
    assert merged.filters == (replace(report, seen=(5, 5, 6), kept=(4, 4, 4)),)
    assert sums.filters == (report,)
    with pytest.raises(ValueError, match=r"into sums of 4×3 capsules .*, filter correct \(confidence=0.5\)$"):
        sums.merge(MasterAccumulator(4, 3))


@pytest.mark.parametrize(("seen", "kept"), [((3, 3), (2,)), ((3, 3), (4, 3)), ((3, 3), (-1, 3))])
def test_reports_whose_counts_contradict_each_other(seen, kept):
    with pytest.raises(ValueError, match=re.escape(f"filter own: seen is {seen}, kept is {kept}, expected for each")):
        FilterReport("own", {}, "", seen, kept)
    with pytest.raises(ValueError, match="the FilterReport is damaged: filter own: seen is"):
        FilterReport.from_dict({"name": "own", "options": {}, "reason": "", "seen": seen, "kept": kept})


def test_files_from_before_filters_are_read():
    master = MasterCoefficients.load(bundled.resolve("mnist") / "master.safetensors")
    assert (master.method, master.filters, master.iteration) == ("per_class", (), 3)
    again = MasterAccumulator.from_coefficients(master).compute(master.provenance)
    torch.testing.assert_close(again.values, master.values, rtol=0, atol=1e-12)


def test_bounds_and_normalization_are_the_networks(model):
    config = CapsNetConfig.from_dict({**model.config.to_dict(), "lower": 0.25, "upper": 0.75})
    images, labels = torch.rand(9, 1, 10, 10), torch.arange(9) % 3
    master = accumulate(CapsNet(config), [(images, labels)])
    assert master.values.min() >= 0.25
    assert master.values.max() <= 0.75
    config = CapsNetConfig.from_dict({**model.config.to_dict(), "normalization": "softmax"})
    assert accumulate(CapsNet(config), [(images, labels)]).values.max() < 0.5


def test_a_file_holds_everything(model, tmp_path):
    master = accumulate(model, [(torch.rand(9, 1, 10, 10), torch.arange(9) % 3)])
    path = tmp_path / "master.safetensors"
    master.save(path)
    again = MasterCoefficients.load(path)
    assert again.summary() == master.summary()
    for name in ("values", "containers", "counts"):
        assert (getattr(again, name) == getattr(master, name)).all()


def test_files_that_are_not_ours_are_refused(tmp_path):
    import safetensors.torch

    with pytest.raises(FileNotFoundError, match=r"none.st does not exist: expected a file of master coefficients"):
        MasterCoefficients.load(tmp_path / "none.st")
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"junk is damaged or not a safetensors file: "):
        MasterCoefficients.load(tmp_path / "junk")
    safetensors.torch.save_file({"x": torch.zeros(2)}, tmp_path / "foreign")
    with pytest.raises(ValueError, match=r"foreign holds no master coefficients: it was written by something else"):
        MasterCoefficients.load(tmp_path / "foreign")
    tensors = {name: torch.zeros(2) for name in ("values", "containers", "counts")}
    metadata = {"kind": "fastcaps.MasterCoefficients", "format": "7"}
    safetensors.torch.save_file(tensors, tmp_path / "newer", metadata=metadata)
    with pytest.raises(ValueError, match=r"newer has format 7, this version of fastcaps reads 1"):
        MasterCoefficients.load(tmp_path / "newer")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"summary": None}, "the summary in .*master is not JSON"),
        ({"summary": "{"}, "the summary in .*master is not JSON"),
        ({"summary": "[]"}, "the summary in .*master is damaged: expected object, got array"),
        ({"summary": "{}"}, "the summary in .*master is damaged: object missing required field normalization"),
        (
            {"summary": '{"lower": 0, "upper": 1, "normalization": "max_min", "filters": [{"name": "correct"}]}'},
            r"the summary in .*master is damaged: filters\[0\]: object missing required field options",
        ),
        (
            {"summary": '{"lower": 0, "upper": 1, "normalization": "max_min", "iteration": -5}'},
            "the summary in .*master is damaged: iteration is -5, expected at least 1, or None",
        ),
        (
            {"summary": '{"lower": 0, "upper": 1, "normalization": "max_min", "method": ["per_class"]}'},
            "the summary in .*master is damaged: method: expected .*, got array",
        ),
        (
            {"summary": '{"lower": 2, "upper": 1, "normalization": "max_min"}'},
            "master: .*bounds.*2",
        ),
        ({"values": torch.zeros(2, 2)}, r"its parts don't fit together \(values \(2, 2\), containers \(3, 4, 3\)"),
        ({"values": torch.full((4, 3), torch.inf)}, "master is damaged: it holds numbers that are not finite"),
    ],
)
def test_damaged_files_are_refused(tmp_path, change, message):
    import safetensors.torch

    master = MasterAccumulator(4, 3).update(torch.rand(3, 4, 3), torch.arange(3)).compute()
    master.save(tmp_path / "master")
    with safetensors.safe_open(tmp_path / "master", framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in ("values", "containers", "counts")}
    tensors = {name: change.get(name, tensor) for name, tensor in tensors.items()}
    metadata = {name: text for name, text in (metadata | change).items() if isinstance(text, str)}
    safetensors.torch.save_file(tensors, tmp_path / "master", metadata=metadata)
    with pytest.raises(ValueError, match=message):
        MasterCoefficients.load(tmp_path / "master")


def test_errors(model):
    sums = MasterAccumulator(4, 3)
    with pytest.raises(ValueError, match=r"coefficients have shape \(2, 3, 4\), expected \(batch, 4, 3\)"):
        sums.update(torch.zeros(2, 3, 4), torch.zeros(2).long())
    with pytest.raises(
        ValueError, match=r"labels have shape \(3,\), expected one class number for each of the 2 images"
    ):
        sums.update(torch.zeros(2, 4, 3), torch.zeros(3).long())
    with pytest.raises(ValueError, match="label 3 is outside the classes 0 … 2"):
        sums.update(torch.zeros(2, 4, 3), torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="label -1 is outside the classes 0 … 2"):
        sums.update(torch.zeros(2, 4, 3), torch.tensor([-1, 0]))
    bad = torch.zeros(3, 4, 3)
    bad[1, 2, 0] = torch.nan
    with pytest.raises(ValueError, match="coefficients of image 1 of this batch are not finite"):
        sums.update(bad, torch.zeros(3).long())
    assert sums.containers.sum() == 0
    assert sums.counts.sum() == 0
    sums.update(torch.zeros(1, 4, 3), torch.tensor([1]))
    with pytest.raises(ValueError, match="no image of class 0, 2 was accumulated, of 3 classes"):
        sums.compute()
    with pytest.raises(
        ValueError,
        match="can't merge sums of 4×3 capsules with softmax.. into sums of 4×3 capsules with max_min.lower=0",
    ):
        sums.merge(MasterAccumulator(4, 3, "softmax"))
    with pytest.raises(ValueError, match="coefficients of 0×3 capsules can't be accumulated: expected at least 1"):
        MasterAccumulator(0, 3)
    with pytest.raises(ValueError, match="normalization is 'x', expected one of max_min, softmax"):
        MasterAccumulator(4, 3, "x")
    with pytest.raises(ValueError, match="method is 'rows', expected one of per_class, columns, pooled"):
        sums.compute(method="rows")  # type: ignore[arg-type]
    for iteration in (0, 4):
        with pytest.raises(ValueError, match=f"iteration is {iteration}, expected 1 to 3, or 'final'"):
            accumulate(model, [], iteration=iteration)
    batch = torch.rand(3, 1, 10, 10), torch.arange(3)
    with pytest.raises(ValueError, match="the selection is for 4 images, but more came: it must be of the same images"):
        accumulate(model, [batch, batch], selection=Selection(np.ones(4, bool), []))
    with pytest.raises(ValueError, match="the selection is for 7 images, but 6 came: it must be of the same images"):
        accumulate(model, [batch, batch], selection=Selection(np.ones(7, bool), []))


@pytest.mark.parametrize("normalization", ["max_min", "softmax"])
@pytest.mark.parametrize("method", ["per_class", "columns", "pooled"])
def test_parts_by_class_give_the_same_matrix(normalization, method, monkeypatch, tmp_path):
    monkeypatch.setattr("fastcaps.master.accumulator.NORMALIZE_ELEMENTS", 3 * 5)  # three rows at a time
    coefficients, labels = torch.rand(30, 4, 5, dtype=torch.float64), torch.arange(30) % 5
    whole = MasterAccumulator(4, 5, normalization).update(coefficients, labels).compute(method=method)
    references = []

    def parts():
        for only in (range(2), range(2, 2), range(2, 5)):
            mine = torch.tensor([label in only for label in labels.tolist()])
            part = MasterAccumulator(4, 5, normalization, only=only).update(coefficients[mine], labels[mine])
            references.append(weakref.ref(part))
            assert sum(one() is not None for one in references) == 1  # the one before is gone
            yield part
            del part

    master = combined(parts(), {"from": "parts"}, method)
    torch.testing.assert_close(master.values, whole.values, rtol=0, atol=1e-12)
    assert torch.equal(master.counts, whole.counts)
    assert master.summary() == replace(whole.summary(), provenance={"from": "parts"})
    assert master.containers is None
    master.save(tmp_path / "master")
    again = MasterCoefficients.load(tmp_path / "master")
    assert again.containers is None
    assert torch.equal(again.values, master.values)
    message = "the sums of these coefficients of 5 classes were not kept, since they were accumulated in parts: accumul"
    with pytest.raises(ValueError, match=message):
        MasterAccumulator.from_coefficients(again)


def test_errors_of_parts():
    part = MasterAccumulator(4, 5, only=range(1, 3))
    with pytest.raises(ValueError, match="label 3 is outside the classes 1 … 2 of this part"):
        part.update(torch.zeros(2, 4, 5), torch.tensor([1, 3]))
    for only in (range(3, 6), range(0, 4, 2), range(-1, 2), range(3, 2)):
        with pytest.raises(ValueError, match=re.escape(f"only is {only}, expected a range of the 5 classes")):
            MasterAccumulator(4, 5, only=only)
    with pytest.raises(ValueError, match="there are no parts to combine: expected at least one"):
        combined([])
    message = "can't merge sums of 4×5 capsules with max_min.lower=0.0, upper=1.0. into .*, classes 1 … 2"
    with pytest.raises(ValueError, match=message):
        part.merge(MasterAccumulator(4, 5))
    part.update(torch.zeros(1, 4, 5), torch.tensor([1]))
    with pytest.raises(ValueError, match="no image of class 0, 2, 3, 4 was accumulated, of 5 classes"):
        combined([part])


def test_a_large_batch_is_routed_in_pieces(model, monkeypatch):
    images, labels = torch.rand(7, 1, 10, 10), torch.arange(7) % 3
    model = model.double()
    expected = accumulate(model, [(images, labels)])
    monkeypatch.setattr("fastcaps.master.accumulator.ROUTE_ELEMENTS", 2 * model.config.lower_capsules * 3)
    master = accumulate(model, [(images, labels)])
    torch.testing.assert_close(master.values, expected.values, rtol=0, atol=1e-12)
    assert torch.equal(master.counts, expected.counts)


@pytest.mark.parametrize(
    ("normalization", "bounds"), [("max_min", {}), ("max_min", {"upper": 2.0}), ("softmax", {}), ("leaky_softmax", {})]
)
def test_uniform_coefficients_are_those_that_folding_takes(normalization, bounds):
    config = CapsNetConfig.for_images(
        10, 10, 1, classes=3, stem_channels=4, stem_kernel=3, capsule_types=2, primary_kernel=3, decoder=(4,),
        normalization=normalization, **bounds,
    )  # fmt: skip
    model = CapsNet(config).eval()
    images = torch.rand(5, 1, 10, 10)
    master = uniform_coefficients(config)
    torch.testing.assert_close(fold(model, master)(images), fold(model, "uniform")(images), rtol=0, atol=0)
    assert master.containers is None
    folded = fold(model, "uniform")
    torch.testing.assert_close(fold(as_capsnet(folded), master)(images).lengths, folded(images).lengths)


def test_an_iteration_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="iteration is 'last', expected 1 to 3, or 'final'"):
        checked_iteration(DynamicRouting(), cast(Any, "last"))


def test_a_normalization_with_bounds_of_its_own_is_stored(tmp_path):
    @dataclass(frozen=True)
    class Clipped(Normalization):
        name: ClassVar[str] = "clipped_for_tests"
        lower: float = 0.0
        upper: float = 1.0

        def start(self, classes: int) -> float:
            return 1.0

        def __call__(self, logits: torch.Tensor) -> torch.Tensor:
            return logits.clamp(self.lower, self.upper)

    try:
        master = MasterCoefficients(
            values=torch.rand(4, 3).double(),
            containers=None,
            counts=torch.zeros(3, dtype=torch.int64),
            normalization=Clipped(0.3, 0.7),
        )
        master.save(tmp_path / "m.safetensors")
        assert MasterCoefficients.load(tmp_path / "m.safetensors").normalization == Clipped(0.3, 0.7)
    finally:
        NORMALIZATIONS.forget("clipped_for_tests")
