"""From what a user types to a folder on this machine."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, TypeVar

from ctxextend.checkpoints.filenames import NOT_FETCHED
from ctxextend.checkpoints.jsontext import load_object
from ctxextend.errors import CheckpointError, SourceError

__all__ = ["BUNDLED", "Source", "bundled_source", "pickles_alone", "resolve_source"]

T = TypeVar("T")

BUNDLED_FOLDER = Path(__file__).resolve().parents[1] / "bundled"

# The checkpoints that ship with the package, by the name that users type.
BUNDLED = {"tiny-gpt2": BUNDLED_FOLDER / "tiny_gpt2"}

HUB_ID = re.compile(r"(?:[\w][\w.-]*/)?[\w][\w.-]*")
CACHE_SNAPSHOT = re.compile(r"models--(?P<id>[^/]+)/snapshots/(?P<sha>[0-9a-f]{40})$")


@dataclass(frozen=True)
class Source:
    """A checkpoint's folder and where it came from.

    Attributes:
        reference: What the user typed.
        kind: ``folder``, ``bundled`` or ``hub``.
        folder: The folder on this machine.
        name: A short name for outputs: the last part of the reference.
        hub_id: The Hub's ``owner/name`` where the source is known to be one; else None.
        revision: The Hub's commit hash where it is known; else None.
        notes: Lines that the user should read, about how the reference was understood.
        not_fetched: Files of the Hub's repository that were not downloaded; empty where it could not be asked.
    """

    reference: str
    kind: Literal["folder", "bundled", "hub"]
    folder: Path
    name: str
    hub_id: str | None = None
    revision: str | None = None
    notes: tuple[str, ...] = ()
    not_fetched: tuple[str, ...] = ()


def resolve_source(reference: str | os.PathLike[str], revision: str | None = None) -> Source:
    """Find the folder that a reference stands for; a local folder wins, then a bundled name, then the Hub.

    Args:
        reference: A folder, the name of a bundled checkpoint, or a Hub id, downloaded into huggingface_hub's cache.
        revision: A branch, tag or commit of the Hub; refused elsewhere.

    Raises:
        SourceError: Nothing is there, it cannot be reached, or access is not granted.
    """
    text = os.fspath(reference)
    try:
        return _resolve(text, revision)
    except OSError as error:
        raise SourceError(f"{text} cannot be read: {error}.", "Check the path and its permissions.") from error


def _resolve(text: str, revision: str | None) -> Source:
    path = Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for unknown users
    if text and path.is_dir():
        _refuse_revision(revision, f"the local folder {text}")
        return _local(text, path)
    if text in BUNDLED:
        _refuse_revision(revision, f"the bundled checkpoint {text}")
        return bundled_source(text)
    if text and path.exists():
        raise SourceError(f"{text} is a file.", f"Name the folder that holds it: {path.parent}.")
    if not HUB_ID.fullmatch(text):
        raise SourceError(
            f"There is no folder {text}.", "Name a checkpoint's folder, or a model of the Hub (owner/name)."
        )
    return _download(text, revision)


def bundled_source(name: str) -> Source:
    """Return a checkpoint that ships with the package, whatever folder of that name there may be."""
    return Source(name, "bundled", BUNDLED[name], name)


def _refuse_revision(revision: str | None, what: str) -> None:
    if revision is not None:
        raise SourceError(f"--revision {revision} has no meaning for {what}.", "Leave it out, or name a Hub id.")


def _local(reference: str, path: Path) -> Source:
    folder = path.resolve()
    cached = CACHE_SNAPSHOT.search(folder.as_posix())
    if cached:
        hub_id = cached["id"].replace("--", "/")
        return Source(reference, "folder", folder, hub_id.split("/")[-1], hub_id, cached["sha"])
    notes: tuple[str, ...] = ()
    if HUB_ID.fullmatch(reference):
        other = "the bundled checkpoint" if reference in BUNDLED else "a model of the Hub"
        notes = (f"{reference} is a local folder here, and it wins over {other} of that name.",)
    return Source(reference, "folder", folder, folder.name or "model", notes=notes)


def pickles_alone(where: str, reference: str, name: str, config: Mapping[str, Any]) -> CheckpointError:
    """Return the error for a checkpoint without safetensors, with the command that converts it.

    Args:
        where: The folder or Hub id, for the message.
        reference: What transformers loads it by.
        name: A short name for the converted folder.
        config: Its config.json, which names its class.
    """
    stated = config.get("architectures")
    first = stated[0] if isinstance(stated, list) and stated else None
    # The name stands in a command that people paste, and a stranger wrote it.
    model_class = first if isinstance(first, str) and first.isidentifier() and first.isascii() else "AutoModel"
    load = f"transformers.{model_class}.from_pretrained({reference!r})"
    code = f"import transformers; {load}.save_pretrained({f'{name}-safetensors'!r})"
    return CheckpointError(
        f"{where} holds its weights as pytorch_model.bin alone, and ctxextend reads safetensors.",
        f"Convert it first: python -c {shlex.quote(code)}",
    )


def _download(hub_id: str, revision: str | None) -> Source:
    from huggingface_hub import snapshot_download

    name = hub_id.split("/")[-1]
    with _bars_on_terminals_only():
        folder = Path(
            _explained(
                lambda: snapshot_download(hub_id, revision=revision, ignore_patterns=NOT_FETCHED), hub_id, revision
            )
        )
    snapshot = CACHE_SNAPSHOT.search(folder.as_posix())
    sha = snapshot["sha"] if snapshot else None
    not_fetched = tuple(file for file in _listed(hub_id, sha or revision) if not (folder / file).exists())
    has_pickles = any(fnmatch(file, "pytorch_model*.bin") for file in not_fetched)
    if has_pickles and (folder / "config.json").is_file() and not any(folder.rglob("*.safetensors")):
        raise pickles_alone(f"{hub_id} on the Hub", hub_id, name, load_object(folder / "config.json"))
    return Source(hub_id, "hub", folder, name, hub_id, sha, not_fetched=not_fetched)


def _listed(hub_id: str, revision: str | None) -> list[str]:
    """Return the files of a repository; none where the Hub cannot be asked, since all that is needed is here."""
    from huggingface_hub import HfApi

    try:
        return list(HfApi().list_repo_files(hub_id, revision=revision))
    except _transport_errors():
        return []


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


def _explained(download: Callable[[], T], hub_id: str, revision: str | None) -> T:
    """Run a download and turn what the Hub's client raises into what the user should do."""
    from huggingface_hub import errors

    try:
        return download()
    except errors.GatedRepoError as error:
        raise SourceError(
            f"Access to {hub_id} on the Hub is restricted, and this account was not let in.",
            f"Ask for access on its page, then run `hf auth login` or set HF_TOKEN. The Hub said: {_said(error)}",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise SourceError(
            f"{hub_id} has no revision {revision!r} on the Hub.", "Check its branches and tags."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise SourceError(
            f"There is no folder {hub_id} here, and no model {hub_id} on the Hub that this account may see.",
            "Check the spelling; for a private model run `hf auth login` or set HF_TOKEN.",
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise _unreachable(hub_id, error) from error
    except _transport_errors() as error:
        raise SourceError(
            f"{hub_id} could not be fetched from the Hub: {_said(error)}",
            "Run the same command again: files that were fetched whole are kept.",
        ) from error


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return what a broken transfer raises: OSError, and the error of whichever HTTP library the client stands on."""
    from huggingface_hub.errors import HfHubHTTPError

    bases = (base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))
    return (*bases, OSError, ValueError)


def _unreachable(hub_id: str, error: Exception) -> SourceError:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return SourceError(
            f"There is no folder {hub_id} here, and the Hub's cache does not hold it.",
            "HF_HUB_OFFLINE forbids to fetch it: unset that, or name a local folder.",
        )
    return SourceError(
        f"There is no folder {hub_id} here, and the Hub could not be reached: {_said(error)}",
        "Check the connection and HF_ENDPOINT, then run the same command again.",
    )


def _said(error: Exception) -> str:
    """Return the first line of an error, which may be long and hold URLs, but never a token."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip()
