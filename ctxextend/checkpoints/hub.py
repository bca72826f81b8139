"""Models of the Hub: fetched into the cache of its client, and looked at before they are believed."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ctxextend.checkpoints.hubfailures import explain, quoted, wait_asked
from ctxextend.checkpoints.redaction import redacted_logs
from ctxextend.errors import CtxextendError, SourceError

__all__ = ["asking", "fetch", "listed"]

# In seconds: the client asks again six times, and waits between as long as it is told to.
LONGEST_WAIT = 10
MEBIBYTE = 1 << 20


def fetch(hub_id: str, revision: str | None, wanted: list[str] | None, skipped: list[str]) -> Path:
    """Fetch files of a model, those that are not in the cache yet, and return its folder there.

    Args:
        hub_id: Its name on the Hub.
        revision: A branch, tag or commit; None is its main branch.
        wanted: Patterns of the files to fetch; None is all.
        skipped: Patterns of the files to leave out.

    Raises:
        SourceError: It is not there, cannot be reached, is not permitted, or did not arrive as the Hub says it is.
    """
    from huggingface_hub import snapshot_download

    before = _blobs(hub_id)
    with _explained(hub_id, revision), _bars_on_terminals_only(), asking():
        try:
            return Path(
                snapshot_download(hub_id, revision=revision, allow_patterns=wanted, ignore_patterns=skipped or None)
            )
        finally:  # what came whole before a connection broke is kept, and taken for sound ever after
            _check(hub_id, _blobs(hub_id) - before)


def listed(hub_id: str, revision: str | None) -> list[str]:
    """Return the files of a model; none where the Hub cannot be asked, since all that is needed is here."""
    from huggingface_hub import HfApi

    try:
        with asking():
            siblings = HfApi().model_info(hub_id, revision=revision).siblings  # asked once; the tree, over and over
            return [sibling.rfilename for sibling in siblings or ()]
    except Exception:  # each way to fail has its own
        return []


@contextmanager
def asking(longest_wait: int = LONGEST_WAIT, give_up: Callable[[Any], None] | None = None) -> Iterator[None]:
    """Have the client neither wait for ever nor log a secret.

    Args:
        longest_wait: Seconds that a server may have it wait before it asks again.
        give_up: What raises where a server asks for longer; by default, what the client raises for the answer.
    """
    from huggingface_hub import constants, get_session
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    def limit(request: Any) -> None:
        """Set a time limit where the client sets none: it asks for models without."""
        limits = request.extensions.get("timeout", {})
        least = constants.HF_HUB_ETAG_TIMEOUT
        request.extensions["timeout"] = {name: seconds or least for name, seconds in limits.items()}

    def refuse(answer: Any) -> None:
        if answer.status_code >= 400 and wait_asked(answer) > longest_wait:
            (give_up or hf_raise_for_status)(answer)

    hooks = get_session().event_hooks
    hooks["request"].append(limit)
    hooks["response"].append(refuse)
    try:
        with redacted_logs():
            yield
    finally:
        hooks["request"].remove(limit)
        hooks["response"].remove(refuse)


@contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
    """Silence the client's progress bars where stderr is a pipe."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if sys.stderr.isatty() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


# ---- what arrived


