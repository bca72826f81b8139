"""Resolve a checkpoint reference to a local folder, and decide which of its files are safe to
open.
"""

import os
import re
import shlex
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Literal

from ctxextend.checkpoints.filenames import (
    IGNORED_NAMES,
    NAMES,
    READABLE,
    STALE,
    first_match,
    with_variant,
)
from ctxextend.checkpoints.hub import download
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.checkpoints.training_files import DISTRIBUTED, distributed_error
from ctxextend.errors import CheckpointError, SourceError, did_you_mean

BUNDLED = {"tiny-gpt2": Path(__file__).resolve().parents[1] / "bundled" / "tiny_gpt2"}  # by name

GENERIC_STEMS = {
    "model",
    "pytorch_model",
    "ckpt",
    "adapter_model",
}  # outputs are not named after them
HUB_ID = re.compile(r"(?:[\w][\w.-]*/)?[\w][\w.-]*")
# A snapshot in the Hub cache: its commit, and the cache folder whose blobs its files link to.
CACHE_SNAPSHOT = re.compile(
    r"(?P<cache>.*/models--(?P<id>[^/]+))/snapshots/(?P<sha>[0-9a-f]{40})(?P<below>/.*)?"
)

# Called with a config, and may raise. Called again with False if there are no weights to detect the
# model type from.
ConfigCheck = Callable[..., None]


@dataclass(frozen=True)
class Source:
    """A checkpoint's folder and its origin."""

    reference: str  # what the user typed
    kind: Literal["folder", "file", "bundled", "hub"]
    folder: Path
    name: str  # for default outputs: the last part of the reference
    hub_id: str | None = None  # owner/name, if known
    revision: str | None = None  # commit hash on the Hub, if known
    notes: tuple[str, ...] = ()  # how the reference was resolved
    not_downloaded: tuple[
        str, ...
    ] = ()  # files of the Hub repository that were not downloaded, if known
    file: str | None = None  # the weights file that was passed instead of its folder


