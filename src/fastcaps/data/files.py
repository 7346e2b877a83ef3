"""Where the files of a set are: found, verified and read, or downloaded whole from a public home.

Looked for in this order: the folder the user names, ``$FASTCAPS_DATA``, the cache. A file that has a
published hash is checked against it wherever it was found, what is downloaded without one for its form before it gets
its name; nothing is accepted silently.
"""

import hashlib
import os
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fastcaps.data.registry import Archive, File, Files

# What comes with the package: the test images of MNIST.
EMBEDDED = Path(__file__).parent / "embedded"
# Seconds without an answer after which a home counts as down.
_TIMEOUT = 30
_UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError)


@dataclass(frozen=True)
class Found:
    """A file at hand: ``path`` itself, or inside the archive at ``path``."""

    file: File
    path: Path
    packed: bool = False

    @property
    def title(self) -> str:
        """How an error names it."""
        return f"{self.file.name} in {self.path}" if self.packed else str(self.path)


# Raises ValueError when files are not what they should be.
Check = Callable[[list[Found]], object]


def cache_dir() -> Path:
    """The folder for downloads and generated sets: ``$FASTCAPS_CACHE``, or the operating system's."""
    chosen = os.environ.get("FASTCAPS_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("fastcaps"))


def roots(data_dir: str | Path | None = None) -> list[Path]:
    """The folders in which sets are looked for, in order."""
    places = []
    for given, words in ((data_dir, "the data folder"), (os.environ.get("FASTCAPS_DATA"), "$FASTCAPS_DATA")):
        if given:
            place = Path(given).expanduser()
            if not place.is_dir():
                raise FileNotFoundError(f"{words} {place} is not a folder: create it or name another")
            places.append(place)
    return [*places, cache_dir()]


def locate(files: Files, places: Iterable[Path]) -> list[Found | None]:
    """For each file of a set the first place that has it, or None."""
    found: dict[str, Found] = {}
    for place in places:
        folder = place / files.folder
        for file in files.files:
            candidates = [folder / file.name]
            if file.unpacked:
                candidates.append(folder / file.unpacked)
            if files.archive:
                candidates.append(folder / files.archive.folder / file.name)
            for path in candidates:
                if file.name not in found and path.is_file():
                    found[file.name] = Found(file, path)
        if files.archive and (folder / files.archive.name).is_file():
            for file in files.files:
                found.setdefault(file.name, Found(file, folder / files.archive.name, packed=True))
    return [found.get(file.name) for file in files.files]


def read(found: Sequence[Found]) -> list[bytes]:
    """The verified content of files; an archive that holds several of them is gone through once."""
    archives = {item.path for item in found if item.packed}
    unpacked = {path: _members(path, {item.file.name for item in found}) for path in archives}
    return [_verified(item, unpacked[item.path] if item.packed else None) for item in found]


def open_member(found: Found) -> IO[bytes]:
    """A file as a stream, for those too large to read at once; from a zip file where it is in one."""
    if not found.packed:
        return found.path.open("rb")
    try:
        archive = zipfile.ZipFile(found.path)
    except _UNREADABLE as error:
        raise _damaged(found.path, error) from None
    with archive:  # the member's stream keeps the file open as long as it needs it
        for name in archive.namelist():
            if PurePosixPath(name).name == found.file.name:
                try:
                    return archive.open(name)
                except RuntimeError as error:  # it has a password, or a compression that Python doesn't know
                    raise ValueError(
                        f"{found.path} can't be unpacked ({error}): expected a zip file that opens without a password; "
                        "unpack it by hand, or delete it and fetch it again"
                    ) from None
    raise ValueError(f"{found.path} has no {found.file.name} in it: fetch it again")


def lines(found: Found) -> Iterator[bytes]:
    """The lines of a text file, wherever it is packed."""
    try:
        with open_member(found) as stream:
            yield from stream
    except _UNREADABLE as error:
        raise _damaged(found.path, error) from None


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
    """Public addresses of a set's archive, or those that end in ``/`` and have all its files, in order."""
    if files.archive is not None:
        return list(files.archive.urls)
    return list(dict.fromkeys(url.rsplit("/", 1)[0] + "/" for file in files.files for url in file.urls))


def fetch(files: Files, places: Sequence[Path], into: Path, check: Check | None = None) -> list[Found]:
    """Find all files of a set, downloading those that no place has to ``<into>/<folder>``.

    Args:
        files: of the set.
        places: where they are looked for, in order.
        into: where those that are not there are brought.
        check: of the form of what is downloaded and has no published hash, before it gets its name.
    """
    at_hand = locate(files, places)
    missing = [file for file, item in zip(files.files, at_hand, strict=True) if item is None]
    if missing:
        wanted: Sequence[File | Archive] = [files.archive] if files.archive else missing
        with _made(into / files.folder) as folder:
            for item in wanted:
                _download(item, files, folder, places, check)
        at_hand = locate(files, [*places, into])
    return [item for item in at_hand if item is not None]


def _members(path: Path, names: set[str]) -> dict[str, bytes]:
    """The content of the named members of a tar file."""
    members = {}
    try:
        with tarfile.open(path) as archive:
            for entry in archive:
                name = PurePosixPath(entry.name).name
                stream = archive.extractfile(entry) if name in names else None
                if stream is not None:
                    members[name] = stream.read()
    except _UNREADABLE as error:
        raise _damaged(path, error) from None
    return members


def _verified(item: Found, members: dict[str, bytes] | None) -> bytes:
    if members is None:
        content = item.path.read_bytes()
    elif item.file.name in members:
        content = members[item.file.name]
    else:
        raise ValueError(f"{item.path} has no {item.file.name} in it: fetch it again")
    expected = item.file.unpacked_sha256 if item.path.name == item.file.unpacked else item.file.sha256
    found = hashlib.sha256(content).hexdigest()
    if expected is not None and found != expected:
        raise ValueError(
            f"{item.title} has SHA-256 {found}, expected {expected}: "
            "it is damaged or another file; delete it and fetch it again"
        )
    return content


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} can't be unpacked ({error}): it is damaged; delete it and fetch it again")


