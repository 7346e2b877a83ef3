"""Settings for all tests: reproducible, in one thread, slow files first."""

import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
from tests.pages import save_nothing
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

hypothesis.settings.register_profile("fastcaps", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("fastcaps")

# They fork processes from a server that has imported PyTorch, which takes seconds: once, in one worker.
FORKING = {
    "tests/cli/test_torchrun.py",
    "tests/cli/test_train.py",
    "tests/data/test_folder.py",
    "tests/master/test_trees.py",
    "tests/nn/test_pretrained.py",
    "tests/test_distributed.py",
    "tests/training/test_accumulation.py",
    "tests/training/test_distribution.py",
    "tests/training/test_trainer.py",
}

# Tensors are so small here that a second thread only waits, also in processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Give a worker whole files, whose tests share what they train, and all that fork to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def _group(nodeid: str) -> str:
    file = nodeid.split("::", 1)[0]
    return "forking" if file in FORKING else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scheduling | None:
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start files with slow tests first, so that none is left over for one worker while the others have nothing."""
    slow = Counter(_group(item.nodeid) for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[_group(item.nodeid)])


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch  # not above: the process that only hands out tests needs none

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def operators_read_once() -> Iterator[None]:
    """Let PyTorch's exporter keep the operators that it knows: it reads the sources of all again for every export."""
    from torch.onnx._internal.exporter import _registration

    library = _registration.onnxscript_apis  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "get_torchlib_ops", functools.cache(library.get_torchlib_ops))
        yield


@pytest.fixture
def missing_package(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a package be missing, by the name that it is imported with."""
    return lambda name: monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw figures, but don't render them: that takes most of the time of a report, and other tests do it."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save_nothing)