def _cached(hub_id: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser() / f"models--{hub_id.replace('/', '--')}"


def _blobs(hub_id: str) -> set[Path]:
    """Return the files that the cache holds of a model: each has the hash as its name that the Hub states."""
    folder = _cached(hub_id) / "blobs"
    return {path for path in folder.glob("*") if path.suffix != ".incomplete" and path.is_file()}


def _check(hub_id: str, arrived: set[Path]) -> None:
    """Remove what is not what the Hub says it is; the client itself looks at sizes alone.

    Raises:
        SourceError: There was such a file.
    """
    wrong = sorted(path for path in arrived if not _is_sound(path))
    for path in arrived:
        for left in path.parent.glob(f"{path.name}.*.incomplete"):  # by a process that was killed
            left.unlink(missing_ok=True)
    if not wrong:
        return
    names = ", ".join(_names(hub_id, set(wrong)))
    for path in wrong:
        path.unlink()
    raise SourceError(
        f"{names} of {hub_id} did not arrive as the Hub has it: the content has another hash than the Hub states.",
        "It was removed from the Hub's cache; run the same command again to fetch it anew. If it goes on, something"
        " between here and the Hub changes what is sent: a proxy, a mirror (HF_ENDPOINT), a scanner.",
    )


def _is_sound(blob: Path) -> bool:
    """Whether a file's content has the hash that is its name: a SHA-256, or git's SHA-1 and that of some mirrors."""
    import hashlib

    if len(blob.name) == 64:
        return _digest(blob, hashlib.sha256()) == blob.name
    if len(blob.name) != 40:
        return True  # a mirror's own
    as_git_does = hashlib.sha1(b"blob %d\0" % blob.stat().st_size)
    return blob.name in (_digest(blob, as_git_does), _digest(blob, hashlib.sha1()))


def _digest(path: Path, hashed: Any) -> str:
    with path.open("rb") as file:
        while piece := file.read(MEBIBYTE):
            hashed.update(piece)
    return str(hashed.hexdigest())


def _names(hub_id: str, blobs: set[Path]) -> list[str]:
    """Return what files are called in the repository; by their hashes where no link leads to them."""
    snapshots = _cached(hub_id) / "snapshots"
    real = {path.resolve() for path in blobs}
    links = (path for path in snapshots.glob("*/**/*") if path.is_file() and path.resolve() in real)
    names = {path.relative_to(snapshots).as_posix().partition("/")[2] for path in links}
    return sorted(names or {path.name for path in blobs})


# ---- what went wrong


@contextmanager
def _explained(hub_id: str, revision: str | None) -> Iterator[None]:
    """Turn what the Hub's client raises into what the user should do."""
    from huggingface_hub import errors

    try:
        yield
    except CtxextendError:
        raise
    except errors.GatedRepoError as error:
        raise SourceError(
            f"Access to {hub_id} on the Hub is restricted, and this account was not let in.",
            f"Ask for access on its page, then run `hf auth login` or set HF_TOKEN.{quoted(error)}",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise SourceError(
            f"{hub_id} has no revision {revision!r} on the Hub.", "Check its branches and tags."
        ) from error
    except errors.RepositoryNotFoundError as error:
        words = quoted(error) if "authorization" in error.response.request.headers else ""  # of the token, say
        raise SourceError(
            f"There is no folder {hub_id} here, and no model {hub_id} on the Hub that this account may see.",
            f"Check the spelling; for a private model run `hf auth login` or set HF_TOKEN.{words}",
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        missing = error.response.request.url.path.partition("/resolve/")[2].partition("/")[2]
        raise SourceError(
            f"{hub_id} lists a file that the Hub does not hold: {missing}.",
            "It may have been changed meanwhile: run the same command again, or name a commit with --revision.",
        ) from error
    except Exception as error:  # the client's, that of HTTP, and what a malformed answer makes of either
        raise _failure(hub_id, error) from error


def _failure(hub_id: str, error: Exception) -> SourceError:
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    if isinstance(error.__cause__, OfflineModeIsEnabled):
        return SourceError(
            f"There is no folder {hub_id} here, and the Hub's cache does not hold it.",
            "HF_HUB_OFFLINE forbids to fetch it: unset that, or name a local folder.",
        )
    found, hint = explain(error)
    hint = f"{hint} Files that were fetched whole are kept.{quoted(error)}"
    if isinstance(error, LocalEntryNotFoundError):
        return SourceError(f"There is no folder {hub_id} here, and {found}.", hint)
    return SourceError(f"{hub_id} could not be fetched from the Hub: {found}.", hint)
