"""From what a user types to a folder on this machine, and which files in it may be opened."""

import os
import re
import shlex
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Literal

from ctxextend.checkpoints.filenames import IGNORED_NAMES, NAMES, READABLE, STALE, first_match, with_variant
from ctxextend.checkpoints.hub import fetch
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.errors import CheckpointError, SourceError, did_you_mean

# The checkpoints that ship with the package, by the name that users type.
BUNDLED = {"tiny-gpt2": Path(__file__).resolve().parents[1] / "bundled" / "tiny_gpt2"}

# Names of weights files that say nothing of the model, and so do not name it.
PLAIN_STEMS = {"model", "pytorch_model", "ckpt", "adapter_model"}

HUB_ID = re.compile(r"(?:[\w][\w.-]*/)?[\w][\w.-]*")
# A snapshot in the Hub's cache: its commit, and the folder whose blobs its files are links to.
CACHE_SNAPSHOT = re.compile(r"(?P<cache>.*/models--(?P<id>[^/]+))/snapshots/(?P<sha>[0-9a-f]{40})(?P<below>/.*)?")


# Called with a config, may refuse it; called again with False where there are no weights that could tell its type.
ConfigCheck = Callable[..., None]


@dataclass(frozen=True)
class Source:
    """A checkpoint's folder and where it came from."""

    reference: str  # what the user typed
    kind: Literal["folder", "file", "bundled", "hub"]
    folder: Path
    name: str  # for outputs: the last part of the reference
    hub_id: str | None = None  # the Hub's owner/name, where it is known
    revision: str | None = None  # the Hub's commit hash, where it is known
    notes: tuple[str, ...] = ()  # how the reference was understood
    not_fetched: tuple[str, ...] = ()  # files of the Hub's repository that were not downloaded, where it could be asked
    file: str | None = None  # the weights file in the folder that the user named


def resolve_source(
    reference: str | os.PathLike[str],
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    check: ConfigCheck = lambda *_: None,
) -> Source:
    """Find the folder that a reference stands for; what is here wins, then a bundled name, then the Hub.

    `check` is called with the config of a model of the Hub before its weights are fetched, and may refuse it.
    A revision has a meaning on the Hub alone, a subfolder and a variant not for a single file.
    """
    text = os.fspath(reference)
    path = os.path.expanduser(text)  # noqa: PTH111 - Path's raises for unknown users, and has a folder for no name
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - as above
    except PermissionError as error:  # no model of the Hub is meant
        raise SourceError(f"{text} cannot be read: {error.strerror}.", "Check its permissions.") from error
    except (OSError, ValueError):
        mode = 0
    is_folder, is_file = stat.S_ISDIR(mode), stat.S_ISREG(mode)
    if is_folder or is_file or text in BUNDLED:
        for flag, value in {"revision": revision, "subfolder": subfolder, "variant": variant}.items():
            if value is not None and (is_file or flag == "revision"):
                what = "local file" if is_file else "checkpoint"
                raise SourceError(f"--{flag} {value} has no meaning for the {what} {text}.", "Leave it out.")
        source = _local(text, Path(path), is_file=is_file) if is_folder or is_file else bundled_source(text)
    elif os.path.lexists(path) or not HUB_ID.fullmatch(text):
        hint = "Name a checkpoint's folder, or a model of the Hub (owner/name)."
        raise SourceError(f"There is no folder or regular file {text} that can be read.", hint)
    else:
        try:
            source = _download(text, revision, subfolder, variant, check)
        except SourceError as error:
            hints = filter(None, (did_you_mean(text, BUNDLED), error.hint))
            raise SourceError(error.message, " ".join(hints)) from error
    if subfolder is None:
        return source
    folder = source.folder / subfolder
    if not os.path.isdir(folder):  # noqa: PTH112 - never raises
        raise SourceError(f"{source.reference} has no folder {subfolder}.", "Check --subfolder.")
    prefix = f"{PurePosixPath(subfolder).as_posix()}/"
    below = tuple(name.removeprefix(prefix) for name in source.not_fetched if name.startswith(prefix))
    return replace(source, folder=folder, name=f"{source.name}-{folder.name}", not_fetched=below)


def bundled_source(name: str) -> Source:
    """Return a checkpoint that ships with the package, whatever folder of that name there may be."""
    return Source(name, "bundled", BUNDLED[name], name)


