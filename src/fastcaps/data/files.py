"""The files of data sets: locate, verify and read them, or download them.

The search order is: the folder given as ``data_dir``, ``$FASTCAPS_DATA``, the cache. A file with a published hash is
always checked against it. A download without a published hash is checked for its format before it gets its final name.
"""

import hashlib
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from fastcaps._download import DownloadError, FormError, cache_dir, created_folder, download
from fastcaps.data.registry import Archive, File, Files

# The test images of MNIST, which come with the package.
EMBEDDED = Path(__file__).parent / "embedded"
# Errors that the libraries raise for damaged archives, some of them unintended: a broken link is a KeyError.
_UNREADABLE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError),
    *(KeyError, IndexError, OverflowError, RecursionError, NotImplementedError, UnicodeDecodeError),
)
# Maximum bytes of an archive member or a download, if its size is not known, and of a line of a text file.
_MOST, _LONGEST_LINE = 2**30, 2**16


@dataclass(frozen=True)
class LocalFile:
    """A file on this machine: ``path`` itself, or a member of the archive at ``path``."""

    file: File
    path: Path
    packed: bool = False

    @property
    def title(self) -> str:
        """Its name in error messages."""
        return f"{self.file.name} in {self.path}" if self.packed else str(self.path)


# Raises ValueError if files have the wrong format.
Check = Callable[[list[LocalFile]], object]


def roots(data_dir: str | Path | None = None) -> list[Path]:
    """Return the folders to search for sets, in order."""
    places = []
    for folder, name in ((data_dir, "data_dir"), (os.environ.get("FASTCAPS_DATA"), "$FASTCAPS_DATA")):
        if folder:
            place = Path(folder).expanduser()
            if not place.is_dir():
                raise FileNotFoundError(f"{name} is {place}, which is not a folder: create it or give another one")
            places.append(place)
    return [*places, cache_dir()]


def locate(files: Files, places: Iterable[Path]) -> list[LocalFile | None]:
    """Return each file of a set from the first place that has it, or None."""
    located: dict[str, LocalFile] = {}
    for place in places:
        folder = place / files.folder
        for file in files.files:
            candidates = [folder / file.name]
            if file.unpacked:
                candidates.append(folder / file.unpacked)
            if files.archive:
                candidates.append(folder / files.archive.folder / file.name)
            for path in candidates:
                if file.name not in located and path.is_file():
                    located[file.name] = LocalFile(file, path)
        if files.archive and (folder / files.archive.name).is_file():
            for file in files.files:
                located.setdefault(file.name, LocalFile(file, folder / files.archive.name, packed=True))
    return [located.get(file.name) for file in files.files]


def read(items: Sequence[LocalFile]) -> list[bytes]:
    """Return the verified contents of files; each archive is read once."""
    archives = {item.path for item in items if item.packed}
    unpacked = {path: _members(path, {item.file.name: item.file.size or _MOST for item in items}) for path in archives}
    return [_verified(item, unpacked[item.path] if item.packed else None) for item in items]


def open_member(item: LocalFile) -> IO[bytes]:
    """Open a file, which may be a member of a zip file, as a stream: for files too large to read at once."""
    if not item.packed:
        return item.path.open("rb")
    try:
        archive = zipfile.ZipFile(item.path)
    except _UNREADABLE as error:
        raise _damaged(item.path, error) from None
    with archive:  # the member's stream keeps the file open as long as it needs it
        for name in archive.namelist():
            if PurePosixPath(name).name == item.file.name:
                try:
                    return archive.open(name)
                except RuntimeError as error:  # it has a password, or a compression that Python doesn't know
                    raise ValueError(
                        f"{item.path} can't be unpacked ({error}): expected a zip file that opens without a password; "
                        "unpack it by hand, or delete it and download it again"
                    ) from None
    raise ValueError(f"{item.path} has no {item.file.name} in it: download it again")


def lines(item: LocalFile) -> Iterator[bytes]:
    """Yield the lines of a text file, which may be a member of a zip file."""
    try:
        with open_member(item) as stream:
            while line := stream.readline(_LONGEST_LINE):
                if len(line) == _LONGEST_LINE:
                    raise ValueError(
                        f"{item.title} has a line of over {_LONGEST_LINE:,} bytes: it is damaged; download it again"
                    )
                yield line
    except _UNREADABLE as error:
        raise _damaged(item.path, error) from None


