"""What lies in a model folder: what may be opened, what belongs to the checkpoint, and what an output leaves out."""

import os
import re
import shlex
import stat
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from ctxextend.checkpoints.disk import walk
from ctxextend.checkpoints.filenames import NOT_OURS, STALE, first_match, is_code
from ctxextend.checkpoints.source import Source
from ctxextend.errors import CheckpointError

__all__ = [
    "CODE",
    "FOLLOWED",
    "IRREGULAR",
    "OUTSIDE",
    "as_copied",
    "files_below",
    "holds",
    "leads_out",
    "reason_to_omit",
    "sort_files",
]

# Why files are left out that a stranger may have put there.
CODE = "code, which was not run"
OUTSIDE = "a link that leads out of the folder"
LINKED = "a linked folder"
IRREGULAR = "not a regular file"
# What other readers of a folder would follow, or wait for.
FOLLOWED = (OUTSIDE, LINKED, IRREGULAR)

# A snapshot in the Hub's cache, whose files are links into the folder of blobs beside it.
SNAPSHOT = re.compile(r"(?P<cache>.*/models--[^/]+)/snapshots/[^/]+(?:/.*)?")


def holds(source: Source, path: Path) -> bool:
    """Whether a checkpoint has a file, without following a link out of it or opening what is no file.

    Args:
        source: The checkpoint; the one file that a user named may be a link to anywhere.
        path: The file, in the checkpoint's folder.

    Returns:
        False where nothing of that name is there.

    Raises:
        CheckpointError: It is there, and must not be read.
        OSError: It cannot be looked at.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for names that no system has
        return False
    kind = _kind(_mode(path))
    if kind:
        raise CheckpointError(f"{path} is {kind}.", "Put the file itself there, or fetch it again.")
    is_named = source.file is not None and path == source.folder / source.file
    if not is_named and leads_out(source.folder, path):
        raise CheckpointError(f"{path} is {OUTSIDE}, and was not read.", as_copied(source.folder))
    return True


def as_copied(folder: Path) -> str:
    """Say how to go on with a folder whose links lead out of it."""
    command = shlex.join(["cp", "-rL", str(folder), f"{folder.name}-copied"])
    return f"If you know who made it, copy the folder with all that links lead to: {command}"


def leads_out(folder: Path, path: Path) -> bool:
    """Whether a path below a folder leads elsewhere by a link: neither into it, nor to the blobs of the Hub's cache."""
    inside = Path(os.path.realpath(folder))
    cached = SNAPSHOT.fullmatch(inside.as_posix())
    allowed = {inside, Path(cached["cache"]) / "blobs"} if cached else {inside}
    return allowed.isdisjoint(Path(os.path.realpath(path)).parents)


def sort_files(source: Source, model: PurePosixPath, used: Collection[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Part a folder's files into those that are copied and those that are left out, with the reason.

    Args:
        source: The checkpoint.
        model: The model's own folder, below the source's.
        used: Files that are neither.

    Raises:
        OSError: A folder cannot be looked into.
    """
    copied, omitted = [], {}
    for name, mode in files_below(source.folder):
        if name in used:
            continue
        reason = _reason(source.folder, PurePosixPath(name), model, mode)
        if reason:
            omitted[name] = reason
        else:
            copied.append(name)
    return tuple(copied), omitted


def reason_to_omit(path: PurePosixPath, model: PurePosixPath) -> str | None:
    """Return why a file of that name is no part of an output; None where it may be one.

    Args:
        path: The file, below the source's folder.
        model: As in `sort_files`.
    """
    if path.name in NOT_OURS:
        return f"{NOT_OURS[path.name]}, not part of the checkpoint"
    below = [path, *([path.relative_to(model)] if model in path.parents else [])]
    return next((STALE[pattern] for part in below if (pattern := first_match(part, STALE))), None)


def files_below(root: Path) -> Iterator[tuple[str, int]]:
    """Yield every file below the root, and every folder that is not walked into, with its mode, in sorted order."""
    for folder, folders, files in walk(root):
        here = Path(folder)
        skipped = [name for name in folders if name in NOT_OURS or (here / name).is_symlink()]
        folders[:] = sorted(set(folders) - set(skipped))
        for name in sorted([*files, *skipped]):
            yield (here / name).relative_to(root).as_posix(), _mode(here / name)


def _reason(root: Path, path: PurePosixPath, model: PurePosixPath, mode: int) -> str | None:
    if path.name not in NOT_OURS and (kind := _kind(mode)):
        return LINKED if stat.S_ISDIR(mode) else kind
    if why := reason_to_omit(path, model):
        return why
    if (root / path).is_symlink() and leads_out(root, root / path):
        return OUTSIDE
    return CODE if is_code(path) else None


def _mode(path: Path) -> int:
    """Return the mode of what a path leads to; 0 where its links lead nowhere, or in a circle."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def _kind(mode: int) -> str | None:
    """Return what something is that is no regular file."""
    if stat.S_ISREG(mode):
        return None
    if mode == 0:
        return "a link that leads nowhere"
    return "a folder" if stat.S_ISDIR(mode) else IRREGULAR