def resolve_source(
    reference: str | os.PathLike[str],
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    check: ConfigCheck = lambda *_: None,
) -> Source:
    """Resolve a reference to a checkpoint folder: a local path first, then a bundled name, then a
    Hub id.

    `check` is called with the config of a Hub model before its weights are downloaded, and may
    raise. A revision is for Hub models only, a subfolder and a variant for everything except a
    single file.
    """
    text = os.fspath(reference)
    path = os.path.expanduser(text)  # noqa: PTH111 - Path.expanduser raises for unknown users, and turns "" into "."
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - as above
    except PermissionError as error:  # the path exists, so it is not a Hub id
        raise SourceError(
            f"{text} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
    except (OSError, ValueError):
        mode = 0
    is_folder, is_file = stat.S_ISDIR(mode), stat.S_ISREG(mode)
    if is_folder or is_file or text in BUNDLED:
        for flag, value in {
            "revision": revision,
            "subfolder": subfolder,
            "variant": variant,
        }.items():
            if value is not None and (is_file or flag == "revision"):
                kind = "file" if is_file else "checkpoint"
                raise SourceError(
                    f"--{flag} {value} does not apply to the local {kind} {text}.",
                    f"Remove --{flag}.",
                )
        source = (
            _local_source(text, Path(path), is_file=is_file)
            if is_folder or is_file
            else bundled_source(text)
        )
    elif os.path.lexists(path) or not HUB_ID.fullmatch(text):
        hint = "Pass a checkpoint folder, a weights file or a Hub id (owner/name)."
        raise SourceError(f"{text} is not an existing folder or regular file.", hint)
    else:
        try:
            source = _hub_source(text, revision, subfolder, variant, check)
        except SourceError as error:
            hints = filter(None, (did_you_mean(text, BUNDLED), error.hint))
            raise SourceError(error.message, " ".join(hints)) from error
    if subfolder is None:
        return source
    folder = source.folder / subfolder
    if not os.path.isdir(folder):  # noqa: PTH112 - never raises
        raise SourceError(f"{source.reference} has no subfolder {subfolder}.", "Check --subfolder.")
    prefix = f"{PurePosixPath(subfolder).as_posix()}/"
    below = tuple(
        name.removeprefix(prefix) for name in source.not_downloaded if name.startswith(prefix)
    )
    return replace(source, folder=folder, name=f"{source.name}-{folder.name}", not_downloaded=below)


def bundled_source(name: str) -> Source:
    """Return a bundled checkpoint, even if a local folder has the same name."""
    return Source(name, "bundled", BUNDLED[name], name)


def _local_source(reference: str, path: Path, *, is_file: bool) -> Source:
    """Return the source for a local folder or weights file; the folder of a symlink is the
    symlink's folder.
    """
    if is_file and path.suffix == DISTRIBUTED:
        raise distributed_error(path.parent, path.parent)
    if is_file and path.suffix not in READABLE:
        hint = f"Pass a file that ends in {', '.join(READABLE)}, or a checkpoint folder."
        raise SourceError(f"{reference} is not a supported weights file.", hint)
    folder = (path.parent if is_file else path).resolve()
    is_link = path.is_symlink() and not is_file  # then the output is named after the link
    name = (path if is_link else folder).name or "model"
    hub_id = None
    revision = None
    if is_file and path.stem not in GENERIC_STEMS and not (folder / "config.json").is_file():
        name = path.stem
    cached = CACHE_SNAPSHOT.fullmatch(folder.as_posix())
    if cached and not cached["below"]:
        hub_id = cached["id"].replace("--", "/")
        revision = cached["sha"]
        name = hub_id.split("/")[-1]
    kind: Literal["file", "folder"] = "file" if is_file else "folder"
    return Source(
        reference, kind, folder, name, hub_id, revision, file=path.name if is_file else None
    )


def _hub_source(
    hub_id: str,
    revision: str | None,
    subfolder: str | None,
    variant: str | None,
    check: ConfigCheck,
) -> Source:
    """Download a Hub model: one format of its weights, and all other files that are copied."""
    below = f"{PurePosixPath(subfolder).as_posix()}/" if subfolder else ""

    def choose(files: list[str]) -> list[str]:
        names = [name.removeprefix(below) for name in files if name.startswith(below)]
        weights = next(
            (name for plain in NAMES if (name := with_variant(plain, variant)) in names), ""
        )
        stem, _, suffix = weights.partition(".")
        shards = f"{stem}{f'.{variant}' if variant else ''}-*.{suffix.partition('.')[0]}"
        return [
            f"{below}{name}"
            for name in names
            if name == weights
            or ("index" in weights and fnmatch(name, shards))
            or not (
                set(PurePosixPath(name).parts) & IGNORED_NAMES.keys()
                or first_match(PurePosixPath(name), STALE)
            )
        ]

    folder, files = download(
        hub_id, revision, f"{below}config.json", choose, lambda path: check(load_object(path))
    )
    snapshot = CACHE_SNAPSHOT.fullmatch(folder.as_posix())
    sha = snapshot["sha"] if snapshot else None
    not_downloaded = tuple(file for file in files if not (folder / file).exists())
    return Source(
        hub_id, "hub", folder, hub_id.split("/")[-1], hub_id, sha, not_downloaded=not_downloaded
    )


OUTSIDE = "a symlink that points outside the folder"
IRREGULAR = "not a regular file"


def has_file(source: Source, path: Path) -> bool:
    """Whether a checkpoint has this file; raise CheckpointError if it is irregular or a symlink out
    of the folder.
    """
    try:
        path.lstat()
    except (
        FileNotFoundError,
        NotADirectoryError,
        ValueError,
    ):  # ValueError: names with NUL or surrogates
        return False
    if kind := not_a_file(path):
        raise CheckpointError(
            f"{path} is {kind}.", "Replace it with the file itself, or download it again."
        )
    is_passed = source.file is not None and path == source.folder / source.file
    if not is_passed and points_outside(source.folder, path):
        raise CheckpointError(
            f"{path} is {OUTSIDE}, and was not read.", dereference_hint(source.folder)
        )
    return True


def not_a_file(path: Path) -> str | None:
    """Return the kind of a path that is not a regular file; None for a regular file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return "a broken symlink"  # or a circular one
    return None if stat.S_ISREG(mode) else "a folder" if stat.S_ISDIR(mode) else IRREGULAR


def points_outside(folder: Path, path: Path) -> bool:
    """Whether a path resolves, through symlinks, outside a folder and the blobs of its Hub
    cache.
    """
    inside = Path(os.path.realpath(folder))
    cached = CACHE_SNAPSHOT.fullmatch(inside.as_posix())
    allowed = {inside, Path(cached["cache"]) / "blobs"} if cached else {inside}
    return allowed.isdisjoint(Path(os.path.realpath(path)).parents)


def dereference_hint(folder: Path) -> str:
    """Return the hint for a folder with symlinks to files outside it."""
    command = shlex.join(["cp", "-rL", str(folder), f"{folder.name}-copied"])
    return f"If you trust its source, copy the folder with all link targets: {command}"


def public_name(reference: str) -> str:
    """Return a Hub id or else the last component of a path, for reports without folder names."""
    path = Path(reference.replace("\\", "/"))
    if not reference or reference.startswith("hf:") or "://" in reference:
        return reference
    if len(path.parts) == 2 and not path.parent.exists():  # a Hub id
        return reference
    return path.absolute().name or reference
