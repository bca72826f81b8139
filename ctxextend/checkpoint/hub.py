"""Downloads of models on the Hub, and messages for their errors."""

import glob
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ctxextend.checkpoint.safetensors_file import header_size
from ctxextend.errors import CtxextendError, SourceError, did_you_mean

FIRST_BYTES = 1 << 18  # more than nearly all headers have
RANGE_NOT_SATISFIABLE = 416  # status of a server for a range that it does not send
PAUSES = (0.5, 2.0)  # seconds between tries to read the start of a file
CHUNK_BYTES = 1 << 16
LOGIN = "run `hf auth login`, or set HF_TOKEN"
RETRY = "Run the same command again (complete files are kept)"
FAILED = "{id} could not be downloaded from the Hub: "
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
    ("RemoteEntryNotFoundError",): (
        "{id} lists a file that does not exist on the Hub: {reason}.",
        f"It may have changed in the meantime. {RETRY}, or pass a commit with --revision.",
    ),
    ("OfflineModeIsEnabled",): (
        "{id} is not a local folder, and not in the Hub cache.",
        "HF_HUB_OFFLINE disables downloads: unset it, or pass a local folder.",
    ),
    ("HTTP 401", "HTTP 403"): (
        FAILED + "this account or token has no access ({reason}).",
        f"For a private model, {LOGIN}; a fine-grained token needs read access to it.",
    ),
    ("HTTP 429",): (FAILED + "too many requests ({reason}).", f"Wait a few minutes. {RETRY}."),
    ("HTTP 5xx",): (
        FAILED + "the Hub failed ({reason}).",
        f"Wait, and check https://status.huggingface.co. {RETRY}.",
    ),
    ("HTTP 4xx",): (
        FAILED + "the Hub rejected the request ({reason}).",
        f"Check HF_ENDPOINT if it is set. {RETRY}.",
    ),
    ("ConnectError", "ProxyError", "TimeoutException", "UnsupportedProtocol", "InvalidURL"): (
        FAILED + "the Hub could not be reached: {reason}.",
        "Check the path (if local), the connection, HF_ENDPOINT, HTTPS_PROXY and SSL_CERT_FILE. "
        f"{RETRY}.",
    ),
    ("errno",): (
        FAILED + "{reason}.",
        "Free space in the Hub cache, or set HF_HOME to another folder.",
    ),
}
OTHER_MESSAGE = (
    FAILED + "{reason}.",
    f"{RETRY}. A proxy or a network's login page may have answered instead of the Hub: open "
    "https://huggingface.co in a browser, and check HF_ENDPOINT and HTTPS_PROXY.",
)


