"""Networks on the Hugging Face Hub, through huggingface_hub: download them to its cache, upload them in one commit."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from fastcaps._extras import require
from fastcaps._progress import say
from fastcaps._version import __version__

_NAME = re.compile(r"[a-z0-9][\w.-]*/[a-z0-9][\w.-]*", re.ASCII | re.IGNORECASE)
CARD = "README.md"
# The files of a model, and of a run, that are downloaded and uploaded; a repository may have others.
EXPORTED_FILES = ("run.json", "model.int8.onnx", CARD)
FILES = (
    *EXPORTED_FILES,
    *("config.json", "model.safetensors", "master.safetensors"),
    *("model/config.json", "model/model.safetensors", "fast/config.json", "fast/model.safetensors"),
)
# Maximum total size of the files of a repository.
_MOST_BYTES = 2**31
# Suffixes of paths that are probably misspelled, not names of repositories.
_SUFFIXES = (".onnx", ".json", ".safetensors", ".toml", ".png")
_LOGIN = "log in with hf auth login, or set HF_TOKEN"


def is_hub_name(name: str | Path) -> bool:
    """Return whether a name is that of a repository, ``user/name``: neither it nor a folder ``user`` exists locally."""
    path = Path(name)
    is_name = _NAME.fullmatch(path.as_posix()) is not None and path.suffix not in _SUFFIXES
    return is_name and not path.exists() and not path.parent.exists()


def repository(folder: Path) -> str | None:
    """Return the name of the repository that a folder of the cache was downloaded from; None for any other folder."""
    parts = folder.parts[-3:]
    if len(parts) < 3 or parts[1] != "snapshots" or not parts[0].startswith("models--"):
        return None
    return parts[0].removeprefix("models--").replace("--", "/", 1)


def download(name: str, revision: str | None = None, *, exported: bool = False) -> Path:
    """Return the folder of a repository's files in the cache; download what is missing or has changed.

    Args:
        name: name of the repository, ``user/name``.
        revision: branch, tag or commit.
        exported: download only what is needed to run the exported file.
    """
    try:
        require(f"loading {name} from the Hugging Face Hub", "huggingface_hub")
    except ModuleNotFoundError as error:
        raise FileNotFoundError(f"{name} is no folder here; {error}") from None
    from huggingface_hub import snapshot_download

    say(f"{name} is no folder here: loading it from the Hugging Face Hub")
    wanted = list(EXPORTED_FILES if exported else FILES)
    with _one_sentence(name, revision):
        _check_size(name, revision, wanted)
        folder = Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=wanted,
                library_name="fastcaps",
                library_version=__version__,
            )
        )
    if not any((folder / file).is_file() for file in ("config.json", "model/config.json", "run.json")):
        raise FileNotFoundError(
            f"{name} on the Hugging Face Hub has neither config.json nor run.json: expected a network that "
            "push_to_hub uploaded"
        )
    return folder


def _check_size(name: str, revision: str | None, wanted: list[str]) -> None:
    """Raise if the files of a repository are too large; without a connection nothing is downloaded or checked."""
    from huggingface_hub import HfApi, errors

    with suppress(OSError, errors.HfHubHTTPError, _http_error()):
        about = HfApi(library_name="fastcaps").model_info(name, revision=revision or "main", files_metadata=True)
        size = sum(file.size or 0 for file in about.siblings or () if file.rfilename in wanted)
        if size > _MOST_BYTES:
            raise ValueError(f"{name} on the Hugging Face Hub has {size:,} bytes, expected at most {_MOST_BYTES:,}")


def upload(
    name: str,
    files: Mapping[str, bytes],
    card: bytes,
    *,
    message: str | None = None,
    private: bool | None = None,
    token: str | None = None,
) -> str:
    """Upload files in one commit, create the repository if it doesn't exist, and return its address.

    Files of another network in the repository are removed in the same commit, so that it has one network.

    Args:
        name: name of the repository, ``user/name``.
        files: their contents by path in the repository.
        card: written if the repository has none yet.
        message: commit message.
        private: whether a new repository is private; by default the setting of the account.
        token: token of an account with write access; by default that of ``hf auth login`` or ``$HF_TOKEN``.
    """
    require("push_to_hub", "huggingface_hub")
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of a repository: expected one such as user/name")
    api = HfApi(token=token, library_name="fastcaps", library_version=__version__)
    with _one_sentence(name, None):
        address = api.create_repo(name, private=private, exist_ok=True)
        present = set(api.list_repo_files(name))
        if CARD not in present:
            files = {**files, CARD: card}
        stale = sorted((present & set(FILES)) - set(files) - {CARD})
        added = [CommitOperationAdd(path, content) for path, content in files.items()]
        removed = [CommitOperationDelete(path) for path in stale]
        api.create_commit(name, [*added, *removed], commit_message=message or "Upload a network of fastcaps")
    return str(address)


@contextmanager
def _one_sentence(name: str, revision: str | None) -> Iterator[None]:
    """Turn errors about a repository into one sentence."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError:
        raise FileNotFoundError(
            f"{name} is no folder here and no name of a repository on the Hugging Face Hub: check the name"
        ) from None
    except errors.GatedRepoError:
        raise PermissionError(f"{name} is gated: accept its terms on its page on the Hub, then {_LOGIN}") from None
    except errors.RepositoryNotFoundError:
        raise FileNotFoundError(
            f"{name} is neither a folder here nor a public repository on the Hugging Face Hub: check the name; if it "
            f"is private, {_LOGIN}"
        ) from None
    except errors.RevisionNotFoundError:
        raise FileNotFoundError(
            f"{name} has no revision {revision!r}: expected a branch, a tag or a commit of the repository"
        ) from None
    except errors.LocalEntryNotFoundError as error:
        if _status(error.__cause__) in (401, 403):
            raise _not_allowed(name) from None
        if isinstance(error.__cause__, errors.OfflineModeIsEnabled):
            reason, remedy = "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"
        else:
            reason, remedy = _reason(error.__cause__ or error), "try again with a connection"
        raise FileNotFoundError(
            f"{name} is neither a folder here nor cached, and the Hugging Face Hub can't be reached ({reason}): "
            f"check the name, or {remedy}"
        ) from None
    except (errors.HfHubHTTPError, errors.LocalTokenNotFoundError, _http_error()) as error:
        if _status(error) in (401, 403) or isinstance(error, errors.LocalTokenNotFoundError):
            raise _not_allowed(name) from None
        raise ConnectionError(
            f"the Hugging Face Hub can't be used for {name} ({_reason(error)}): try again later"
        ) from None


def _http_error() -> type[Exception]:
    """Return the base class of errors of the HTTP library, which are raised without a connection."""
    from huggingface_hub import errors

    return errors.HfHubHTTPError.__bases__[0]


def _not_allowed(name: str) -> PermissionError:
    return PermissionError(f"the Hugging Face Hub doesn't allow this for {name}: {_LOGIN}")


def _status(error: BaseException | None) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _reason(error: BaseException) -> str:
    status = _status(error)
    return type(error).__name__ if status is None else f"HTTP status {status}"
