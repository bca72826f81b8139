"""Models of the Hub, fetched into the cache of its client, and what its errors mean."""

import glob
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ctxextend.errors import CtxextendError, OutputError, SourceError

LOGIN = "run `hf auth login`, or set HF_TOKEN"
LOGS = "runs"  # a folder of what other programs log of a training: paths and names of the machine
AGAIN = "Run the same command again (files that were fetched whole are kept)"
FAILED = "{id} could not be fetched from the Hub: "
# What went wrong, and what to do next, by the name of the error or by the answer's status; the first that fits holds.
EXPLAINED = {
    "GatedRepoError": (
        "Access to {id} on the Hub is restricted, and this account was not let in.",
        f"Ask for access on its page, then {LOGIN}.",
    ),
    "RevisionNotFoundError": ("{id} has no revision {revision!r} on the Hub.", "Check its branches and tags."),
    "RepositoryNotFoundError": (
        "There is no folder {id} here, and no model {id} on the Hub that this account may see.",
        f"Check the spelling; for a private model {LOGIN}.",
    ),
    "RemoteEntryNotFoundError": (
        "{id} lists a file that the Hub does not hold: {said}.",
        f"It may have been changed meanwhile. {AGAIN}, or name a commit with --revision.",
    ),
    "OfflineModeIsEnabled": (
        "There is no folder {id} here, and the Hub's cache does not hold it.",
        "HF_HUB_OFFLINE forbids to fetch it: unset that, or name a local folder.",
    ),
    **dict.fromkeys(
        ("HTTP 401", "HTTP 403"),
        (
            FAILED + "it is refused to this account or token ({said}).",
            f"For what is not public {LOGIN}; a fine-grained token must be allowed to read it.",
        ),
    ),
    "HTTP 429": (FAILED + "too many requests were made ({said}).", f"Wait a few minutes. {AGAIN}."),
    "HTTP 5xx": (FAILED + "the Hub failed ({said}).", f"Wait, and see https://status.huggingface.co. {AGAIN}."),
    "HTTP 4xx": (FAILED + "the Hub refused the request ({said}).", f"Check HF_ENDPOINT if it is set. {AGAIN}."),
    **dict.fromkeys(
        ("ConnectError", "ProxyError", "TimeoutException", "UnsupportedProtocol", "InvalidURL"),
        (
            FAILED + "the Hub could not be reached: {said}.",
            f"Check the connection, HF_ENDPOINT, HTTPS_PROXY and SSL_CERT_FILE. {AGAIN}.",
        ),
    ),
    "errno": (FAILED + "{said}.", "Make room in the Hub's cache, or name another place: HF_HOME."),
    "Exception": (
        FAILED + "{said}.",
        f"{AGAIN}. A proxy or a network's login page may have answered in the Hub's place: open "
        "https://huggingface.co in a browser, and check HF_ENDPOINT and HTTPS_PROXY.",
    ),
}


def fetch(
    hub_id: str,
    revision: str | None,
    config: str,
    choose: Callable[[list[str]], list[str]],
    check: Callable[[Path], None],
) -> tuple[Path, list[str]]:
    """Fetch those of a model's files that are chosen from all of them; return its folder, and the names of all.

    The file `config` comes first, for `check` to refuse. If the Hub cannot be asked, its cache may do, without names.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        try:
            siblings = HfApi().model_info(hub_id, revision=revision).siblings
        except (RepositoryNotFoundError, RevisionNotFoundError):
            raise
        except Exception as error:
            with suppress(Exception):
                kept = snapshot_download(hub_id, revision=revision, allow_patterns=config, local_files_only=True)
                return Path(kept), []
            raise error
        files = [sibling.rfilename for sibling in siblings or []]
        if siblings is not None and all(name.startswith(".git") for name in files):
            raise SourceError(f"The repository {hub_id} on the Hub is empty.", "Check its page for other branches.")
        if config in files:
            check(Path(snapshot_download(hub_id, revision=revision, allow_patterns=glob.escape(config))) / config)
        chosen = [glob.escape(name) for name in choose(files)]
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=chosen)), files
    except CtxextendError:
        raise
    except Exception as error:  # the client's, that of HTTP, and what a malformed answer makes of either
        kinds, said = _reasons(error)
        kinds |= {"errno"} if isinstance(error, OSError) and error.errno is not None else set()
        message, hint = next(words for kind, words in EXPLAINED.items() if kind in kinds)
        raise SourceError(message.format(id=hub_id, revision=revision, said=said), hint) from error


def push_folder(folder: Path, repo_id: str, texts: Mapping[str, bytes]) -> str:
    """Upload a folder but `LOGS`, with `texts` in place of its files, to a repository, perhaps new; return its URL."""
    from huggingface_hub import CommitOperationAdd, HfApi

    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    shared = (name for name in names if not name.startswith(f"{LOGS}/"))
    added = [CommitOperationAdd(name, texts.get(name, folder / name)) for name in shared]
    try:
        repo = HfApi().create_repo(repo_id, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a card needs no metadata
            HfApi().create_commit(repo.repo_id, added, commit_message="Upload a checkpoint made by ctxextend")
    except Exception as error:  # as in `fetch`
        kinds, said = _reasons(error)
        refused = "the token may not write there: " if kinds & {"HTTP 401", "HTTP 403"} else ""
        hint = f"Check the connection and HF_ENDPOINT, and {LOGIN}. {folder} is complete and stays."
        raise OutputError(f"{repo_id} could not be pushed to the Hub: {refused}{said}.", hint) from error
    return str(repo)


def _reasons(error: Exception) -> tuple[set[str], str]:
    """Return the kinds of an error and of its causes, which the client wraps, and what the first cause says."""
    kinds = set[str]()
    cause: BaseException | None = error
    while cause is not None:
        kinds |= {kind.__name__ for kind in type(cause).__mro__}
        said = (str(cause).strip().splitlines() or [type(cause).__name__])[0][:400].rstrip(".")
        if (response := getattr(cause, "response", None)) is not None:
            kinds |= {f"HTTP {response.status_code}", f"HTTP {response.status_code // 100}xx"}
        cause = cause.__cause__
    return kinds, said
