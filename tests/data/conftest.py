"""No test of data sees the user's cache, or data folder unless it asks for it."""

import os
from pathlib import Path

import pytest

_REAL = os.environ.get("FASTCAPS_DATA")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    folder: Path = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FASTCAPS_CACHE", str(folder))
    monkeypatch.delenv("FASTCAPS_DATA", raising=False)
    return folder


@pytest.fixture
def real_data() -> str:
    if not _REAL:
        pytest.skip("$FASTCAPS_DATA is not set")
    return _REAL