def download(
    repo: str,
    revision: str | None,
    file: str,
    choose: Callable[[list[str]], list[str]],
    check: Callable[[Path], None],
    similar: Sequence[str] = (),
) -> tuple[Path, list[str]]:
    """Download files of a Hub model into huggingface_hub's cache.

    Args:
        repo: The Hub id.
        revision: A branch, tag or commit; None is the default branch.
        file: The config, which is downloaded first.
        choose: Selects the files to download, given the names of all files.
        check: Is called with the path of the config, and may raise.
        similar: What a user may have meant instead of the id.

    Returns:
        The folder in the cache, and the names of all files of the repository; none if the Hub
        cannot be reached but its cache has the config.

    Raises:
        SourceError: The model does not exist, is empty, or cannot be downloaded.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        try:
            siblings = HfApi().model_info(repo, revision=revision).siblings
            files = [item.rfilename for item in siblings or ()]
            if siblings is not None and all(name.startswith(".git") for name in files):
                message = f"The repository {repo} on the Hub is empty."
                raise SourceError(message, "Check its page for other branches.")
        except (CtxextendError, RepositoryNotFoundError, RevisionNotFoundError):
            raise
        except Exception:
            with suppress(Exception):
                cached = snapshot_download(
                    repo, revision=revision, allow_patterns=file, local_files_only=True
                )
                return Path(cached), []
            raise
        if file in files:
            folder = snapshot_download(repo, revision=revision, allow_patterns=glob.escape(file))
            check(Path(folder) / file)
        chosen = [glob.escape(name) for name in choose(files)]
        folder = snapshot_download(repo, revision=revision, allow_patterns=chosen)
    except CtxextendError:
        raise
    # Those of huggingface_hub and HTTP, and any error from a malformed response.
    except Exception as error:
        _refuse(error, repo, revision, similar)
    return Path(folder), files


class _NoStartError(Exception):
    """A server does not send the start of a file, with its size."""


def download_header(
    repo: str, revision: str | None, name: str, path: Path
) -> tuple[bytes, int] | None:
    """Read the header of a safetensors file on the Hub, and as little else as possible.

    Args:
        repo: The Hub id.
        revision: A branch, tag or commit; None is the default branch.
        name: The name of the file in the repository.
        path: Where a download would put the file, for errors.

    Returns:
        The header without its length, and the size of the file; None if the server does not state
        that, or cuts the start of the file.

    Raises:
        SourceError: It cannot be downloaded.
        CheckpointError: The file is smaller than its header, or the header is too large.
    """
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(repo, name, revision=revision)
    try:
        start, size = _read_start_patiently(url, FIRST_BYTES)
        length = 8 + header_size(path, start[:8], size)
        if len(start) < length:
            start, size = _read_start_patiently(url, length)
    except CtxextendError:
        raise
    except _NoStartError:
        return None
    except Exception as error:  # as in `download`
        _refuse(error, repo, revision)
    if len(start) < length:
        return None
    return start[8:length], size


def _read_start_patiently(url: str, count: int) -> tuple[bytes, int]:
    for pause in PAUSES:
        try:
            return _read_start(url, count)
        except _NoStartError:
            raise
        except Exception:  # huggingface_hub raises many kinds
            time.sleep(pause)
    return _read_start(url, count)


def _read_start(url: str, count: int) -> tuple[bytes, int]:
    """Return the first bytes of a file, and its size; a server may not support ranges."""
    from huggingface_hub import get_session
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import hf_raise_for_status

    headers = build_hf_headers()
    headers |= {"Range": f"bytes=0-{count - 1}", "Accept-Encoding": "identity"}
    data = bytearray()
    with get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
        if response.status_code == RANGE_NOT_SATISFIABLE:
            raise _NoStartError
        hf_raise_for_status(response)
        for chunk in response.iter_bytes(CHUNK_BYTES):
            data += chunk
            if len(data) >= count:  # without ranges, the rest of the file would follow
                break
        stated = response.headers.get("Content-Range", "").rpartition("/")[2]
        stated = stated or response.headers.get("Content-Length", "")
        if not stated.isdecimal():
            raise _NoStartError
    return bytes(data[:count]), int(stated)


def _refuse(
    error: Exception, repo: str, revision: str | None, similar: Sequence[str] = ()
) -> NoReturn:
    """Raise the error for an exception of huggingface_hub: the first of `MESSAGES` that fits."""
    # Names of classes of the error and its causes, and HTTP statuses: ``HTTP 404``, ``HTTP 4xx``.
    kinds = set[str]()
    cause: BaseException | None = error
    root: BaseException = error
    while cause is not None:
        kinds |= {kind.__name__ for kind in type(cause).__mro__}
        response = getattr(cause, "response", None)
        if response is not None:
            status = response.status_code
            kinds |= {f"HTTP {status}", f"HTTP {status // 100}xx"}
        root = cause
        cause = cause.__cause__
    lines = str(root).strip().splitlines() or [type(root).__name__]
    reason = lines[0][:400].rstrip(".")
    if isinstance(error, OSError) and error.errno is not None:
        kinds.add("errno")
    message, hint = OTHER_MESSAGE
    for names, texts in MESSAGES.items():
        if kinds.intersection(names):
            message, hint = texts
            break
    meant = did_you_mean(repo, similar)
    if meant:
        hint = f"{meant} {hint}"
    raise SourceError(message.format(id=repo, revision=revision, reason=reason), hint) from error
