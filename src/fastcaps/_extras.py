"""Optional dependencies: what to install when one is missing."""

import re
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec

# Packages whose name differs from that of their module.
_PACKAGE = {"sklearn": "scikit-learn", "python_multipart": "python-multipart", "prometheus_client": "prometheus-client"}


def require(purpose: str, *modules: str) -> None:
    """Raise if a required module isn't installed.

    The command in the error names packages, not an extra of fastcaps, so that it works however fastcaps was installed:
    as a package, a checkout, or a folder on the path.

    Args:
        purpose: what requires the modules, as the subject of a sentence, such as ``"fastcaps demo"``.
        modules: import names of the modules.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        ranges = _ranges()
        packages = [_PACKAGE.get(name, name) for name in missing]
        wanted = " ".join(f"'{ranges[name]}'" if name in ranges else name for name in packages)
        raise ModuleNotFoundError(
            f"{purpose} needs {', '.join(missing)}, not installed here: python -m pip install {wanted}"
        )


def _ranges() -> dict[str, str]:
    """Return the required versions of packages, such as ``torch>=2.6``, if fastcaps is installed as a package."""
    try:
        lines = requires("fastcaps") or []
    except PackageNotFoundError:
        return {}
    wanted = [line.partition(";")[0].strip() for line in lines]
    return {re.split(r"[^\w.-]", line, maxsplit=1)[0]: line for line in wanted if "[" not in line}
