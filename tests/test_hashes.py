"""The file of hashes has all versions that are installed, and pip accepts it."""

import re

from packaging.utils import canonicalize_name
from tools.hashes import CONSTRAINTS, HASHES, hashed


def lines(path):
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def test_every_constraint_has_a_hash():
    versions = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines(CONSTRAINTS))}
    hashed_lines = [re.fullmatch(r"(\S+)==(\S+) --hash=sha256:[0-9a-f]{64}", line) for line in lines(HASHES)]
    assert {match[1]: match[2] for match in hashed_lines if match} == versions, "run python -m tools.hashes"
    assert all(hashed_lines)


def test_the_hash_of_a_file(tmp_path):
    (tmp_path / "some_package-1.2+cpu-py3-none-any.whl").write_bytes(b"")
    (tmp_path / "Other-3.0.tar.gz").write_bytes(b"")
    nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert hashed(tmp_path).splitlines()[2:] == [
        f"other==3.0 --hash=sha256:{nothing}",
        f"some-package==1.2 --hash=sha256:{nothing}",
    ]
