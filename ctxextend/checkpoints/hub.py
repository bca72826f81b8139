"""Downloads from the Hub through huggingface_hub's cache, uploads, and messages for their
errors.
"""

import glob
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ctxextend.errors import CtxextendError, OutputError, SourceError

LOGIN = "run `hf auth login`, or set HF_TOKEN"
LOGS = "runs"  # TensorBoard logs, which contain local paths and the host name
RETRY = "Run the same command again (complete files are kept)"
FAILED = "{id} could not be downloaded from the Hub: "
MESSAGES = {  # and hints by exception classes or HTTP statuses; the first match applies
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
    ("Exception",): (
        FAILED + "{reason}.",
        f"{RETRY}. A proxy or a network's login page may have answered instead of the Hub: open "
        "https://huggingface.co in a browser, and check HF_ENDPOINT and HTTPS_PROXY.",
    ),
}


def download(
    repo: str,
    revision: str | None,
    file: str,
    choose: Callable[[list[str]], list[str]],
    check: Callable[[Path], None],
) -> tuple[Path, list[str]]:
    """Download the files of a Hub model that `choose` selects; return the local folder and all file
    names.

    Its config, `file`, is downloaded first; `check` may reject it. If a request fails, return the
    cached folder only.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        try:
            siblings = HfApi().model_info(repo, revision=revision).siblings
        except (RepositoryNotFoundError, RevisionNotFoundError):
            raise
        except Exception as error:
            with suppress(Exception):
                return Path(
                    snapshot_download(
                        repo, revision=revision, allow_patterns=file, local_files_only=True
                    )
                ), []
            raise error
        files = [item.rfilename for item in siblings or []]
        if siblings is not None and all(name.startswith(".git") for name in files):
            raise SourceError(
                f"The repository {repo} on the Hub is empty.", "Check its page for other branches."
            )
        if file in files:
            check(
                Path(snapshot_download(repo, revision=revision, allow_patterns=glob.escape(file)))
                / file
            )
        chosen = [glob.escape(name) for name in choose(files)]
        return Path(snapshot_download(repo, revision=revision, allow_patterns=chosen)), files
    except CtxextendError:
        raise
    except (
        Exception
    ) as error:  # errors of huggingface_hub and HTTP, and any error from a malformed response
        kinds, reason = _error_kinds(error)
        kinds |= {"errno"} if isinstance(error, OSError) and error.errno is not None else set()
        message, hint = next(
            texts for names, texts in MESSAGES.items() if kinds.intersection(names)
        )
        raise SourceError(
            message.format(id=repo, revision=revision, reason=reason), hint
        ) from error


def push_folder(folder: Path, repo_id: str, texts: Mapping[str, bytes]) -> str:
    """Upload a folder except `LOGS`, with `texts` replacing files by name, to a Hub repository;
    return its URL.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    uploaded = (name for name in names if not name.startswith(f"{LOGS}/"))
    operations = [CommitOperationAdd(name, texts.get(name, folder / name)) for name in uploaded]
    try:
        repo = HfApi().create_repo(repo_id, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the client warns about cards without metadata
            HfApi().create_commit(
                repo.repo_id, operations, commit_message="Upload checkpoint created with ctxextend"
            )
    except Exception as error:  # as in `download`
        kinds, reason = _error_kinds(error)
        denied = "the token has no write access: " if kinds & {"HTTP 401", "HTTP 403"} else ""
        hint = (
            f"Check the connection and HF_ENDPOINT, and {LOGIN}. The local folder {folder} is "
            "complete."
        )
        raise OutputError(
            f"{repo_id} could not be pushed to the Hub: {denied}{reason}.", hint
        ) from error
    return str(repo)


def _error_kinds(error: Exception) -> tuple[set[str], str]:
    """Return the classes and HTTP statuses of an error and its causes, and the message of the root
    cause.
    """
    kinds = set[str]()
    cause: BaseException | None = error
    while cause is not None:
        kinds |= {kind.__name__ for kind in type(cause).__mro__}
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0][:400].rstrip(".")
        if (response := getattr(cause, "response", None)) is not None:
            kinds |= {f"HTTP {response.status_code}", f"HTTP {response.status_code // 100}xx"}
        cause = cause.__cause__
    return kinds, reason