@contextmanager
def _made(folder: Path) -> Iterator[Path]:
    """A folder to write to, which is gone afterwards if it was not there and nothing came into it."""
    absent = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise _not_writable(folder, error) from None
        yield folder
    finally:
        for path in absent:
            with suppress(OSError):  # it isn't empty, or was never made
                path.rmdir()


def _local(error: OSError) -> bool:
    """Whether it is this machine's disk that failed and not the network."""
    from requests.exceptions import RequestException

    return error.errno is not None and not isinstance(error, RequestException | ConnectionError | TimeoutError)


def _not_writable(folder: Path, error: OSError) -> OSError:
    return OSError(
        f"{folder} can't be made or written to ({error.strerror or error}): make room for it, or choose another place "
        "as $FASTCAPS_CACHE, or as data_dir of fastcaps.data.download"
    )


def _download(
    item: File | Archive, files: Files, folder: Path, places: Sequence[Path], check: Check | None = None
) -> None:
    """Bring one file whole from the first home that gives it."""
    import pooch

    # pooch reports what it does as a log on standard error; the progress says it already.
    pooch.get_logger().setLevel("WARNING")
    digest = item.digest if isinstance(item, Archive) else item.sha256
    failures = []
    for url in item.urls:
        progress = _Progress(item.name, url)
        try:
            pooch.retrieve(
                url,
                digest,
                item.name,
                folder,
                downloader=_downloader(item, files, progress, None if digest else check),
            )
            return
        except (OSError, ValueError) as error:  # requests' errors are OSErrors, a wrong hash or form is a ValueError
            if isinstance(error, OSError) and _local(error):
                raise _not_writable(folder, error) from None  # no other home would help
            failures.append(f"{url}: {_reason(error)}")
        finally:
            progress.stop()
    raise FileNotFoundError(_not_at_hand(files, places, failures))


def _downloader(
    item: File | Archive, files: Files, progress: "_Progress", check: Check | None
) -> Callable[[str, str, Any], None]:
    """What pooch wants of one: brings an address to a temporary file, which pooch gives its name or deletes."""
    from pooch.downloaders import HTTPDownloader

    bring = HTTPDownloader(progressbar=progress, timeout=_TIMEOUT)

    def download(url: str, temporary: str, _: Any) -> None:
        bring(url, temporary, None)
        if check is None:
            return
        path = Path(temporary)
        try:
            if isinstance(item, Archive):
                check([Found(file, path, packed=True) for file in files.files])
            else:
                check([Found(item, path)])
        except ValueError as error:
            # By its own name, and without what to do about a file that one has.
            raise _FormError(str(error).replace(temporary, item.name).partition(": it is ")[0]) from None

    return download


class _FormError(ValueError):
    """What was downloaded is another file."""


def _reason(error: Exception) -> str:
    """Why a download failed, in a few words; the libraries' own run over many lines."""
    text = str(error)
    if isinstance(error, _FormError):
        return text
    if isinstance(error, ValueError) and "hash" in text:
        return "its checksum does not match"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"HTTP status {status}"
    return getattr(error, "strerror", None) or type(error).__name__


def _not_at_hand(files: Files, places: Sequence[Path], failures: Sequence[str]) -> str:
    tried = "; ".join(failures) or "nothing"
    return f"{files.folder} is missing and could not be downloaded: {instructions(files, places)}; tried {tried}"


class _Progress:
    """A download on standard error: a bar on a terminal, otherwise a line when it begins and when it is done.

    What pooch wants of one: `total` set, then `update` with numbers of bytes, `reset` and `close`.
    """

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.total = 0
        self._done = 0
        self._bar: Any = None
        self._task: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            console = Console(file=sys.stderr)
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task(name, total=None)
            self._bar.start()
        else:
            print(f"{name}: downloading from {url}", file=sys.stderr)

    def update(self, count: int) -> None:
        """Count bytes that have come; pooch counts whole blocks, also the last."""
        self._done += count
        if self._bar is not None:
            self._bar.update(self._task, total=self.total or None, completed=min(self._done, self.total))

    def reset(self) -> None:
        """Count from the beginning, as pooch does before it fills the bar."""
        self._done = 0

    def close(self) -> None:
        """Say that all has come."""
        if self._bar is None:
            print(f"{self.name}: {self.total:,} bytes", file=sys.stderr)

    def stop(self) -> None:
        """Give the terminal back, however it ended."""
        if self._bar is not None:
            self._bar.stop()
