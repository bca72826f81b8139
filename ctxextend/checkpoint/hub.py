"""Downloads of models on the Hub, and messages for their errors."""

import glob
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ctxextend.checkpoint.safetensors_file import MAX_HEADER_BYTES, RemoteFile, refuse_header
from ctxextend.errors import CtxextendError, SourceError, one_line

FIRST_BYTES = 1 << 18  # more than nearly all headers have
RETRIES = 2  # of reading the start of a file, after a second and two more
LOGIN = "run `hf auth login`, or set HF_TOKEN"
RETRY = "Run the same command again (complete files are kept)"
FAILED = "{id} could not be downloaded from the Hub: {reason}."
# Messages and hints by exception classes, HTTP statuses, or ``errno`` for errors of the system; the
# first match applies.
MESSAGES = {
    ("GatedRepoError",): (
        "{id} is a gated model on the Hub, and this account has no access.",
        f"Request access on its page, then {LOGIN}.",
    ),
    ("RevisionNotFoundError",): (
        "{id} has no revision {revision!r} on the Hub.",
        "Check its branches and tags.",
    ),
    ("RepositoryNotFoundError",): (
        "{id} was not found: no local folder, and no Hub model that this account can access.",
        f"Check the spelling; for a private model, {LOGIN}.",
    ),
    ("OfflineModeIsEnabled",): (
        "{id} is not a local folder, and not in the Hub cache.",
        "HF_HUB_OFFLINE disables downloads: unset it, or pass a local folder.",
    ),
    ("HTTP 401", "HTTP 403"): (
        FAILED,
        f"This account or token has no access. For a private model, {LOGIN}; a fine-grained token "
        "needs read access to it.",
    ),
    ("ConnectError", "ProxyError", "TimeoutException", "UnsupportedProtocol", "InvalidURL"): (
        "{id} is not a local folder, and the Hub could not be reached: {reason}.",
        f"Check the connection, HF_ENDPOINT, HTTPS_PROXY and SSL_CERT_FILE. {RETRY}.",
    ),
    ("errno",): (FAILED, "Free space in the Hub cache, or set HF_HOME to another folder."),
}
OTHER_HINT = (
    f"{RETRY}, after some minutes if the Hub failed (https://status.huggingface.co) or refused too "
    "many requests. A proxy or a network's login page may have answered instead of the Hub: check "
    "HF_ENDPOINT and HTTPS_PROXY."
)


def download(
    repo: str,
    revision: str | None,
    file: str,
    choose: Callable[[list[str]], list[str]],
    check: Callable[[Path], None],
) -> tuple[Path, list[str]]:
    """Download files of a Hub model into huggingface_hub's cache.

    Args:
        repo: The Hub id.
        revision: A branch, tag or commit; None is the default branch.
        file: The config, which is downloaded first.
        choose: Selects the files to download, given the names of all files.
        check: Is called with the path of the config, and may raise.

    Returns:
        The folder in the cache, and the names of all files of the repository; none if the Hub
        cannot be reached but its cache has the config.

    Raises:
        SourceError: The model does not exist or cannot be downloaded.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    with _hub_errors(repo, revision):
        try:
            siblings = HfApi().model_info(repo, revision=revision).siblings
        except (RepositoryNotFoundError, RevisionNotFoundError):
            raise
        except Exception:
            with suppress(Exception):
                cached = snapshot_download(
                    repo, revision=revision, allow_patterns=file, local_files_only=True
                )
                return Path(cached), []
            raise
        files = [item.rfilename for item in siblings or ()]
        if file in files:
            folder = snapshot_download(repo, revision=revision, allow_patterns=glob.escape(file))
            check(Path(folder) / file)
        chosen = [glob.escape(name) for name in choose(files)]
        folder = snapshot_download(repo, revision=revision, allow_patterns=chosen)
    return Path(folder), files


def open_remote(repo: str, revision: str | None, name: str, path: Path) -> RemoteFile:
    """Open a safetensors file on the Hub: download its header, and as little else as possible.

    A resize of settings, and all that headers tell, needs no values.

    Args:
        repo: The Hub id.
        revision: A branch, tag or commit; None is the default branch.
        name: The name of the file in the repository.
        path: Where a download would put the file.

    Raises:
        SourceError: It cannot be downloaded.
        CheckpointError: The header is malformed.
    """
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(repo, name, revision=revision)
    with _hub_errors(repo, revision):
        start = _read_start(url, FIRST_BYTES)
        end = 8 + int.from_bytes(start[:8], "little")
        if len(start) < end <= MAX_HEADER_BYTES:
            start = _read_start(url, end)
    if len(start) < end:
        refuse_header(path, "its header is truncated or too large")
    return RemoteFile.parse(path, start[8:end])


def _read_start(url: str, count: int) -> bytes:
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import hf_raise_for_status, http_stream_backoff

    headers = {**build_hf_headers(), "Range": f"bytes=0-{count - 1}"}
    with http_stream_backoff("GET", url, max_retries=RETRIES, headers=headers) as response:
        hf_raise_for_status(response)
        # Only the first part, since the rest of the file follows if the server ignores the range.
        return next(response.iter_bytes(count), b"")


@contextmanager
def _hub_errors(repo: str, revision: str | None) -> Iterator[None]:
    """Raise the first of `MESSAGES` that fits for an exception of huggingface_hub."""
    try:
        yield
    except CtxextendError:
        raise
    # Those of huggingface_hub and HTTP, and any error from a malformed response.
    except Exception as error:
        kinds = set[str]()  # classes of the error and its causes, and HTTP statuses
        root: BaseException = error
        cause: BaseException | None = error
        while cause is not None:
            root = cause
            kinds |= {kind.__name__ for kind in type(root).__mro__}
            if getattr(root, "errno", None) is not None:
                kinds.add("errno")
            response = getattr(root, "response", None)
            if response is not None:
                kinds.add(f"HTTP {response.status_code}")
            cause = root.__cause__
        reason = (one_line(root) or type(root).__name__).rstrip(".")
        message, hint = FAILED, OTHER_HINT
        for names, texts in MESSAGES.items():
            if kinds.intersection(names):
                message, hint = texts
                break
        message = message.format(id=repo, revision=revision, reason=reason)
        raise SourceError(message, hint) from error
