"""The former name of `fastcaps.bundled`; it will be removed in the next release."""

from fastcaps._lazy import lazy_names

_NAMES = {
    "ONNX": "ONNX",
    "names": "names",
    "located": "resolve",
    "known": "names_expected",
    "described": "describe",
    "is_shipped": "is_bundled",
}

__getattr__, __dir__ = lazy_names(
    __name__, {}, {old: ("fastcaps.bundled", new, f"fastcaps.bundled.{new}") for old, new in _NAMES.items()}
)
