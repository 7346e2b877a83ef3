"""Networks on the Hugging Face Hub, through huggingface_hub: download them to its cache, upload them in one commit."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fastcaps._extras import require
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
_LOGIN = "log in with hf auth login, or set HF_TOKEN"


def is_hub_name(name: str | Path) -> bool:
    """Return whether a name is that of a repository, ``user/name``: neither it nor a folder ``user`` exists here."""
    path = Path(name)
    return _NAME.fullmatch(path.as_posix()) is not None and not path.exists() and not path.parent.exists()


def repository(folder: Path) -> str | None:
    """Return the name of the repository that a folder of the cache was downloaded from; None for any other folder."""
    parts = folder.parts[-3:]
    if len(parts) < 3 or parts[1] != "snapshots" or not parts[0].startswith("models--"):
        return None
    return parts[0].removeprefix("models--").replace("--", "/", 1)


def download(name: str, revision: str | None = None, *, exported: bool = False) -> Path:
    """Return the folder of a repository's files in the cache; download what is missing or has changed.

    Args:
        name: of the repository, ``user/name``.
        revision: branch, tag or commit.
        exported: only what is needed to run the exported file.
    """
    require(f"loading {name} from the Hugging Face Hub (there is no such folder here)", "huggingface_hub")
    from huggingface_hub import snapshot_download

    with _one_sentence(name, revision):
        folder = Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(EXPORTED_FILES if exported else FILES),
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

    Args:
        name: of the repository, ``user/name``.
        files: their contents by path in the repository.
        card: written if the repository has none yet.
        message: of the commit.
        private: whether a new repository is private; by default as the account says.
        token: of an account that may write; by default that of ``hf auth login`` or ``$HF_TOKEN``.
    """
    require("push_to_hub", "huggingface_hub")
    from huggingface_hub import CommitOperationAdd, HfApi

    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of a repository: expected one such as user/name")
    api = HfApi(token=token, library_name="fastcaps", library_version=__version__)
    with _one_sentence(name, None):
        address = api.create_repo(name, private=private, exist_ok=True)
        if not api.file_exists(name, CARD):
            files = {**files, CARD: card}
        operations = [CommitOperationAdd(path, content) for path, content in files.items()]
        api.create_commit(name, operations, commit_message=message or "Upload a network of fastcaps")
    return str(address)


@contextmanager
def _one_sentence(name: str, revision: str | None) -> Iterator[None]:
    """Say in one sentence why a repository can't be used."""
    from huggingface_hub import errors

    # Without a connection the HTTP library's own errors come through; their base is one of this class.
    http_error: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
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
        if isinstance(error.__cause__, errors.OfflineModeIsEnabled):
            reason, remedy = "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"
        else:
            reason, remedy = _reason(error.__cause__ or error), "try again with a connection"
        raise FileNotFoundError(
            f"{name} is neither a folder here nor cached, and the Hugging Face Hub can't be reached ({reason}): "
            f"check the name, or {remedy}"
        ) from None
    except (errors.HfHubHTTPError, errors.LocalTokenNotFoundError, http_error) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403) or isinstance(error, errors.LocalTokenNotFoundError):
            raise PermissionError(f"the Hugging Face Hub doesn't allow this for {name}: {_LOGIN}") from None
        raise ConnectionError(
            f"the Hugging Face Hub can't be used for {name} ({_reason(error)}): try again later"
        ) from None


def _reason(error: BaseException) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return type(error).__name__ if status is None else f"HTTP status {status}"