def _local(reference: str, path: Path, *, is_file: bool) -> Source:
    """Return the source for a folder, or for one weights file: where that is a link, its neighbours are the link's."""
    if is_file and path.suffix not in READABLE:
        hint = f"Name a file that ends in {', '.join(READABLE)}, or the folder that holds it: {path.parent}."
        raise SourceError(f"{reference} is no weights file that can be read.", hint)
    folder = (path.parent if is_file else path).resolve()
    is_link = path.is_symlink() and not is_file  # then the output is named after the link, as it was typed
    name, hub_id = (path if is_link else folder).name or "model", None
    revision, notes = None, tuple[str, ...]()
    if is_file and path.stem not in PLAIN_STEMS and not (folder / "config.json").is_file():
        name = path.stem
    cached = CACHE_SNAPSHOT.fullmatch(folder.as_posix())
    if cached and not cached["below"]:
        hub_id, revision = cached["id"].replace("--", "/"), cached["sha"]
        name = hub_id.split("/")[-1]
    elif not is_file and "/" in reference and HUB_ID.fullmatch(reference):
        notes = (f"{reference} is a local folder here, and it wins over a model of the Hub of that name.",)
    kind: Literal["file", "folder"] = "file" if is_file else "folder"
    return Source(reference, kind, folder, name, hub_id, revision, notes, file=path.name if is_file else None)


def _download(
    hub_id: str, revision: str | None, subfolder: str | None, variant: str | None, check: ConfigCheck
) -> Source:
    """Fetch a model's files: of the weights those that are read, and what lies beside them."""
    below = f"{PurePosixPath(subfolder).as_posix()}/" if subfolder else ""

    def choose(files: list[str]) -> list[str]:
        names = [name.removeprefix(below) for name in files if name.startswith(below)]
        weights = next((name for each in NAMES if (name := with_variant(each, variant)) in names), "")
        stem, _, suffix = weights.partition(".")
        shards = f"{stem}{f'.{variant}' if variant else ''}-*.{suffix.partition('.')[0]}"
        return [
            f"{below}{name}"
            for name in names
            if name == weights
            or ("index" in weights and fnmatch(name, shards))
            or not (set(PurePosixPath(name).parts) & IGNORED_NAMES.keys() or first_match(PurePosixPath(name), STALE))
        ]

    folder, files = fetch(hub_id, revision, f"{below}config.json", choose, lambda path: check(load_object(path)))
    snapshot = CACHE_SNAPSHOT.fullmatch(folder.as_posix())
    sha = snapshot["sha"] if snapshot else None
    not_fetched = tuple(file for file in files if not (folder / file).exists())
    return Source(hub_id, "hub", folder, hub_id.split("/")[-1], hub_id, sha, not_fetched=not_fetched)


OUTSIDE = "a link that leads out of the folder"
IRREGULAR = "not a regular file"


def has_file(source: Source, path: Path) -> bool:
    """Whether a checkpoint has a file of that name; raise CheckpointError if it is irregular or a link out of it."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for names that no system has
        return False
    if kind := not_a_file(path):
        raise CheckpointError(f"{path} is {kind}.", "Put the file itself there, or fetch it again.")
    is_named = source.file is not None and path == source.folder / source.file
    if not is_named and leads_out(source.folder, path):
        raise CheckpointError(f"{path} is {OUTSIDE}, and was not read.", as_copied(source.folder))
    return True


def not_a_file(path: Path) -> str | None:
    """Return what something is that is no regular file; None for a regular file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return "a link that leads nowhere"  # or in a circle
    return None if stat.S_ISREG(mode) else "a folder" if stat.S_ISDIR(mode) else IRREGULAR


def leads_out(folder: Path, path: Path) -> bool:
    """Whether a path below a folder leads elsewhere by a link: neither into it, nor to the blobs of the Hub's cache."""
    inside = Path(os.path.realpath(folder))
    cached = CACHE_SNAPSHOT.fullmatch(inside.as_posix())
    allowed = {inside, Path(cached["cache"]) / "blobs"} if cached else {inside}
    return allowed.isdisjoint(Path(os.path.realpath(path)).parents)


def as_copied(folder: Path) -> str:
    """Say how to go on with a folder whose links lead out of it."""
    command = shlex.join(["cp", "-rL", str(folder), f"{folder.name}-copied"])
    return f"If you know who made it, copy the folder with all that links lead to: {command}"
