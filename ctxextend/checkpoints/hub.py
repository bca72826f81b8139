"""Models of the Hub, fetched into the cache of its client, and what its errors mean."""

import sys
from collections.abc import Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from ctxextend.errors import SourceError

LOGIN = "run `hf auth login`, or set HF_TOKEN"
AGAIN = "Run the same command again"

# What an answer of the Hub means, and what to do next, by its status.
ANSWERS = {
    401: ("the Hub does not accept the token that it was sent", f"It is wrong or has expired: {LOGIN} to a valid one."),
    403: (
        "the Hub refuses it to this account or token",
        f"A fine-grained token must be allowed to read it: see https://huggingface.co/settings/tokens, then {LOGIN}.",
    ),
    404: ("the Hub has nothing at that address", "Check the spelling, and HF_ENDPOINT if it is set."),
    408: ("the Hub did not get the request in time", f"{AGAIN}."),
    429: (
        "the Hub answers no more for now, since too many requests were made",
        f"{AGAIN} in a few minutes. Who is logged in (`hf auth login`) may ask for more.",
    ),
}
NO_LOGIN = ("the Hub demands a login", f"For what is not public {LOGIN}.")
ITS_FAULT = (
    "the Hub failed",
    f"Nothing is wrong here. {AGAIN} in a few minutes; see https://status.huggingface.co.",
)
# What the client raises for answers that are not the Hub's.
NOT_UNDERSTOOD = (JSONDecodeError, AssertionError, AttributeError, LookupError, RecursionError, TypeError)
REFUSED = ("the Hub refused the request", f"{AGAIN}.")


def fetch(hub_id: str, revision: str | None, wanted: list[str] | None, skipped: list[str]) -> Path:
    """Fetch those files of a model that are not in the cache yet, and return its folder there.

    Args:
        hub_id: Its name on the Hub.
        revision: A branch, tag or commit; None is its main branch.
        wanted: Patterns of the files to fetch; None is all.
        skipped: Patterns of the files to leave out.

    Raises:
        SourceError: It does not exist, cannot be reached, or is not permitted.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    hides_bars = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if hides_bars:
        disable_progress_bars()
    try:
        return Path(
            snapshot_download(hub_id, revision=revision, allow_patterns=wanted, ignore_patterns=skipped or None)
        )
    except Exception as error:  # the client's, that of HTTP, and what a malformed answer makes of either
        raise _source_error(hub_id, revision, error) from error
    finally:
        if hides_bars:
            enable_progress_bars()


def list_files(hub_id: str, revision: str | None) -> list[str]:
    """Return the files of a model; none where the Hub cannot be asked, since all that is needed is here."""
    from huggingface_hub import HfApi

    try:
        siblings = HfApi().model_info(hub_id, revision=revision).siblings  # one request; the tree takes many
        return [sibling.rfilename for sibling in siblings or ()]
    except Exception:  # each way to fail has its own
        return []


def _source_error(hub_id: str, revision: str | None, error: Exception) -> SourceError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return SourceError(
            f"Access to {hub_id} on the Hub is restricted, and this account was not let in.",
            "Ask for access on its page, then run `hf auth login` or set HF_TOKEN.",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return SourceError(f"{hub_id} has no revision {revision!r} on the Hub.", "Check its branches and tags.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return SourceError(
            f"There is no folder {hub_id} here, and no model {hub_id} on the Hub that this account may see.",
            "Check the spelling; for a private model run `hf auth login` or set HF_TOKEN.",
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        missing = error.response.request.url.path.partition("/resolve/")[2].partition("/")[2]
        return SourceError(
            f"{hub_id} lists a file that the Hub does not hold: {missing}.",
            "It may have been changed meanwhile: run the same command again, or name a commit with --revision.",
        )
    if isinstance(error.__cause__, errors.OfflineModeIsEnabled):
        return SourceError(
            f"There is no folder {hub_id} here, and the Hub's cache does not hold it.",
            "HF_HUB_OFFLINE forbids to fetch it: unset that, or name a local folder.",
        )
    found, hint = _explain(error)
    hint = f"{hint} Files that were fetched whole are kept."
    if isinstance(error, errors.LocalEntryNotFoundError):
        return SourceError(f"There is no folder {hub_id} here, and {found}.", hint)
    return SourceError(f"{hub_id} could not be fetched from the Hub: {found}.", hint)


def _explain(error: BaseException) -> tuple[str, str]:
    """Return what went wrong, as the end of a sentence without its full stop, and what to do next."""
    from huggingface_hub.errors import FileMetadataError, OfflineModeIsEnabled

    chain = list(_with_causes(error))
    responses: Iterator[Any] = (getattr(each, "response", None) for each in chain)
    response = next((each for each in responses if hasattr(each, "status_code")), None)
    if response is not None:
        return _explain_status(response)
    for each in chain:
        # By name, for the client has changed its HTTP library several times.
        kinds = {kind.__name__ for kind in type(each).__mro__}
        said = (str(each).strip().splitlines() or [type(each).__name__])[0][:400].rstrip(".")
        if "[SSL" in said:  # which has no type of its own
            return (
                f"no secure connection to the Hub could be made: {said}",
                "Check HF_ENDPOINT and the clock; a proxy that opens connections needs its own certificate in"
                " SSL_CERT_FILE.",
            )
        if "ProxyError" in kinds:
            return f"the proxy failed: {said}", "Check HTTPS_PROXY and HTTP_PROXY, then run the same command again."
        if "TimeoutException" in kinds:
            hint = f"{AGAIN}; HF_HUB_ETAG_TIMEOUT=60 and HF_HUB_DOWNLOAD_TIMEOUT=60 wait longer."
            return "the Hub did not answer in time", hint
        if isinstance(each, OfflineModeIsEnabled):
            return "HF_HUB_OFFLINE forbids to fetch it", "Unset that, or name what is here."
        if kinds & {"ConnectError", "UnsupportedProtocol", "InvalidURL"}:
            return (
                f"the Hub could not be reached: {said}",
                "Check the connection, HF_ENDPOINT and HTTPS_PROXY, then run the same command again.",
            )
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:400].rstrip(".")
    if any(isinstance(each, (*NOT_UNDERSTOOD, FileMetadataError)) for each in chain):
        return (
            f"what answered does not speak as the Hub does: {said}",
            "A proxy or a network's login page may have answered in its place: open https://huggingface.co in a"
            " browser, and check HF_ENDPOINT.",
        )
    if isinstance(error, OSError) and error.errno is not None:
        return f"the Hub's cache cannot be written: {said}", "Make room there, or name another place: HF_HOME."
    return said, f"{AGAIN}, or check HF_ENDPOINT and HTTPS_PROXY."


def _explain_status(response: Any) -> tuple[str, str]:
    status = int(response.status_code)
    found, hint = ITS_FAULT if status >= 500 else ANSWERS.get(status, REFUSED)
    if status == 401 and "authorization" not in response.request.headers:
        found, hint = NO_LOGIN
    return f"{found} (HTTP {status})", hint


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what caused it: the client wraps what it meets."""
    while error is not None:
        yield error
        error = error.__cause__
