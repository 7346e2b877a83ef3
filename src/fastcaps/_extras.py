"""Optional dependencies: what to install when one is missing."""

from importlib.util import find_spec

# The extra that installs each optional module.
_EXTRA = {
    "torch": "train",
    "sklearn": "train",
    "matplotlib": "train",
    "tensorboard": "train",
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "runtime",
    "starlette": "serve",
    "uvicorn": "serve",
    "httptools": "serve",
    "python_multipart": "serve",
    "prometheus_client": "serve",
}


def require(purpose: str, *modules: str) -> None:
    """Raise when a module that a purpose needs isn't installed.

    Args:
        purpose: what needs it, as the beginning of a sentence, such as ``"fastcaps demo"``.
        modules: names as imported.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        extras = ",".join(sorted({_EXTRA[name] for name in missing}))
        raise ModuleNotFoundError(
            f"{purpose} needs {', '.join(missing)}, not installed here: pip install 'fastcaps[{extras}]'"
        )