def instructions(files: Files, places: Sequence[Path]) -> str:
    """Return which files a set needs, where to put them, and where they are published."""
    names = ", ".join(file.name for file in files.files)
    archive = f" (or {files.archive.name})" if files.archive else ""
    folders = ", ".join(str(place / files.folder) for place in places)
    addresses = ", ".join(homes(files)) or "no known address"
    return (
        f"put {names}{archive} into {folders}, or into {files.folder} of any folder given as data_dir or "
        f"$FASTCAPS_DATA; they are published at {addresses}"
    )


def homes(files: Files) -> list[str]:
    """Return the public addresses of the archive of a set, or of the folders that have all its files, in order."""
    if files.archive is not None:
        return list(files.archive.urls)
    return list(dict.fromkeys(url.rsplit("/", 1)[0] + "/" for file in files.files for url in file.urls))


def fetch(files: Files, places: Sequence[Path], into: Path, check: Check | None = None) -> list[LocalFile]:
    """Locate all files of a set, and download missing ones to ``<into>/<folder>``.

    Args:
        files: files of the set.
        places: folders to search, in order.
        into: folder for downloads.
        check: raises ValueError if a download without a published hash has the wrong format.
    """
    located = locate(files, places)
    missing = [file for file, item in zip(files.files, located, strict=True) if item is None]
    if missing:
        downloads: Sequence[File | Archive] = [files.archive] if files.archive else missing
        with created_folder(into / files.folder) as folder:
            for item in downloads:
                download_file(item, files, folder, places, check)
        located = locate(files, [*places, into])
    return [item for item in located if item is not None]


def _members(path: Path, limits: Mapping[str, int]) -> dict[str, bytes]:
    """Return the contents of members of a tar file; ``limits`` has the maximum number of bytes of each."""
    members = {}
    try:
        with tarfile.open(path) as archive:
            for entry in archive:
                name = PurePosixPath(entry.name).name
                if name not in limits or not entry.isreg():
                    continue
                if entry.size > limits[name]:
                    raise ValueError(
                        f"{path} has {entry.size:,} bytes in {name}, expected at most {limits[name]:,}: it is damaged; "
                        "delete it and download it again"
                    )
                stream = archive.extractfile(entry)
                if stream is not None:
                    members[name] = stream.read()
    except _UNREADABLE as error:
        raise _damaged(path, error) from None
    return members


def _verified(item: LocalFile, members: dict[str, bytes] | None) -> bytes:
    if members is None:
        content = item.path.read_bytes()
    elif item.file.name in members:
        content = members[item.file.name]
    else:
        raise ValueError(f"{item.path} has no {item.file.name} in it: download it again")
    expected = item.file.unpacked_sha256 if item.path.name == item.file.unpacked else item.file.sha256
    actual = hashlib.sha256(content).hexdigest()
    if expected is not None and actual != expected:
        raise ValueError(
            f"{item.title} has SHA-256 {actual}, expected {expected}: "
            "it is damaged or another file; delete it and download it again"
        )
    return content


def _damaged(path: Path, error: Exception) -> ValueError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ValueError(f"{path} can't be unpacked ({reason}): it is damaged; delete it and download it again")


def download_file(
    item: File | Archive, files: Files, folder: Path, places: Sequence[Path], check: Check | None = None
) -> None:
    """Download one file from the first address that works."""
    digest = item.digest if isinstance(item, Archive) else item.sha256

    def check_form(path: Path) -> None:
        if check is None:
            return
        try:
            if isinstance(item, Archive):
                check([LocalFile(file, path, packed=True) for file in files.files])
            else:
                check([LocalFile(item, path)])
        except ValueError as error:
            # Name the file itself, without the advice that is meant for files of the user.
            raise FormError(str(error).replace(str(path), item.name).partition(": it is ")[0]) from None

    try:
        download(item.name, item.urls, folder, digest=digest, limit=item.size or _MOST, check=check_form)
    except DownloadError as error:
        raise FileNotFoundError(
            f"{files.folder} is missing and could not be downloaded: {instructions(files, places)}; tried {error}"
        ) from None
