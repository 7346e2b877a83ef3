"""Downloads: to the cache, from the first address that works, checked before a file gets its final name."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Seconds without an answer after which a server is considered down.
_TIMEOUT = 30


class DownloadError(OSError):
    """No address worked; the message gives the reason for each."""


class FormError(ValueError):
    """A download has the wrong format."""


def cache_dir() -> Path:
    """Return the folder for downloads and generated sets: ``$FASTCAPS_CACHE``, or that of the operating system."""
    folder = os.environ.get("FASTCAPS_CACHE")
    if folder:
        return Path(folder).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("fastcaps"))


def download(
    name: str,
    urls: Sequence[str],
    folder: Path,
    *,
    digest: str | None,
    limit: int,
    check: Callable[[Path], object] | None = None,
) -> None:
    """Download one file from the first address that works, and show progress on stderr.

    Args:
        name: name of the file in the folder.
        urls: addresses, tried in this order.
        folder: an existing folder.
        digest: hash of the file, ``algorithm:hexadecimal``; None if unknown.
        limit: maximum number of bytes.
        check: raises `FormError` if a file without a hash has the wrong format.

    Raises:
        DownloadError: no address worked.
        OSError: the folder can't be written to.
    """
    import pooch
    from pooch.downloaders import HTTPDownloader

    # The progress bar already shows what pooch would log.
    pooch.get_logger().setLevel("WARNING")
    failures = []
    for url in urls:
        progress = Progress(name, url, limit)
        to_file = HTTPDownloader(progressbar=progress, timeout=_TIMEOUT)

        def to_temporary(
            url: str, temporary: str, _: Any, to_file: Callable[[str, str, Any], None] = to_file
        ) -> None:  # pooch renames or deletes the temporary file
            to_file(url, temporary, None)
            if check is not None and digest is None:
                check(Path(temporary))

        try:
            pooch.retrieve(url, digest, name, folder, downloader=to_temporary)
            return
        except (OSError, ValueError) as error:  # requests raises OSErrors, a wrong hash or format is a ValueError
            if isinstance(error, OSError) and _local(error):
                raise _not_writable(folder, error) from None  # no other address would help
            failures.append(f"{url}: {_reason(error)}")
        finally:
            progress.stop()
    raise DownloadError("; ".join(failures) or "nothing")


@contextmanager
def created_folder(folder: Path) -> Iterator[Path]:
    """Create a folder to write to; remove it afterwards if it is new and still empty."""
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
            with suppress(OSError):  # it isn't empty, or was never created
                path.rmdir()


def _local(error: OSError) -> bool:
    """Return whether the local disk failed, not the network."""
    from requests.exceptions import RequestException

    return error.errno is not None and not isinstance(error, RequestException | ConnectionError | TimeoutError)


def _not_writable(folder: Path, error: OSError) -> OSError:
    return OSError(
        f"{folder} can't be created or written to ({error.strerror or error}): free space, or give another folder as "
        "$FASTCAPS_CACHE (of data sets also as data_dir)"
    )


def _reason(error: Exception) -> str:
    """Return in a few words why a download failed; messages of the libraries have many lines."""
    text = str(error)
    if isinstance(error, FormError):
        return text
    if isinstance(error, ValueError) and "hash" in text:
        return "its checksum does not match"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"HTTP status {status}"
    return getattr(error, "strerror", None) or type(error).__name__


class Progress:
    """Progress of a download on stderr: a bar on a terminal, otherwise a line at its start and its end.

    The interface is that of pooch: it sets `total`, then calls `update` with numbers of bytes, `reset` and `close`.
    """

    def __init__(self, name: str, url: str, limit: int) -> None:
        self.name, self.url, self.limit = name, url, limit
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
        """Count downloaded bytes, and raise if there are too many; pooch counts the last block as a whole one."""
        self._done += count
        if self._done - count > self.limit:
            raise FormError(f"it has more than {self.limit:,} bytes")
        if self._bar is not None:
            self._bar.update(self._task, total=self.total or None, completed=min(self._done, self.total))

    def reset(self) -> None:
        """Reset the count; pooch does so before it completes the bar."""
        self._done = 0

    def close(self) -> None:
        """Print the size of the download."""
        if self._bar is None:
            print(f"{self.name}: {self.total:,} bytes", file=sys.stderr)

    def stop(self) -> None:
        """Release the terminal, also after an error."""
        if self._bar is not None:
            self._bar.stop()
