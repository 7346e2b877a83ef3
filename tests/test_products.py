"""Large matrix products by oneDNN: where, in which precision, and that the setting of the process comes back."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastcaps import _products
from fastcaps._products import is_float32, large_products, uses_onednn
from fastcaps.functional import route_capsules
from fastcaps.kernels import im2col_conv2d_relu
from fastcaps.kernels.winograd import winograd_conv2d

pytestmark = pytest.mark.skipif(_products._setting() is None, reason="this PyTorch has no such setting")

AMD = {"vendor": "AuthenticAMD", "sets": ("avx2", "avx512f"), "capability": "AVX512", "exact": True}


def precision():
    return _products._setting().fp32_precision


def set_machine(monkeypatch, vendor, sets, capability, exact):
    monkeypatch.setattr(_products, "processor_vendor", lambda: vendor)
    monkeypatch.setattr(_products, "instruction_sets", lambda: sets)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(_products, "is_float32", lambda: exact)


@pytest.fixture
def onednn(monkeypatch):
    monkeypatch.setattr(_products, "uses_onednn", lambda: True)


@pytest.fixture
def fresh():
    uses_onednn.cache_clear()
    yield
    uses_onednn.cache_clear()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"vendor": "HygonGenuine"}, True),
        ({"vendor": "GenuineIntel"}, False),  # MKL uses AVX-512 there
        ({"vendor": ""}, False),
        ({"sets": ("avx512f", "amx_bf16")}, False),  # bfloat16 would be used
        ({"capability": "AVX2"}, False),
        ({"exact": False}, False),
    ],
)
def test_processors_that_need_it(monkeypatch, fresh, change, expected):
    set_machine(monkeypatch, **(AMD | change))
    assert uses_onednn() is expected


def test_the_setting_is_allowed_inside_only(onednn):
    assert precision() == "none"
    with large_products():
        assert precision() == "bf16"
        with large_products():
            assert precision() == "bf16"
        assert precision() == "bf16"
    assert precision() == "none"
    with pytest.raises(KeyError), large_products():
        raise KeyError
    assert precision() == "none"


@pytest.mark.parametrize("inherited", ["none", "ieee"])
def test_a_setting_that_is_inherited_stays_inherited(monkeypatch, onednn, inherited):
    monkeypatch.setattr(torch.backends, "fp32_precision", inherited)
    with large_products():
        assert precision() == "bf16"
    assert precision() == inherited
    monkeypatch.setattr(torch.backends, "fp32_precision", "tf32")
    assert precision() == "tf32"


def test_the_setting_of_the_program_comes_back(onednn):
    try:
        torch.set_float32_matmul_precision("high")
        with large_products():
            assert precision() == "bf16"
        assert torch.get_float32_matmul_precision() == "high"
        torch.set_float32_matmul_precision("highest")
        with large_products():
            assert precision() == "bf16"
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        _products._setting().fp32_precision = "none"
    assert precision() == "none"


def test_nothing_is_set_where_it_does_not_help(monkeypatch):
    monkeypatch.setattr(_products, "uses_onednn", lambda: False)
    with large_products():
        assert precision() == "none"


def test_threads_restore_the_setting_whatever_their_order(onednn):
    inside, leave = threading.Barrier(3), threading.Event()

    def first():
        with large_products():
            inside.wait(10)

    def last():
        with large_products():
            inside.wait(10)
            assert leave.wait(10)
            return precision()

    with ThreadPoolExecutor(2) as threads:
        early, late = threads.submit(first), threads.submit(last)
        inside.wait(10)
        early.result()
        leave.set()
        assert late.result() == "bf16"
    assert precision() == "none"


def test_the_check_does_not_depend_on_the_program():
    here, state = is_float32(), torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu"), torch.device("meta"):
            assert is_float32() == here
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    assert here or not uses_onednn()
    assert precision() == "none"


@pytest.mark.parametrize("name", ["bmm", "mm"])
def test_the_check_tells_bfloat16_from_float32(monkeypatch, name):
    product = getattr(torch, name)
    monkeypatch.setattr(torch, name, lambda left, right: product(left.bfloat16(), right.bfloat16()).float())
    assert not is_float32()
    assert precision() == "none"


def test_no_such_setting_in_older_versions_of_pytorch(monkeypatch, fresh):
    set_machine(monkeypatch, **AMD)
    monkeypatch.setattr(_products, "_setting", lambda: None)
    assert not uses_onednn()
    with large_products():
        pass


class Count:
    """Counts the products that oneDNN may compute."""

    def __init__(self):
        self.users = self.products = 0

    def acquire(self):
        self.users += 1
        self.products += 1

    def release(self):
        self.users -= 1


def test_kernels_and_routing_have_large_products(monkeypatch, onednn):
    count = Count()
    monkeypatch.setattr(_products, "_permission", count)

    def products(function):
        before = count.products
        result = function()
        assert count.users == 0
        return result, count.products - before

    images = torch.rand(2, 1, 12, 12)
    filters, bias = torch.rand(8, 1, 3, 3, requires_grad=True), torch.rand(8)
    maps, stem = products(lambda: im2col_conv2d_relu(images, filters, bias, 1))
    _, stem_backward = products(lambda: maps.sum().backward())
    assert (stem, stem_backward) == (1, 1)
    weight = torch.rand(8, 8, 5, 5, requires_grad=True)
    result, forward = products(lambda: winograd_conv2d(maps.detach(), weight, None, 2, 3))
    _, backward = products(lambda: result.sum().backward())
    # Evaluation, four phases and interpolation; half of the gradient, evaluation and four phases.
    assert (forward, backward) == (6, 6)
    for dimension, expected in ((4, (1, 2)), (16, (5, 5))):  # with and without votes
        lower = torch.rand(32, 6, 4, requires_grad=True)
        votes = torch.rand(6, 4, 3, dimension, requires_grad=True)
        routed, forward = products(lambda lower=lower, votes=votes: route_capsules(lower, votes))
        _, backward = products(lambda routed=routed: routed.capsules.sum().backward())
        assert (forward, backward) == expected


@given(
    st.integers(0, 5), st.integers(0, 40), st.integers(1, 300), st.integers(1, 40), st.booleans(), st.integers(0, 2**20)
)
def test_products_are_those_of_float64(batch, rows, inner, columns, transposed, seed):
    if not is_float32():
        pytest.skip("oneDNN computes in bfloat16 on this processor, so it is not used")
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(batch, rows, inner, generator=generator)
    right = torch.randn(batch, columns, inner, generator=generator).transpose(1, 2)
    if not transposed:
        right = right.contiguous()
    exact = left.double() @ right.double()
    allowed = 1e-6 * inner**0.5 + 1e-5 * (left.double().abs() @ right.double().abs())
    _products._permission.acquire()
    try:
        out = torch.empty(batch, rows, columns)
        torch.bmm(left, right, out=out)
        added = torch.ones(batch, rows, columns).baddbmm_(left, right)
        product = left[0] @ right[0] if batch else None
    finally:
        _products._permission.release()
    assert ((out - exact).abs() <= allowed).all()
    assert ((added - 1 - exact).abs() <= allowed + 1e-5).all()
    assert product is None or ((product - exact[0]).abs() <= allowed[0]).all()
