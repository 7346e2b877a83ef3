"""Write the hashes of everything that `make` installs: ``python -m tools.hashes``.

pip downloads the file that it would install for each version of ``constraints.txt``. So the hashes are those for this
version of Python, this operating system and this processor; elsewhere pip refuses files that are not listed.
"""

import hashlib
import platform
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

from fastcaps._files import write_atomically

ROOT = Path(__file__).parent.parent
CONSTRAINTS, HASHES = ROOT / "constraints.txt", ROOT / "constraints-hashes.txt"


def main() -> None:
    """Download every file and write its version and hash."""
    with TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder, "-r", str(CONSTRAINTS)]
        subprocess.run(pip, check=True)  # noqa: S603  our own pip
        write_atomically({HASHES: hashed(Path(folder)).encode()})


def hashed(folder: Path) -> str:
    """Return a requirements file of the packages in a folder."""
    version = ".".join(platform.python_version_tuple()[:2])
    lines = [
        f"# For Python {version}, {platform.system()}, {platform.machine()}; written by python -m tools.hashes.",
        "# pip install --require-hashes --no-deps -r constraints-hashes.txt && pip install --no-deps .",
    ]
    digests = {_requirement(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    return "\n".join([*lines, *(f"{name} --hash=sha256:{digests[name]}" for name in sorted(digests))]) + "\n"


def _requirement(path: Path) -> str:
    is_wheel = path.suffix == ".whl"
    name, version = parse_wheel_filename(path.name)[:2] if is_wheel else parse_sdist_filename(path.name)
    return f"{canonicalize_name(name)}=={version.public}"


if __name__ == "__main__":
    main()
