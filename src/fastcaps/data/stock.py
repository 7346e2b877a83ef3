"""The former name of `fastcaps.data.catalog`; it will be removed in the next release."""

from fastcaps._lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {},
    {
        "available": ("fastcaps.data._deprecated", "available", "fastcaps.data.available"),
        "get": ("fastcaps.data._deprecated", "get", "fastcaps.data.download"),
    },
)
