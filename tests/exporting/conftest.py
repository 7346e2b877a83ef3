"""The small networks and files of the runtime's tests."""

from tests.runtime.conftest import fast, model_file

__all__ = ["fast", "model_file"]
