"""What the disk says: space asked for before writing, and a failed write explained."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ctxextend.errors import OutputError

__all__ = ["NO_ROOM", "NO_ROOM_HINT", "check_writable", "existing_above", "explained", "walk"]

NO_ROOM_HINT = "Free some space, or use -o on another disk."
# What systems answer where a disk is full, or a user's part of it.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

HINTS = {
    errno.ENOSPC: NO_ROOM_HINT,
    errno.EDQUOT: "Your quota is used up: free some of it, or use -o on another disk.",
    errno.EROFS: "Choose a place that can be written to with -o.",
    errno.EACCES: "Choose a place that you may write to with -o.",
    errno.EPERM: "Choose a place that you may write to with -o.",
    errno.EBUSY: "Is it a mount point? Then use a folder in it with -o.",
    errno.ELOOP: "Choose another name with -o: links lead in a circle there.",
    errno.ENAMETOOLONG: "Choose a shorter name with -o.",
}


def check_writable(folder: Path) -> None:
    """Raise OSError where this user may not make files in a folder, or nobody may."""
    if hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def existing_above(path: Path) -> Path:
    """Return the nearest folder above a path that is there; one that may not be looked into counts as missing."""
    above = path.absolute().parents
    return next((folder for folder in above if os.path.exists(folder)), path.absolute())  # noqa: PTH110 - never raises


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as `os.walk` does, but raise OSError for a folder that cannot be looked into, which that leaves out."""
    return os.walk(folder, onerror=_raise)


def _raise(error: OSError) -> NoReturn:
    raise error


def _told(room: Callable[[], str]) -> str:
    try:
        return room()
    except OSError:
        return "may need more than there is"


@contextmanager
def explained(output: Path, room: Callable[[], str] = str) -> Iterator[None]:
    """Turn what the system says of a failed write into an OutputError with what to do next.

    Args:
        output: What is written.
        room: Says of it what it needs and what there is; asked where the disk is full.
    """
    try:
        yield
    except OSError as error:
        said = f"{output} could not be written: {error.strerror or error}."
        told = f" It {_told(room)}." if error.errno in NO_ROOM and room is not str else ""
        hint = HINTS.get(error.errno or 0, "Check the disk, then run the same command again.")
        raise OutputError(f"{said}{told}", hint) from error
